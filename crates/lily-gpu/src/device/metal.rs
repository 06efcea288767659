//! Metal through `objc2-metal`. The shader is compiled from its source when the device is opened; pipelines are compiled at
//! their first use and kept. Buffers are shared memory, on Apple silicon the only kind that needs no copy.
//!
//! The kernels that use tensor operations are a library of their own, opened where GPU and system have them and the GPU holds
//! operands as the kernels expect; else the reason is kept and everything runs without.

use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use lily_checkpoint::Bytes;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSOperatingSystemVersion, NSProcessInfo, NSString};
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions,
    MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice,
    MTLDispatchType, MTLFunctionConstantValues, MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLMathMode,
    MTLResourceOptions, MTLSize,
};

use crate::check::{check, program};
use crate::gpu::{Arg, Contents, Dispatched, Finished, Gpu, GpuError, Launch, Ticket, check_range};
use crate::kernels::{Body, tensor_layout, tensor_parity};
use crate::shader::{is_ablate, is_tensor};

type Object<T> = Retained<ProtocolObject<T>>;

/// A kernel and the values of its function constants by index.
type Specialised = (&'static str, Vec<(usize, u32)>);

/// The device.
pub struct Metal {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    library: Object<dyn MTLLibrary>,
    /// The kernels with tensor operations, or why there are none.
    tensor: Result<Object<dyn MTLLibrary>, String>,
    /// The kernels of ablations, once one of them is wanted.
    ablate: Option<Object<dyn MTLLibrary>>,
    pipelines: HashMap<Specialised, Object<dyn MTLComputePipelineState>>,
    open: Option<Open>,
    committed: BTreeMap<Ticket, (Object<dyn MTLCommandBuffer>, Vec<Dispatched>)>,
    next: u64,
    page: usize,
}

struct Open {
    commands: Object<dyn MTLCommandBuffer>,
    encoder: Object<dyn MTLComputeCommandEncoder>,
    dispatches: Vec<Dispatched>,
}

/// Shared memory, or host bytes that the GPU reads where they lie.
#[derive(Clone)]
pub struct Buffer {
    metal: Object<dyn MTLBuffer>,
    /// Where the buffer's first byte is: host bytes need not begin at a page.
    start: u64,
    size: u64,
    /// Host bytes that must outlive the GPU's use of them.
    host: Option<Bytes>,
}

// SAFETY: Metal's objects are counted atomically and belong to no thread. Command buffers and encoders must not be used by
// two threads at once: they are reached through `&mut Metal` only.
unsafe impl Send for Metal {}

// SAFETY: as above; a buffer's memory is reached through a `Metal` only, whose callers keep the order of reads and writes.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn address(&self) -> *mut u8 {
        self.metal.contents().as_ptr().cast::<u8>().wrapping_add(self.start as usize)
    }
}

/// Bytes of memory that this Mac has.
pub fn physical_memory() -> u64 {
    NSProcessInfo::processInfo().physicalMemory()
}

impl Metal {
    /// The system's default device, with the shader compiled.
    ///
    /// # Errors
    /// [`GpuError::Device`] where there is none, [`GpuError::Shader`] with the compiler's text.
    pub fn open() -> Result<Self, GpuError> {
        // Before anything that an older system does not know.
        if !system_is(15, 0) {
            let has = NSProcessInfo::processInfo().operatingSystemVersionString();
            return Err(GpuError::Device(format!("Lily's GPU kernels need macOS 15.0 or later, and this is {has}")));
        }
        let device =
            MTLCreateSystemDefaultDevice().ok_or_else(|| GpuError::Device("this Mac has no Metal device".into()))?;
        let queue = device.newCommandQueue().ok_or_else(|| GpuError::Device("Metal gives no command queue".into()))?;
        // The first version with bfloat is 3.1.
        let library = compile(&device, &crate::source(), MTLLanguageVersion::Version3_1).map_err(GpuError::Shader)?;
        let tensor = tensor_library(&device);
        let page = page_size();
        let mut metal = Self {
            device,
            queue,
            library,
            tensor,
            ablate: None,
            pipelines: HashMap::new(),
            open: None,
            committed: BTreeMap::new(),
            next: 0,
            page,
        };
        if metal.tensor.is_ok() {
            match tensor_layout(&mut metal) {
                Ok(true) => {}
                Ok(false) => metal.tensor = Err("this GPU holds the operands of tensor operations otherwise".into()),
                Err(e) => metal.tensor = Err(e.to_string()),
            }
        }
        if metal.tensor.is_ok() {
            match tensor_parity(&mut metal) {
                Ok(true) => {}
                Ok(false) => metal.tensor = Err("tensor operations gave another product on this GPU".into()),
                Err(e) => metal.tensor = Err(e.to_string()),
            }
        }
        Ok(metal)
    }

    /// What prefill's products should multiply with.
    pub fn body(&self) -> Body {
        if self.tensor.is_ok() { Body::Tensor } else { Body::Simdgroup }
    }

    /// Why [`Metal::body`] is not [`Body::Tensor`].
    pub fn without_tensor(&self) -> Option<&str> {
        self.tensor.as_ref().err().map(String::as_str)
    }

