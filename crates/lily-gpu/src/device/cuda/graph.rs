//! Runs the launches of a command buffer: one by one, or as a graph where the same kernels follow one another as in an earlier
//! command buffer. A launch costs the host about 3 µs, in a graph the device under 1 µs and the host less.

use std::collections::HashSet;
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::driver::sys;

use super::Call;
use super::context::ok;
use crate::gpu::GpuError;

/// Graphs that are kept.
const GRAPHS: usize = 8;
/// Of the same kernels with other arguments.
const ALIKE: usize = 2;
/// An edge to a kernel that may begin when all threadgroups of the one before have begun and released it.
const OVERLAP: sys::CUgraphEdgeData = sys::CUgraphEdgeData {
    from_port: 1, // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    to_port: 0,
    type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    reserved: [0; 5],
};
/// Shorter command buffers are launched one by one.
const SHORTEST: usize = 4;

/// One launch with its arguments.
#[derive(Clone, PartialEq)]
pub struct Recorded {
    pub function: sys::CUfunction,
    pub groups: [u32; 3],
    pub threads: [u32; 3],
    /// Bytes of threadgroup memory beyond what the kernel declares.
    pub dynamic: u32,
    /// It waits on its own for what runs before it.
    pub early: bool,
    /// All arguments, each in whole words.
    pub words: Vec<u64>,
    /// Where each argument begins in `words`.
    pub starts: Vec<u32>,
}

impl Recorded {
    /// Addresses of the arguments, as the driver takes them.
    fn parameters(&self, addresses: &mut Vec<*mut c_void>) -> *mut *mut c_void {
        addresses.clear();
        // The driver copies the arguments and writes none.
        addresses.extend(self.starts.iter().map(|&s| self.words[s as usize..].as_ptr().cast_mut().cast()));
        addresses.as_mut_ptr()
    }

    /// `addresses` must outlive the use of what is returned.
    fn node(&self, addresses: &mut Vec<*mut c_void>) -> sys::CUDA_KERNEL_NODE_PARAMS_v2 {
        sys::CUDA_KERNEL_NODE_PARAMS_v2 {
            func: self.function,
            gridDimX: self.groups[0],
            gridDimY: self.groups[1],
            gridDimZ: self.groups[2],
            blockDimX: self.threads[0],
            blockDimY: self.threads[1],
            blockDimZ: self.threads[2],
            sharedMemBytes: self.dynamic,
            kernelParams: self.parameters(addresses),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        }
    }
}

