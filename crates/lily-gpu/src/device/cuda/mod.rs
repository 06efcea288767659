//! NVIDIA GPUs through the CUDA driver, found at run time: nothing of CUDA is needed to build Lily or to start it.
//!
//! Kernels are the same `.metal` text, translated by [`crate::msl`] and compiled by NVRTC for the device at hand when they are
//! first used; compiled code is kept in the user's cache folder. A simdgroup is a warp and a threadgroup a block.

mod compile;
mod context;
mod graph;
mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::sys;
use lily_checkpoint::Bytes;

use crate::check::check;
use crate::gpu::{Arg, Contents, Dispatched, Finished, Gpu, GpuError, Launch, Ticket, check_range};
use crate::kernels::Body;
use crate::msl::Access;
use compile::Compiler;
use context::{Context, ok};
use graph::{Graphs, Recorded};
use texts::{compile_in_parallel, is_hopper, program};

pub use compile::cache_folder;
pub use texts::{Compiled, compile_for};

type Call<T> = Result<T, GpuError>;

/// How the device runs commands.
#[derive(Clone, Debug)]
pub struct Options {
    /// Command buffers that repeat become graphs; otherwise each dispatch is launched alone.
    pub graphs: bool,
    /// Kernels of a graph that can begin early do so, where the device is able to (Hopper and later).
    pub overlap: bool,
    /// Where compiled kernels are kept; `None` keeps none.
    pub cache: Option<std::path::PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { graphs: true, overlap: true, cache: cache_folder() }
    }
}

/// The device.
pub struct Cuda {
    context: Arc<Context>,
    allocated: Arc<Allocated>,
    compiler: Compiler,
    name: String,
    graphs: Option<Graphs>,
    overlap: bool,
    /// Commands, in order.
    stream: sys::CUstream,
    /// Copies from and to the host, which wait for no command.
    copies: sys::CUstream,
    open: Commands,
    committed: BTreeMap<Ticket, Committed>,
    /// Events to use again.
    events: Vec<sys::CUevent>,
    next: u64,
}

// SAFETY: the driver's handles may be used from any thread, and every method makes the context current first.
unsafe impl Send for Cuda {}

#[derive(Default)]
struct Commands {
    launches: Vec<Recorded>,
    dispatches: Vec<Dispatched>,
    /// What the commands use, alive until they have run.
    held: Vec<Arc<Memory>>,
}

struct Committed {
    begin: sys::CUevent,
    end: sys::CUevent,
    dispatches: Vec<Dispatched>,
    _held: Vec<Arc<Memory>>,
}

/// Bytes of a device's buffers.
#[derive(Default)]
struct Allocated {
    now: AtomicU64,
    most: AtomicU64,
}

struct Memory {
    context: Arc<Context>,
    allocated: Arc<Allocated>,
    address: sys::CUdeviceptr,
    size: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.allocated.now.fetch_sub(self.size, Ordering::Relaxed);
        if self.context.enter().is_ok() {
            // SAFETY: the memory is owned, and commands that use it hold it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Device memory. Clones share it.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
    size: u64,
    /// Made of host bytes, which nothing may change.
    read_only: bool,
}

impl Cuda {
    /// The first device.
    ///
    /// # Errors
    /// [`GpuError::Device`] where the driver, NVRTC or a device of compute capability 8.0 is missing.
    pub fn open() -> Result<Self, GpuError> {
        Self::with(Options::default())
    }