    fn pipeline(
        &mut self,
        kernel: &'static str,
        constants: &[(&str, u32)],
    ) -> Result<Object<dyn MTLComputePipelineState>, GpuError> {
        // Function constants that are declared but not given would not compile: all are set, to 0 where nobody asks.
        let values: Vec<(usize, u32)> = program()
            .constants()
            .iter()
            .map(|c| (c.index, constants.iter().find(|given| given.0 == c.name).map_or(0, |given| given.1)))
            .collect();
        let key = (kernel, values);
        if let Some(found) = self.pipelines.get(&key) {
            return Ok(found.clone());
        }
        let given = MTLFunctionConstantValues::new();
        for ((index, value), constant) in key.1.iter().zip(program().constants()) {
            let ty = match constant.ty.as_str() {
                "float" => MTLDataType::Float,
                "int" => MTLDataType::Int,
                _ => MTLDataType::UInt,
            };
            // SAFETY: the address is that of 4 bytes, which all three types have; Metal copies them.
            unsafe { given.setConstantValue_type_atIndex(NonNull::from(value).cast(), ty, *index) };
        }
        let error =
            |e: Retained<objc2_foundation::NSError>| GpuError::launch(kernel, e.localizedDescription().to_string());
        if is_ablate(kernel) && self.ablate.is_none() {
            let library = compile(&self.device, &crate::ablate_source(), MTLLanguageVersion::Version3_1);
            self.ablate = Some(library.map_err(GpuError::Shader)?);
        }
        let library = match (&self.tensor, &self.ablate) {
            (_, Some(library)) if is_ablate(kernel) => library,
            _ if !is_tensor(kernel) => &self.library,
            (Ok(library), _) => library,
            (Err(reason), _) => return Err(GpuError::launch(kernel, reason.as_str())),
        };
        let function =
            library.newFunctionWithName_constantValues_error(&NSString::from_str(kernel), &given).map_err(error)?;
        let pipeline = self.device.newComputePipelineStateWithFunction_error(&function).map_err(error)?;
        self.pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    fn encoder(&mut self) -> Result<&mut Open, GpuError> {
        if self.open.is_none() {
            let stopped = |what: &str| GpuError::Run(format!("Metal gives no {what}"));
            // Retains what is bound, so that a buffer may be dropped while the GPU still uses it.
            let commands = self.queue.commandBuffer().ok_or_else(|| stopped("command buffer"))?;
            let encoder = commands
                .computeCommandEncoderWithDispatchType(MTLDispatchType::Serial)
                .ok_or_else(|| stopped("encoder"))?;
            self.open = Some(Open { commands, encoder, dispatches: Vec::new() });
        }
        self.open.as_mut().ok_or_else(|| GpuError::Run("no open command buffer".into()))
    }

    /// Host bytes where they lie: the pages that they touch, as one buffer.
    fn in_place(&self, host: &Bytes) -> Option<Buffer> {
        let address = host.as_ptr() as usize;
        if host.is_empty() || !address.is_multiple_of(16) {
            return None;
        }
        let first = address / self.page * self.page;
        let length = (address + host.len()).next_multiple_of(self.page) - first;
        let pointer = NonNull::new(first as *mut std::ffi::c_void)?;
        let mode = MTLResourceOptions::StorageModeShared;
        // SAFETY: every page from `first` on holds a byte of `host` and is therefore mapped as long as `host` lives, which
        // `Buffer` sees to; kernels only read it, as `encode` refuses it as an argument that is written.
        let metal =
            unsafe { self.device.newBufferWithBytesNoCopy_length_options_deallocator(pointer, length, mode, None) }?;
        Some(Buffer { metal, start: (address - first) as u64, size: host.len() as u64, host: Some(host.clone()) })
    }
}

/// A library from its text. Safe mathematics: a kernel's NaN and rounding are those that tests see.
fn compile(
    device: &ProtocolObject<dyn MTLDevice>,
    text: &str,
    version: MTLLanguageVersion,
) -> Result<Object<dyn MTLLibrary>, String> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(version);
    options.setMathMode(MTLMathMode::Safe);
    device
        .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
        .map_err(|e| e.localizedDescription().to_string())
}

/// The kernels with tensor operations. Operands made in registers came with macOS 26.2; the hardware with the tenth family.
fn tensor_library(device: &ProtocolObject<dyn MTLDevice>) -> Result<Object<dyn MTLLibrary>, String> {
    if std::env::var_os("LILY_NO_TENSOR").is_some_and(|v| !v.is_empty()) {
        return Err("LILY_NO_TENSOR is set".into());
    }
    if !device.supportsFamily(MTLGPUFamily::Apple10) {
        return Err("this GPU has no hardware for tensor operations".into());
    }
    if !system_is(26, 2) {
        return Err("tensor operations need macOS 26.2".into());
    }
    compile(device, &crate::tensor_source(), MTLLanguageVersion::Version4_0)
}

