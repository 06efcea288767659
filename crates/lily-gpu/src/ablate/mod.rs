//! The program without one of its ideas, for `lily bench --ablate`.
//!
//! [`Ablated`] is a device around another one. It lets the layer program's dispatches through, or puts others in their place:
//! the program itself knows nothing of it, so that what is measured as "on" is what ships. What each [`Without`] does instead
//! is chosen to be a fair program that lacks one idea, and tests hold its results against those with the idea.
//!
//! - `experts`: weights expanded to BF16 before each product; rows sorted by the host.
//! - `attention`: one query head a threadgroup; a fixed number of parts.
//! - `keys`: keys read by rows or by lanes, a kernel alone.

mod attention;
mod experts;
mod keys;
mod launch;

pub use attention::Baseline;
pub use keys::{KeyReads, key_reads};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lily_checkpoint::Bytes;

use crate::gpu::{Arg, Contents, Finished, Gpu, GpuError, Launch, Ticket};
use experts::Experts;

/// What is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Grouped products are those of the kernel that takes weights of any width. With `expanded` each of quantised weights comes
    /// after a dispatch that writes all experts' weights of that matrix as BF16, and multiplies those; the memory for them is
    /// held and used again by all layers. Otherwise it dequantises on the way, for comparison.
    FusedDequantisation {
        /// Whether it is gone.
        expanded: bool,
    },
    /// After the router the command buffer ends. The host reads the chosen experts, sorts rows, and writes order and blocks; as
    /// it knows the number of blocks, the grids of the products are exact.
    ResidentRouting,
    /// Decode's attention is another kernel.
    Attention(Baseline),
    /// Each dispatch is launched alone.
    OneCommandBuffer,
}

/// What can go without graphs by itself.
pub trait SingleLaunches: Gpu {
    /// Launches each dispatch alone from now on, or no longer. `false`: the device cannot, and gets a command buffer for each.
    fn single_launches(&mut self, _on: bool) -> bool {
        false
    }
}

#[cfg(feature = "emulated")]
impl SingleLaunches for crate::device::emulated::Emulated {}

#[cfg(target_os = "macos")]
impl SingleLaunches for crate::device::metal::Metal {}

#[cfg(all(any(target_os = "linux", target_os = "windows"), any(target_arch = "x86_64", target_arch = "aarch64")))]
impl SingleLaunches for crate::device::cuda::Cuda {
    fn single_launches(&mut self, on: bool) -> bool {
        self.set_graphs(!on);
        true
    }
}

/// A dispatch with what it needs to run again.
struct Owned<B> {
    kernel: String,
    constants: Vec<(String, u32)>,
    args: Vec<Result<(B, u64), Vec<u8>>>,
    groups: [u32; 3],
    threads: [u32; 3],
}

impl<B: Clone> Owned<B> {
    fn of(launch: &Launch<'_, B>) -> Self {
        let argument = |a: &Arg<'_, B>| match a {
            Arg::Buffer(b, offset) => Ok(((*b).clone(), *offset)),
            Arg::Value(bytes) => Err(bytes.to_vec()),
        };
        Self {
            kernel: launch.kernel.to_owned(),
            constants: launch.constants.iter().map(|c| (c.0.to_owned(), c.1)).collect(),
            args: launch.args.iter().map(argument).collect(),
            groups: launch.groups,
            threads: launch.threads,
        }
    }

    fn encode<G: Gpu<Buffer = B>>(&self, gpu: &mut G) -> Result<(), GpuError> {
        let constants: Vec<(&str, u32)> = self.constants.iter().map(|c| (c.0.as_str(), c.1)).collect();
        let args: Vec<Arg<'_, B>> = self
            .args
            .iter()
            .map(|a| match a {
                Ok((buffer, offset)) => Arg::Buffer(buffer, *offset),
                Err(bytes) => Arg::Value(bytes),
            })
            .collect();
        let Self { kernel, groups, threads, .. } = self;
        gpu.encode(&Launch { kernel, constants: &constants, args: &args, groups: *groups, threads: *threads })
    }
}

#[derive(Default)]
struct State {
    without: Option<Without>,
    replaced: u64,
    /// The beginning of the names of kernels that are kept.
    keep: Option<&'static str>,
}

/// Says what an [`Ablated`] device does without. Clones are the same switch.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<State>>);

impl Switch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left out of command buffers that are begun from now on.
    pub fn set(&self, without: Option<Without>) {
        self.state().without = without;
    }

    /// Dispatches that were replaced, or command buffers that were cut, since the last call. With 0 what was
    /// measured is the program as it ships: it runs other kernels than the ablation knows.
    pub fn replaced(&self) -> u64 {
        std::mem::take(&mut self.state().replaced)
    }

    /// Keeps dispatches, as they reach the device, of kernels whose names begin so, for [`Ablated::repeat`].
    pub fn keep(&self, kernels: Option<&'static str>) {
        self.state().keep = kernels;
    }
}