    /// The first device, with options.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn with(options: Options) -> Result<Self, GpuError> {
        let context = Context::get()?;
        context.enter()?;
        let (mut driver, mut name) = (0, [0; 256]);
        let (mut stream, mut copies) = (std::ptr::null_mut(), std::ptr::null_mut());
        let apart = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointers are valid for the calls, and the name has the length that is given.
        unsafe {
            ok(sys::cuDriverGetVersion(&mut driver), "the driver's version")?;
            ok(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, context.device), "the device's name")?;
            ok(sys::cuStreamCreate(&mut stream, apart), "a stream")?;
            ok(sys::cuStreamCreate(&mut copies, apart), "a stream")?;
        }
        let capability = context.capability()?;
        // Edges between kernels that overlap came with CUDA 12.3.
        let overlap = options.overlap && capability.0 >= 9 && driver >= 12030;
        let compiler = Compiler::new(capability, driver, options.cache)?;
        let name = name.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect::<Vec<_>>();
        Ok(Self {
            context,
            allocated: Arc::default(),
            compiler,
            name: String::from_utf8_lossy(&name).into_owned(),
            graphs: options.graphs.then(Graphs::default),
            overlap,
            stream,
            copies,
            open: Commands::default(),
            committed: BTreeMap::new(),
            events: Vec::new(),
            next: 0,
        })
    }

    /// What multiplies in prefill's products: the kernels with PTX instructions are for Hopper.
    ///
    /// # Errors
    /// [`GpuError::Run`].
    pub fn body(&self) -> Result<Body, GpuError> {
        Ok(if is_hopper(self.context.capability()?) { Body::Mma } else { Body::Simdgroup })
    }

    /// Whether command buffers that repeat become graphs, from the next one on.
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs = on.then(Graphs::default);
    }

    /// Compiles every kernel of the engine that has no function constants, several at a time, so that none is compiled while a
    /// prompt waits.
    ///
    /// # Errors
    /// [`GpuError::Shader`] with the compiler's text.
    pub fn compile_all(&self) -> Result<(), GpuError> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let (context, compiler) = (&*self.context, &self.compiler);
        compile_in_parallel(self.context.capability()?, workers, |kernel| {
            if crate::is_ablate(&kernel.name) {
                return Ok(());
            }
            context.function(compiler, kernel, &[]).map(|_| ())
        })
    }

    /// Free and all memory of the device, in bytes.
    ///
    /// # Errors
    /// [`GpuError::Run`].
    pub fn memory(&self) -> Result<(u64, u64), GpuError> {
        self.context.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: the pointers are valid for the call.
        ok(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut all) }, "the device's memory")?;
        Ok((free as u64, all as u64))
    }

    /// The device's unique name, as `nvidia-smi -L` prints it, without `GPU-`.
    ///
    /// # Errors
    /// [`GpuError::Run`].
    pub fn uuid(&self) -> Result<String, GpuError> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, self.context.device) }, "the device's name")?;
        let hex: Vec<String> = uuid.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
        Ok([&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(<[String]>::concat).join("-"))
    }

    /// The highest clocks of multiprocessors and memory.
    ///
    /// # Errors
    /// [`GpuError::Run`].
    pub fn clocks(&self) -> Result<String, GpuError> {
        let core = self.context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
        let memory = self.context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        Ok(format!("up to {} MHz, memory {} MHz", core / 1000, memory / 1000))
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// [`GpuError::Run`].
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), GpuError> {
        self.context.enter()?;
        // SAFETY: the buffer has `size` bytes.
        ok(unsafe { sys::cuMemsetD8Async(buffer.memory.address, byte, buffer.size as usize, self.copies) }, "a fill")?;
        self.copied()
    }

    /// Waits for the copies to and from the host.
    fn copied(&self) -> Call<()> {
        // SAFETY: the stream is owned.
        ok(unsafe { sys::cuStreamSynchronize(self.copies) }, "a copy")
    }

    fn event(&mut self) -> Call<sys::CUevent> {
        let mut event = match self.events.pop() {
            Some(event) => event,
            None => std::ptr::null_mut(),
        };
        // SAFETY: the pointer is valid for the call, event and stream belong to the current context.
        unsafe {
            if event.is_null() {
                ok(sys::cuEventCreate(&mut event, 0), "an event")?;
            }
            ok(sys::cuEventRecord(event, self.stream), "an event")?;
        }
        Ok(event)
    }

    fn copy_in(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Call<()> {
        self.context.enter()?;
        let to = buffer.memory.address + offset;
        // SAFETY: the range was checked; `data` lives until the copy has ended, which the next line waits for.
        ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), data.len(), self.copies) }, "a copy")?;
        self.copied()
    }
}