/// A graph that has been made ready, and the launches that it holds.
struct Graph {
    graph: sys::CUgraph,
    ready: sys::CUgraphExec,
    nodes: Vec<sys::CUgraphNode>,
    launches: Vec<Recorded>,
    used: u64,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both handles are owned; the driver keeps what still runs.
        unsafe {
            let _ = sys::cuGraphExecDestroy(self.ready);
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}

/// Graphs of earlier command buffers.
#[derive(Default)]
pub struct Graphs {
    kept: Vec<Graph>,
    /// Hashes of the command buffers seen once.
    seen: HashSet<u64>,
    clock: u64,
}

impl Graphs {
    /// Appends all launches to the stream. The context is current.
    pub fn run(&mut self, stream: sys::CUstream, launches: Vec<Recorded>) -> Call<()> {
        if launches.len() < SHORTEST {
            return launch_each(stream, &launches);
        }
        self.clock += 1;
        let same = |g: &Graph| {
            g.launches.len() == launches.len()
                && g.launches.iter().zip(&launches).all(|(a, b)| a.function == b.function)
        };
        // Launches that differ from those of each graph of the same kernels. Decode steps use two sets of buffers in turn:
        // two graphs, so that hardly an argument changes from step to step.
        let alike: Vec<(usize, usize)> = (0..self.kept.len())
            .filter(|&i| same(&self.kept[i]))
            .map(|i| (self.kept[i].launches.iter().zip(&launches).filter(|(a, b)| a != b).count(), i))
            .collect();
        if let Some(&(changes, nearest)) = alike.iter().min()
            && (alike.len() >= ALIKE || changes * 16 <= launches.len())
        {
            let graph = &mut self.kept[nearest];
            graph.used = self.clock;
            graph.update(launches)?;
            return graph.launch(stream);
        }
        // A graph pays off from its second use on, and a prompt's passes may never come again.
        let mut hasher = DefaultHasher::new();
        launches.iter().for_each(|l| (l.function as usize).hash(&mut hasher));
        if self.seen.len() > 4096 {
            self.seen.clear();
        }
        if self.seen.insert(hasher.finish()) && alike.is_empty() {
            return launch_each(stream, &launches);
        }
        if self.kept.len() == GRAPHS {
            let oldest = (0..GRAPHS).min_by_key(|&i| self.kept[i].used).unwrap_or(0);
            self.kept.swap_remove(oldest);
        }
        let graph = Graph::new(launches, self.clock)?;
        graph.launch(stream)?;
        self.kept.push(graph);
        Ok(())
    }
}

impl Graph {
    fn new(launches: Vec<Recorded>, used: u64) -> Call<Self> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { sys::cuGraphCreate(&mut graph, 0) }, "a graph")?;
        // Owned from here on, so that an error frees it; destroying a null handle is refused without harm.
        let mut made = Self { graph, ready: std::ptr::null_mut(), nodes: Vec::new(), launches, used };
        let mut addresses = Vec::new();
        for recorded in &made.launches {
            let mut node = std::ptr::null_mut();
            let parameters = recorded.node(&mut addresses);
            let before = made.nodes.last();
            // Behind a kernel that is not early itself, what lies further back might still be under way.
            let overlaps = recorded.early && before.is_some() && made.launches[made.nodes.len() - 1].early;
            let waits = before.filter(|_| !overlaps);
            let (from, count) = (waits.map_or(std::ptr::null(), std::ptr::from_ref), usize::from(waits.is_some()));
            // SAFETY: the parameters point to the arguments that the kernel takes, as `encode` checked; the driver
            // copies them.
            let code = unsafe { sys::cuGraphAddKernelNode_v2(&mut node, graph, from, count, &parameters) };
            ok(code, "a node of a graph")?;
            if let Some(before) = before.filter(|_| overlaps) {
                // SAFETY: both nodes belong to the graph; the pointers are valid for the call.
                let code = unsafe { sys::cuGraphAddDependencies_v2(graph, before, &node, &OVERLAP, 1) };
                ok(code, "an edge of a graph")?;
            }
            made.nodes.push(node);
        }
        // SAFETY: the graph is complete and owned.
        ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut made.ready, graph, 0) }, "a graph")?;
        Ok(made)
    }

    /// The same kernels with other arguments or grids.
    fn update(&mut self, launches: Vec<Recorded>) -> Call<()> {
        let mut addresses = Vec::new();
        for ((node, old), new) in self.nodes.iter().zip(&self.launches).zip(&launches) {
            if old != new {
                let parameters = new.node(&mut addresses);
                // SAFETY: as in `new`; the kernel is the one that the node has. Runs in flight keep their arguments.
                ok(unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.ready, *node, &parameters) }, "a node")?;
            }
        }
        self.launches = launches;
        Ok(())
    }

    fn launch(&self, stream: sys::CUstream) -> Call<()> {
        // SAFETY: graph and stream belong to the current context.
        ok(unsafe { sys::cuGraphLaunch(self.ready, stream) }, "a graph")
    }
}

/// Without a graph.
pub fn launch_each(stream: sys::CUstream, launches: &[Recorded]) -> Result<(), GpuError> {
    let mut addresses = Vec::new();
    for l in launches {
        let ([gx, gy, gz], [tx, ty, tz]) = (l.groups, l.threads);
        let parameters = l.parameters(&mut addresses);
        let none = std::ptr::null_mut();
        // SAFETY: the arguments are those that the kernel takes, as `encode` checked; the driver copies them.
        let code =
            unsafe { sys::cuLaunchKernel(l.function, gx, gy, gz, tx, ty, tz, l.dynamic, stream, parameters, none) };
        ok(code, "a launch")?;
    }
    Ok(())
}
