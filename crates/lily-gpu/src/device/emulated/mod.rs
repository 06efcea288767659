//! The kernels as C++ on the CPU: every thread of a threadgroup really runs, as a fiber. Threads and threadgroups run in an
//! order shuffled by a seed; barriers, collectives, bounds and alignment are checked; traffic is counted.
//!
//! Commands run when they are waited for, so that a host that reads too early sees old values.

mod ffi;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, LazyLock, Mutex};

use lily_checkpoint::Bytes;
use memmap2::{MmapMut, MmapOptions};

use crate::check::check;
use crate::gpu::{Arg, Contents, Dispatched, Finished, Gpu, GpuError, Launch, Ticket, Traffic, check_range};
use crate::msl::{Access, Program};
use ffi::{LilyArguments, LilyBuffer, LilyKernel, LilySetting};

/// The shader source and the faulty kernels that the emulator's own tests run.
fn program() -> &'static Program {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
        match Program::parse(&format!("{}{}", crate::shader::whole_source(), crate::shader::FAULTY), &[]) {
            Ok(program) => program,
            Err(e) => panic!("{e}"),
        }
    });
    &PROGRAM
}

/// Buffers up to this size are filled with NaN.
const FILLED: u64 = 256 << 20;

/// The device.
pub struct Emulated {
    workers: u32,
    seed: u32,
    kernels: HashMap<&'static str, &'static LilyKernel>,
    constants: Vec<ffi::Constant>,
    open: Vec<Recorded>,
    committed: BTreeMap<Ticket, Vec<Recorded>>,
    next: u64,
}

enum Memory {
    Own(Mutex<MmapMut>),
    Host(Bytes),
}

/// Memory that kernels see. Clones share it.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
    contents: Contents,
}

impl Buffer {
    fn len(&self) -> u64 {
        match &*self.memory {
            Memory::Own(m) => lock(m).len() as u64,
            Memory::Host(b) => b.len() as u64,
        }
    }

    fn address(&self) -> *mut u8 {
        match &*self.memory {
            Memory::Own(m) => lock(m).as_mut_ptr(),
            // Kernels only read it: `encode` refuses it as an argument that is written.
            Memory::Host(b) => b.as_ptr().cast_mut(),
        }
    }
}

fn lock(m: &Mutex<MmapMut>) -> std::sync::MutexGuard<'_, MmapMut> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

enum Held {
    Buffer(Buffer, u64),
    Value(Vec<u64>),
}

struct Recorded {
    kernel: &'static str,
    constants: Vec<(&'static str, u32)>,
    held: Vec<Held>,
    groups: [u32; 3],
    threads: [u32; 3],
}

impl Emulated {
    /// `workers` threads run threadgroups; `seed` 0 runs them in order, else in a random order.
    ///
    /// # Errors
    /// Where the processor lacks AVX2 or FMA, which the kernels are compiled for.
    pub fn new(workers: u32, seed: u32) -> Result<Self, GpuError> {
        if !(std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")) {
            return Err(GpuError::Device("the emulator is compiled for processors with AVX2 and FMA".into()));
        }
        Ok(Self {
            workers: workers.max(1),
            seed,
            kernels: ffi::kernels().collect(),
            constants: ffi::constants().collect(),
            open: Vec::new(),
            committed: BTreeMap::new(),
            next: 0,
        })
    }

    fn run(&self, r: &Recorded) -> Result<Dispatched, GpuError> {
        let signature = program().kernel(r.kernel).ok_or_else(|| GpuError::launch(r.kernel, "unknown"))?;
        let mut arguments = LilyArguments { buffers: [LilyBuffer::NONE; 31], values: [std::ptr::null(); 31] };
        let names: Vec<CString> =
            signature.bound().map(|a| CString::new(a.name.as_str()).unwrap_or_default()).collect();
        let mut lines: Vec<[Vec<u8>; 2]> = Vec::new();
        for (i, held) in r.held.iter().enumerate() {
            match held {
                Held::Value(v) => arguments.values[i] = v.as_ptr().cast(),
                Held::Buffer(b, offset) => {
                    let size = b.len() - offset;
                    let counted = b.contents == Contents::Activations;
                    let bits = if counted { (size / 128 / 8 + 2) as usize } else { 0 };
                    lines.push([vec![0; bits], vec![0; bits]]);
                    let at = lines.last_mut().map(|l| l.each_mut().map(Vec::as_mut_ptr));
                    arguments.buffers[i] = LilyBuffer {
                        base: b.address().wrapping_add(*offset as usize),
                        size,
                        bytes: [0; 2],
                        lines: at.filter(|_| counted).unwrap_or([std::ptr::null_mut(); 2]),
                        name: names[i].as_ptr(),
                    };
                }
            }
        }
        let mut settings: Vec<LilySetting> = self
            .constants
            .iter()
            .map(|c| {
                let value = r.constants.iter().find(|given| given.0 == c.name).map_or(0, |given| given.1);
                LilySetting { address: c.address, value }
            })
            .collect();
        settings.push(LilySetting { address: std::ptr::null_mut(), value: 0 });
        let mut error = [0 as c_char; 600];
        // SAFETY: the kernel is one of the table; every argument that its launcher reads was set above, as `check`
        // compared their number and kinds with its signature; buffers are kept alive by `r.held`, line bits by `lines`,
        // and hold one bit for each line that starts inside the buffer and one for a line that it ends in.
        let switches = unsafe {
            ffi::lily_dispatch(
                self.kernels[r.kernel],
                &mut arguments,
                r.groups.as_ptr(),
                r.threads.as_ptr(),
                settings.as_ptr(),
                self.workers,
                self.seed,
                error.as_mut_ptr(),
                error.len(),
            )
        };
        if switches < 0 {
            // SAFETY: the runtime ends its text with a zero byte.
            let text = unsafe { CStr::from_ptr(error.as_ptr()) };
            return Err(GpuError::Run(text.to_string_lossy().into_owned()));
        }
        let mut lines = lines.iter();
        let mut traffic = Vec::new();
        for (i, (held, argument)) in r.held.iter().zip(signature.bound()).enumerate() {
            if let Held::Buffer(b, _) = held {
                let distinct = |bits: &Vec<u8>| 128 * bits.iter().map(|b| u64::from(b.count_ones())).sum::<u64>();
                let touched = lines.next().map(|l| l.each_ref().map(distinct)).unwrap_or_default();
                let [loaded, stored] = arguments.buffers[i].bytes;
                traffic.push(Traffic {
                    argument: argument.name.clone(),
                    contents: b.contents,
                    loaded,
                    stored,
                    lines_loaded: touched[0],
                    lines_stored: touched[1],
                });
            }
        }
        Ok(Dispatched { kernel: r.kernel.into(), groups: r.groups, traffic })
    }
}

impl Gpu for Emulated {
    type Buffer = Buffer;