/// Whether macOS has this version or a later one.
fn system_is(major: isize, minor: isize) -> bool {
    let version = NSOperatingSystemVersion { majorVersion: major, minorVersion: minor, patchVersion: 0 };
    NSProcessInfo::processInfo().isOperatingSystemAtLeastVersion(version)
}

fn page_size() -> usize {
    // Apple silicon has pages of 16 KiB; a multiple of the real size is as good.
    16 << 10
}

impl Gpu for Metal {
    type Buffer = Buffer;

    fn name(&self) -> String {
        self.device.name().to_string()
    }

    fn allocate(&self, bytes: u64, _contents: Contents) -> Result<Buffer, GpuError> {
        let metal = self
            .device
            .newBufferWithLength_options(bytes.max(1) as usize, MTLResourceOptions::StorageModeShared)
            .ok_or(GpuError::Memory(bytes))?;
        Ok(Buffer { metal, start: 0, size: bytes, host: None })
    }

    fn share(&self, host: &Bytes, contents: Contents) -> Result<Buffer, GpuError> {
        if let Some(buffer) = self.in_place(host) {
            return Ok(buffer);
        }
        let copy = self.allocate(host.len() as u64, contents)?;
        self.upload(&copy, 0, host)?;
        Ok(copy)
    }

    /// The working set that the system recommends: beyond it, buffers do not stay resident.
    fn advised_bytes(&self) -> Option<u64> {
        Some(self.device.recommendedMaxWorkingSetSize())
    }

    fn bytes(&self, buffer: &Buffer) -> u64 {
        buffer.size
    }

    fn upload(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), GpuError> {
        check_range(buffer.size, offset, data.len())?;
        if buffer.host.is_some() {
            let (bytes, size) = (data.len() as u64, buffer.size);
            return Err(GpuError::Range { offset, bytes, size, what: "shared, read-only" });
        }
        // SAFETY: the range was checked; the caller waited for command buffers that use it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.address().add(offset as usize), data.len()) };
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), GpuError> {
        check_range(buffer.size, offset, out.len())?;
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(buffer.address().add(offset as usize), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn encode(&mut self, launch: &Launch<'_, Buffer>) -> Result<(), GpuError> {
        let kernel = check(program(), launch, |b| b.size)?;
        for (given, wanted) in launch.args.iter().zip(kernel.bound()) {
            if let (Arg::Buffer(b, _), crate::msl::Access::Write) = (given, wanted.access)
                && b.host.is_some()
            {
                return Err(GpuError::launch(&kernel.name, format!("`{}` is written, but shared", wanted.name)));
            }
        }
        let pipeline = self.pipeline(&kernel.name, launch.constants)?;
        let threads: usize = launch.threads.iter().map(|&n| n as usize).product();
        let most = pipeline.maxTotalThreadsPerThreadgroup();
        if threads > most {
            return Err(GpuError::launch(
                &kernel.name,
                format!("{threads} threads a threadgroup, this device has {most}"),
            ));
        }
        let open = self.encoder()?;
        open.encoder.setComputePipelineState(&pipeline);
        for (i, arg) in launch.args.iter().enumerate() {
            match arg {
                // SAFETY: index and offset fit the kernel's signature and the buffer's size, as `check` saw.
                Arg::Buffer(b, offset) => unsafe {
                    open.encoder.setBuffer_offset_atIndex(Some(&b.metal), (b.start + offset) as usize, i);
                },
                Arg::Value(bytes) => {
                    let first = NonNull::from(&bytes[0]).cast();
                    // SAFETY: Metal copies the bytes; their number is the size of the shader's type, as `check` saw.
                    unsafe { open.encoder.setBytes_length_atIndex(first, bytes.len(), i) };
                }
            }
        }
        let size = |v: [u32; 3]| MTLSize { width: v[0] as usize, height: v[1] as usize, depth: v[2] as usize };
        open.encoder.dispatchThreadgroups_threadsPerThreadgroup(size(launch.groups), size(launch.threads));
        let name: Arc<str> = kernel.name.as_str().into();
        open.dispatches.push(Dispatched { kernel: name, groups: launch.groups, traffic: Vec::new() });
        Ok(())
    }

    fn encoded(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.dispatches.len())
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        self.encoder()?;
        let Some(open) = self.open.take() else { return Err(GpuError::Run("no open command buffer".into())) };
        open.encoder.endEncoding();
        open.commands.commit();
        self.next += 1;
        self.committed.insert(Ticket(self.next), (open.commands, open.dispatches));
        Ok(Ticket(self.next))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Finished, GpuError> {
        let Some((commands, dispatches)) = self.committed.remove(&ticket) else { return Ok(Finished::default()) };
        commands.waitUntilCompleted();
        if commands.status() == MTLCommandBufferStatus::Error {
            let text = commands.error().map_or("without a reason".into(), |e| e.localizedDescription().to_string());
            return Err(GpuError::Run(text));
        }
        let seconds = commands.GPUEndTime() - commands.GPUStartTime();
        Ok(Finished { dispatches, gpu_time: Some(Duration::from_secs_f64(seconds.max(0.0))) })
    }
}

impl Drop for Metal {
    /// An encoder that is dropped before its end is an error in Metal.
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.encoder.endEncoding();
        }
    }
}
