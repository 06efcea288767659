//! The driver, the device and the kernels loaded on it: what a process has once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::Call;
use super::compile::Compiler;
use super::texts::program;
use crate::gpu::GpuError;
use crate::msl::Kernel;

/// The driver's answer.
pub(super) fn ok(code: sys::CUresult, what: &str) -> Call<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = cudarc::driver::DriverError(code).error_string().map_or("".into(), |t| t.to_string_lossy().into_owned());
    Err(GpuError::Run(format!("{what}: {text} ({code:?})")))
}

/// What a process has once: the first device with its context, and the kernels loaded so far.
pub(super) struct Context {
    pub(super) device: sys::CUdevice,
    context: sys::CUcontext,
    functions: Mutex<HashMap<(&'static str, Vec<u32>), Function>>,
}

/// A loaded kernel. Modules are never unloaded.
#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread; calls that need the context make it current first.
unsafe impl Send for Context {}
// SAFETY: as above; the map is behind a lock.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for Function {}

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    pub(super) fn get() -> Call<Arc<Self>> {
        static CONTEXT: Mutex<Option<Arc<Context>>> = Mutex::new(None);
        let mut held = lock(&CONTEXT);
        if let Some(context) = &*held {
            return Ok(context.clone());
        }
        let context = Arc::new(Self::open()?);
        *held = Some(context.clone());
        Ok(context)
    }

    fn open() -> Call<Self> {
        let device = |e: GpuError| GpuError::Device(e.to_string());
        // SAFETY: it opens the driver's library by name.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::Device("the CUDA driver is missing: there is no libcuda on this machine".into()));
        }
        let (mut handle, mut context, mut driver) = (0, std::ptr::null_mut(), 0);
        // SAFETY: the pointers are valid for the calls.
        unsafe {
            ok(sys::cuInit(0), "CUDA does not start").map_err(device)?;
            ok(sys::cuDriverGetVersion(&mut driver), "the driver's version").map_err(device)?;
            if driver < 12000 {
                return Err(GpuError::Device(format!("the NVIDIA driver is too old (CUDA {driver}), 12.0 is needed")));
            }
            ok(sys::cuDeviceGet(&mut handle, 0), "no CUDA device").map_err(device)?;
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, handle), "the CUDA device").map_err(device)?;
        }
        let context = Self { device: handle, context, functions: Mutex::default() };
        let capability = context.capability()?;
        if capability.0 < 8 {
            let (major, minor) = capability;
            return Err(GpuError::Device(format!("compute capability {major}.{minor}, 8.0 is needed for BF16")));
        }
        Ok(context)
    }

    /// Makes the context the calling thread's.
    pub(super) fn enter(&self) -> Call<()> {
        // SAFETY: the context is held as long as the process.
        ok(unsafe { sys::cuCtxSetCurrent(self.context) }, "the context")
    }

    pub(super) fn attribute(&self, which: sys::CUdevice_attribute) -> Call<i32> {
        let mut value = 0;
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.device) }, "an attribute")?;
        Ok(value)
    }

    pub(super) fn capability(&self) -> Call<(i32, i32)> {
        let major = self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major, minor))
    }

    /// Every function constant in the order of the source, 0 where none is given.
    pub(super) fn constants(kernel: &str, given: &[(&str, u32)]) -> Vec<(&'static str, u32)> {
        let value = |name: &str| given.iter().find(|g| g.0 == name).map_or(0, |g| g.1);
        program(kernel).constants().iter().map(|c| (c.name.as_str(), value(&c.name))).collect()
    }

    pub(super) fn function(
        &self,
        compiler: &Compiler,
        kernel: &'static Kernel,
        given: &[(&str, u32)],
    ) -> Call<Function> {
        let constants = Self::constants(&kernel.name, given);
        let key = (kernel.name.as_str(), constants.iter().map(|c| c.1).collect::<Vec<_>>());
        if let Some(found) = lock(&self.functions).get(&key) {
            return Ok(*found);
        }
        let code = compiler.kernel(kernel, &constants)?;
        let name = std::ffi::CString::new(kernel.name.as_str()).unwrap_or_default();
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        self.enter()?;
        // SAFETY: the code is a whole image for this device; the pointers are valid for the calls.
        unsafe {
            ok(sys::cuModuleLoadData(&mut module, code.as_ptr().cast()), "loading a kernel")?;
            ok(sys::cuModuleGetFunction(&mut function, module, name.as_ptr()), "loading a kernel")?;
            if kernel.dynamic > 0 {
                let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                ok(sys::cuFuncSetAttribute(function, most, kernel.dynamic as i32), "threadgroup memory")?;
            }
        }
        // Two threads that load the same kernel at once each keep a good one.
        Ok(*lock(&self.functions).entry(key).or_insert(Function(function)))
    }
}