impl Gpu for Cuda {
    type Buffer = Buffer;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn allocate(&self, bytes: u64, _contents: Contents) -> Result<Buffer, GpuError> {
        self.context.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(GpuError::Memory(bytes)),
            code => ok(code, "memory")?,
        }
        let now = self.allocated.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.allocated.most.fetch_max(now, Ordering::Relaxed);
        let (context, allocated) = (self.context.clone(), self.allocated.clone());
        let memory = Arc::new(Memory { context, allocated, address, size: bytes });
        Ok(Buffer { memory, size: bytes, read_only: false })
    }

    fn share(&self, host: &Bytes, contents: Contents) -> Result<Buffer, GpuError> {
        let buffer = self.allocate(host.len() as u64, contents)?;
        self.copy_in(&buffer, 0, host)?;
        Ok(Buffer { read_only: true, ..buffer })
    }

    /// What is free now.
    fn advised_bytes(&self) -> Option<u64> {
        Some(self.memory().ok()?.0)
    }

    fn peak_bytes(&self) -> Option<u64> {
        Some(self.allocated.most.load(Ordering::Relaxed))
    }

    fn bytes(&self, buffer: &Buffer) -> u64 {
        buffer.size
    }

    fn upload(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), GpuError> {
        check_range(buffer.size, offset, data.len())?;
        if buffer.read_only {
            let (bytes, size) = (data.len() as u64, buffer.size);
            return Err(GpuError::Range { offset, bytes, size, what: "shared, read-only" });
        }
        self.copy_in(buffer, offset, data)
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), GpuError> {
        check_range(buffer.size, offset, out.len())?;
        self.context.enter()?;
        let from = buffer.memory.address + offset;
        // SAFETY: the range was checked; `out` lives until the copy has ended, which the next line waits for.
        ok(unsafe { sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, out.len(), self.copies) }, "a copy")?;
        self.copied()
    }

    fn encode(&mut self, launch: &Launch<'_, Buffer>) -> Result<(), GpuError> {
        let kernel = check(program(launch.kernel), launch, |b| b.size)?;
        if launch.groups[1].max(launch.groups[2]) > 65_535 {
            return Err(GpuError::launch(&kernel.name, format!("a grid of {:?}", launch.groups)));
        }
        let function = self.context.function(&self.compiler, kernel, launch.constants)?.0;
        let mut words = Vec::with_capacity(launch.args.len() + 8);
        let mut starts = Vec::with_capacity(launch.args.len());
        for (given, wanted) in launch.args.iter().zip(kernel.bound()) {
            starts.push(words.len() as u32);
            match given {
                Arg::Buffer(b, _) if b.read_only && wanted.access == Access::Write => {
                    return Err(GpuError::launch(&kernel.name, format!("`{}` is written, but shared", wanted.name)));
                }
                Arg::Buffer(b, offset) => {
                    words.push(b.memory.address + offset);
                    self.open.held.push(b.memory.clone());
                }
                Arg::Value(bytes) => words.extend(bytes.chunks(8).map(|c| {
                    let mut word = [0; 8];
                    word[..c.len()].copy_from_slice(c);
                    u64::from_ne_bytes(word)
                })),
            }
        }
        let (groups, threads) = (launch.groups, launch.threads);
        let (early, dynamic) = (kernel.early && self.overlap, kernel.dynamic);
        self.open.launches.push(Recorded { function, groups, threads, dynamic, early, words, starts });
        let name: Arc<str> = kernel.name.as_str().into();
        self.open.dispatches.push(Dispatched { kernel: name, groups, traffic: Vec::new() });
        Ok(())
    }

    fn encoded(&self) -> usize {
        self.open.launches.len()
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        self.context.enter()?;
        let commands = std::mem::take(&mut self.open);
        let begin = self.event()?;
        match &mut self.graphs {
            Some(graphs) => graphs.run(self.stream, commands.launches)?,
            None => graph::launch_each(self.stream, &commands.launches)?,
        }
        let end = self.event()?;
        self.next += 1;
        let ticket = Ticket(self.next);
        let Commands { dispatches, held, .. } = commands;
        self.committed.insert(ticket, Committed { begin, end, dispatches, _held: held });
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Finished, GpuError> {
        let Some(committed) = self.committed.remove(&ticket) else { return Ok(Finished::default()) };
        self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: the events were recorded; the pointer is valid for the call.
        unsafe {
            ok(sys::cuEventSynchronize(committed.end), "a command")?;
            ok(sys::cuEventElapsedTime_v2(&mut milliseconds, committed.begin, committed.end), "a time")?;
        }
        self.events.extend([committed.begin, committed.end]);
        let gpu_time = Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3));
        Ok(Finished { dispatches: committed.dispatches, gpu_time })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        // SAFETY: streams and events are owned; what was committed has run when the first call returns.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let pending = self.committed.values().flat_map(|c| [c.begin, c.end]);
            for event in self.events.iter().copied().chain(pending) {
                let _ = sys::cuEventDestroy_v2(event);
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.copies);
        }
    }
}

#[cfg(test)]
mod tests;