/// A device whose dispatches can be replaced.
pub struct Ablated<G: Gpu> {
    gpu: G,
    switch: Switch,
    experts: Experts<G::Buffer>,
    /// Partial sums of attention.
    partials: Option<G::Buffer>,
    kept: Vec<Owned<G::Buffer>>,
    /// Whether the device launches alone now.
    alone: bool,
    /// Command buffers cut off before a ticket, with nobody else to wait for them.
    cut: BTreeMap<Ticket, Vec<Ticket>>,
    open: Vec<Ticket>,
}

impl<G: SingleLaunches> Ablated<G> {
    /// Around a device, with nothing replaced.
    pub fn new(gpu: G) -> Self {
        Self {
            gpu,
            switch: Switch::default(),
            experts: Experts::default(),
            partials: None,
            kept: Vec::new(),
            alone: false,
            cut: BTreeMap::new(),
            open: Vec::new(),
        }
    }

    /// Its switch.
    pub fn switch(&self) -> Switch {
        self.switch.clone()
    }

    /// The device itself.
    pub fn inner(&mut self) -> &mut G {
        &mut self.gpu
    }

    /// Forgets the dispatches that [`Switch::keep`] kept.
    pub fn forget(&mut self) {
        self.kept.clear();
    }

    /// Runs the dispatches that [`Switch::keep`] kept once more, alone in a command buffer, and says how many they are.
    ///
    /// # Errors
    /// Of the device.
    pub fn repeat(&mut self) -> Result<(usize, Finished), GpuError> {
        for kept in &self.kept {
            kept.encode(&mut self.gpu)?;
        }
        let ticket = self.gpu.commit()?;
        Ok((self.kept.len(), self.gpu.wait(ticket)?))
    }

    /// To the device, and kept where that is asked for.
    fn pass(&mut self, launch: &Launch<'_, G::Buffer>) -> Result<(), GpuError> {
        let keep = self.switch.state().keep;
        if keep.is_some_and(|beginning| launch.kernel.starts_with(beginning)) {
            self.kept.push(Owned::of(launch));
        }
        self.gpu.encode(launch)
    }

    /// Ends the command buffer in the middle of what the program takes for one.
    fn cut(&mut self) -> Result<Ticket, GpuError> {
        self.switch.state().replaced += 1;
        self.gpu.commit()
    }
}

impl<G: SingleLaunches> Gpu for Ablated<G> {
    type Buffer = G::Buffer;

    fn name(&self) -> String {
        self.gpu.name()
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<G::Buffer, GpuError> {
        self.gpu.allocate(bytes, contents)
    }

    fn share(&self, host: &Bytes, contents: Contents) -> Result<G::Buffer, GpuError> {
        self.gpu.share(host, contents)
    }

    fn advised_bytes(&self) -> Option<u64> {
        self.gpu.advised_bytes()
    }

    fn peak_bytes(&self) -> Option<u64> {
        self.gpu.peak_bytes()
    }

    fn bytes(&self, buffer: &G::Buffer) -> u64 {
        self.gpu.bytes(buffer)
    }

    fn upload(&self, buffer: &G::Buffer, offset: u64, data: &[u8]) -> Result<(), GpuError> {
        self.gpu.upload(buffer, offset, data)
    }

    fn read(&self, buffer: &G::Buffer, offset: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.gpu.read(buffer, offset, out)
    }

    fn encode(&mut self, launch: &Launch<'_, G::Buffer>) -> Result<(), GpuError> {
        let without = self.switch.state().without;
        let alone = without == Some(Without::OneCommandBuffer);
        if alone != self.alone {
            self.alone = self.gpu.single_launches(alone) && alone;
        }
        match without {
            None => self.pass(launch),
            Some(Without::FusedDequantisation { expanded }) => self.expand_first(launch, expanded),
            Some(Without::ResidentRouting) => self.route_on_the_host(launch),
            Some(Without::Attention(baseline)) => self.attend(launch, baseline),
            Some(Without::OneCommandBuffer) => {
                self.pass(launch)?;
                if !self.alone {
                    let ticket = self.cut()?;
                    self.open.push(ticket);
                } else {
                    self.switch.state().replaced += 1;
                }
                Ok(())
            }
        }
    }

    fn encoded(&self) -> usize {
        self.gpu.encoded()
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        let ticket = self.gpu.commit()?;
        self.cut.insert(ticket, std::mem::take(&mut self.open));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Finished, GpuError> {
        for before in self.cut.remove(&ticket).unwrap_or_default() {
            self.gpu.wait(before)?;
        }
        self.gpu.wait(ticket)
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests;
