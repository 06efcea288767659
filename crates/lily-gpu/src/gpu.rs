//! The engine's view of a GPU: buffers, named kernels, command buffers that run one after another.

use std::sync::Arc;
use std::time::Duration;

use lily_checkpoint::Bytes;

/// What a buffer holds. It decides how the emulator counts traffic: every lane's access for weights, cache and state;
/// each 128-byte line once a dispatch for activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Read-only parameters.
    Weights,
    /// Recurrent and convolution state.
    State,
    /// Keys and values.
    Cache,
    /// Everything else.
    Activations,
}

/// An argument of a dispatch, in the order of the kernel's indices.
#[derive(Debug)]
pub enum Arg<'a, B> {
    /// A buffer from a byte offset on. The offset is a multiple of the size of the kernel's element type.
    Buffer(&'a B, u64),
    /// A struct or scalar, at most 4 KiB, copied when the dispatch is encoded.
    Value(&'a [u8]),
}

// Not derived: a derive would ask for `B: Copy`, and only a reference to B is held.
impl<B> Copy for Arg<'_, B> {}

impl<B> Clone for Arg<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

/// One dispatch. Grids are counted in threadgroups; a threadgroup has at most 1,024 threads.
#[derive(Debug)]
pub struct Launch<'a, B> {
    /// Name in the shader source.
    pub kernel: &'a str,
    /// Function constants by name, each 4 bytes. Those not given are 0.
    pub constants: &'a [(&'a str, u32)],
    /// All arguments.
    pub args: &'a [Arg<'a, B>],
    /// Threadgroups in x, y and z.
    pub groups: [u32; 3],
    /// Threads of a threadgroup in x, y and z.
    pub threads: [u32; 3],
}

/// A committed command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "host reads are in order only after `wait`"]
pub struct Ticket(pub(crate) u64);

/// What one argument moved in one dispatch, in bytes. Measured by the emulator only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The argument's name in the shader.
    pub argument: String,
    /// What its buffer holds.
    pub contents: Contents,
    /// Loaded by all lanes.
    pub loaded: u64,
    /// Stored by all lanes.
    pub stored: u64,
    /// Activations only: 128 × the distinct lines loaded.
    pub lines_loaded: u64,
    /// Activations only: 128 × the distinct lines stored.
    pub lines_stored: u64,
}

impl Traffic {
    /// The bytes that count: lines for activations, every access for the rest.
    pub fn bytes(&self) -> u64 {
        match self.contents {
            Contents::Activations => self.lines_loaded + self.lines_stored,
            _ => self.loaded + self.stored,
        }
    }
}

/// One dispatch that has run.
#[derive(Clone, Debug)]
pub struct Dispatched {
    /// The kernel's name.
    pub kernel: Arc<str>,
    /// Threadgroups.
    pub groups: [u32; 3],
    /// By buffer argument; empty where the device does not count.
    pub traffic: Vec<Traffic>,
}

/// What a command buffer did.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// In the order of encoding.
    pub dispatches: Vec<Dispatched>,
    /// From the first dispatch to the last on the device, where it says so.
    pub gpu_time: Option<Duration>,
}

/// A device. Dispatches of a command buffer run in order, each one after the writes of those before it.
pub trait Gpu {
    /// Device memory that the host can fill and read. Clones share it.
    type Buffer: Clone;

    /// For logs: model of the device, or how it is emulated.
    fn name(&self) -> String;

    /// New memory. Its contents are undefined; the emulator fills up to 256 MiB with NaN, and more with zeros that take
    /// no memory until they are touched.
    ///
    /// # Errors
    /// [`GpuError::Memory`].
    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Self::Buffer, GpuError>;

    /// Host bytes for kernels to read. Without a copy where the device can and they begin at a multiple of 16; the
    /// buffer keeps them alive.
    ///
    /// # Errors
    /// [`GpuError::Memory`].
    fn share(&self, host: &Bytes, contents: Contents) -> Result<Self::Buffer, GpuError>;

    /// Most bytes that buffers of this device held at once so far. `None`: it does not count, or they are the process's.
    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes that buffers may hold on this device together, as far as the system tells before any is allocated: more may be
    /// slow or fail. `None`: it does not say.
    fn advised_bytes(&self) -> Option<u64> {
        None
    }

    /// Size of a buffer in bytes.
    fn bytes(&self, buffer: &Self::Buffer) -> u64;

    /// Writes host bytes. Only while no command buffer that uses the place is in flight.
    ///
    /// # Errors
    /// [`GpuError::Range`], also for a shared buffer.
    fn upload(&self, buffer: &Self::Buffer, offset: u64, data: &[u8]) -> Result<(), GpuError>;

    /// Reads back. Only after [`Gpu::wait`] for the command buffers that write the place.
    ///
    /// # Errors
    /// [`GpuError::Range`].
    fn read(&self, buffer: &Self::Buffer, offset: u64, out: &mut [u8]) -> Result<(), GpuError>;

    /// Appends a dispatch to the open command buffer, opening one where there is none.
    ///
    /// # Errors
    /// Where kernel, arguments or grid are not those of the shader, or the pipeline does not compile.
    fn encode(&mut self, launch: &Launch<'_, Self::Buffer>) -> Result<(), GpuError>;

    /// Dispatches of the open command buffer.
    fn encoded(&self) -> usize;

    /// Closes the open command buffer and starts it. Several may be in flight.
    ///
    /// # Errors
    /// [`GpuError::Run`].
    fn commit(&mut self) -> Result<Ticket, GpuError>;

    /// Waits until a command buffer has run. Each ticket is waited for once.
    ///
    /// # Errors
    /// [`GpuError::Run`] with the device's text.
    fn wait(&mut self, ticket: Ticket) -> Result<Finished, GpuError>;
}

/// What can go wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// No device, or one that Lily cannot use.
    #[error("no usable GPU: {0}")]
    Device(String),
    /// The shader source is refused.
    #[error("the shader does not compile: {0}")]
    Shader(String),
    /// A dispatch does not fit its kernel. A bug of the calling code.
    #[error("kernel {kernel}: {what}")]
    Launch {
        /// Its name.
        kernel: String,
        /// What does not fit.
        what: String,
    },
    /// Memory that the device does not give.
    #[error("the GPU has no {0} bytes; choose a shorter context or close other programs")]
    Memory(u64),
    /// Host access outside a buffer, or to one that is read-only.
    #[error("{bytes} bytes at {offset} of a buffer of {size}: {what}")]
    Range {
        /// Where it begins.
        offset: u64,
        /// How much.
        bytes: u64,
        /// Of the buffer.
        size: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The model gave something that is no number.
    #[error("the model gave {value} as logit of token {id}")]
    NotFinite {
        /// Of the first such logit.
        id: u32,
        /// NaN or +∞.
        value: f32,
    },
    /// A command buffer failed.
    #[error("the GPU stopped: {0}")]
    Run(String),
}

impl GpuError {
    /// [`GpuError::Launch`].
    pub fn launch(kernel: &str, what: impl Into<String>) -> Self {
        Self::Launch { kernel: kernel.into(), what: what.into() }
    }
}

/// Checks that `bytes` from `offset` on lie inside a buffer of `size` bytes.
///
/// # Errors
/// [`GpuError::Range`].
pub fn check_range(size: u64, offset: u64, bytes: usize) -> Result<(), GpuError> {
    let bytes = bytes as u64;
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(GpuError::Range { offset, bytes, size, what: "outside" }),
    }
}