    fn name(&self) -> String {
        format!("emulated GPU ({} CPU threads, order {})", self.workers, self.seed)
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Buffer, GpuError> {
        // Large and sparse buffers may be larger than the machine's memory.
        let map = MmapOptions::new().len(bytes.max(1) as usize).no_reserve_swap().map_anon();
        let mut map = map.map_err(|_| GpuError::Memory(bytes))?;
        if bytes <= FILLED {
            map.fill(0xff);
        }
        Ok(Buffer { memory: Arc::new(Memory::Own(Mutex::new(map))), contents })
    }

    fn share(&self, host: &Bytes, contents: Contents) -> Result<Buffer, GpuError> {
        if (host.as_ptr() as usize).is_multiple_of(16) {
            return Ok(Buffer { memory: Arc::new(Memory::Host(host.clone())), contents });
        }
        let copy = self.allocate(host.len() as u64, contents)?;
        self.upload(&copy, 0, host)?;
        Ok(copy)
    }

    fn bytes(&self, buffer: &Buffer) -> u64 {
        buffer.len()
    }

    fn upload(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), GpuError> {
        let size = buffer.len();
        check_range(size, offset, data.len())?;
        match &*buffer.memory {
            Memory::Own(m) => lock(m)[offset as usize..][..data.len()].copy_from_slice(data),
            Memory::Host(_) => {
                return Err(GpuError::Range { offset, bytes: data.len() as u64, size, what: "shared, read-only" });
            }
        }
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), GpuError> {
        check_range(buffer.len(), offset, out.len())?;
        let from = offset as usize..offset as usize + out.len();
        match &*buffer.memory {
            Memory::Own(m) => out.copy_from_slice(&lock(m)[from]),
            Memory::Host(b) => out.copy_from_slice(&b[from]),
        }
        Ok(())
    }

    fn encode(&mut self, launch: &Launch<'_, Buffer>) -> Result<(), GpuError> {
        let kernel = check(program(), launch, Buffer::len)?;
        for (given, wanted) in launch.args.iter().zip(kernel.bound()) {
            if let (Arg::Buffer(b, _), Access::Write) = (given, wanted.access)
                && matches!(&*b.memory, Memory::Host(_))
            {
                return Err(GpuError::launch(&kernel.name, format!("`{}` is written, but shared", wanted.name)));
            }
        }
        let held = launch
            .args
            .iter()
            .map(|a| match a {
                Arg::Buffer(b, offset) => Held::Buffer((*b).clone(), *offset),
                Arg::Value(bytes) => {
                    // Eight-byte words, so that the struct is aligned.
                    let mut padded = bytes.to_vec();
                    padded.resize(bytes.len().next_multiple_of(8), 0);
                    let word = |c: &[u8]| u64::from_ne_bytes(c.try_into().unwrap_or_default());
                    Held::Value(padded.chunks_exact(8).map(word).collect())
                }
            })
            .collect();
        let named = |(name, value): &(&str, u32)| {
            program().constants().iter().find(|c| c.name == *name).map(|c| (c.name.as_str(), *value))
        };
        self.open.push(Recorded {
            kernel: &kernel.name,
            constants: launch.constants.iter().filter_map(named).collect(),
            held,
            groups: launch.groups,
            threads: launch.threads,
        });
        Ok(())
    }

    fn encoded(&self) -> usize {
        self.open.len()
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        self.next += 1;
        self.committed.insert(Ticket(self.next), std::mem::take(&mut self.open));
        Ok(Ticket(self.next))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Finished, GpuError> {
        let mut finished = Finished::default();
        while let Some(entry) = self.committed.first_entry().filter(|e| *e.key() <= ticket) {
            let last = *entry.key() == ticket;
            for recorded in entry.remove() {
                let dispatched = self.run(&recorded)?;
                if last {
                    finished.dispatches.push(dispatched);
                }
            }
        }
        Ok(finished)
    }
}

#[cfg(test)]
mod tests;
