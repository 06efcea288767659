//! Products on all cores: blocks of output rows are the tasks.

use std::cell::RefCell;

use lily_checkpoint::Matrix;

use super::affine4::{self, Panel, Pick};
use super::attention;
use super::dense;
use super::memory::grow;
use super::pool::{Disjoint, Pool};
use super::quantise::{GROUP, Quantised, quantise_row};
use super::simd::Isa;

/// Output rows of a task: long enough for a run of memory, short enough to spread over the cores. Also the group of
/// the next quantisation, so that a task can quantise what it made.
pub const ROWS: usize = GROUP;

/// The machine: threads and instruction set.
pub struct Cores {
    /// Runs sections.
    pub pool: Pool,
    /// Chosen at run time.
    pub isa: Isa,
}

/// Activations [tokens × cols], as they are and quantised.
#[derive(Default)]
pub struct Activations {
    /// tokens × cols.
    pub values: Vec<f32>,
    /// The same rows.
    pub quantised: Quantised,
}

/// Memory of one thread, kept between tasks.
#[derive(Default)]
pub struct Scratch {
    /// Unpacked weights.
    pub panel: Panel,
    /// tokens × ROWS.
    pub a: Vec<f32>,
    /// tokens × ROWS.
    pub b: Vec<f32>,
    /// Query rows.
    pub q: Vec<f32>,
    /// Attention outputs.
    pub o: Vec<f32>,
    /// Positions of the query rows.
    pub positions: Vec<usize>,
    /// Running softmax.
    pub attention: attention::Scratch,
}

/// This thread's scratch.
pub fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
    SCRATCH.with_borrow_mut(f)
}

impl Activations {
    /// Bytes that they hold.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        4 * self.values.capacity() as u64 + self.quantised.bytes()
    }

    /// Fills row by row in parallel: `fill(token, row)` writes [cols], which is then quantised.
    pub fn fill(&mut self, cores: &Cores, tokens: usize, cols: usize, fill: impl Fn(usize, &mut [f32]) + Sync) {
        grow(&mut self.values, tokens * cols);
        self.quantised.reset(tokens, cols);
        let groups = cols / GROUP;
        let stride = self.quantised.stride();
        let values = Disjoint::new(&mut self.values);
        let codes = Disjoint::new(&mut self.quantised.codes);
        let scales = Disjoint::new(&mut self.quantised.scales);
        let sums = Disjoint::new(&mut self.quantised.sums);
        each_token(&cores.pool, tokens, |t| {
            // SAFETY: token t writes its own row only.
            let (row, codes, scales, sums) = unsafe {
                (
                    values.part(t * cols, cols),
                    codes.part(t * stride, cols),
                    scales.part(t * groups, groups),
                    sums.part(t * groups, groups),
                )
            };
            fill(t, row);
            quantise_row(cores.isa, row, codes, scales, sums);
        });
    }
}

/// Calls `f` for each token, several tokens a task.
pub fn each_token(pool: &Pool, tokens: usize, f: impl Fn(usize) + Sync) {
    const TOKENS: usize = 4;
    pool.run(tokens.div_ceil(TOKENS), |task| {
        (task * TOKENS..tokens.min((task + 1) * TOKENS)).for_each(&f);
    });
}

/// Rows `first..first + rows` of `m` (at most [`ROWS`]) times the picked rows of x: out [picked × ROWS].
pub fn block(
    isa: Isa,
    m: &Matrix,
    first: usize,
    rows: usize,
    x: &Activations,
    pick: Pick<'_>,
    panel: &mut Panel,
    out: &mut Vec<f32>,
) {
    out.resize(pick.len() * ROWS, 0.0);
    match m {
        Matrix::Affine(a) if a.bits == 4 => affine4::block(isa, a, first, rows, &x.quantised, pick, ROWS, panel, out),
        _ => dense::block(isa, m, first, rows, &x.values, pick, ROWS, out),
    }
}

/// Several products of the same rows in one section: each output is [tokens × rows of its matrix].
pub fn project(cores: &Cores, x: &Activations, pick: Pick<'_>, jobs: &mut [(&Matrix, &mut [f32])]) {
    let tasks: Vec<(usize, usize)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(j, (m, _))| (0..m.rows()).step_by(ROWS).map(move |first| (j, first)))
        .collect();
    let jobs: Vec<(&Matrix, Disjoint<'_, f32>)> = jobs.iter_mut().map(|(m, out)| (*m, Disjoint::new(out))).collect();
    cores.pool.run(tasks.len(), |i| {
        let (j, first) = tasks[i];
        let (m, out) = &jobs[j];
        let rows = ROWS.min(m.rows() - first);
        with_scratch(|s| {
            block(cores.isa, m, first, rows, x, pick, &mut s.panel, &mut s.a);
            for (t, values) in s.a.chunks_exact(ROWS).enumerate() {
                // SAFETY: this task alone writes these columns of the job's output.
                unsafe { out.part(t * m.rows() + first, rows) }.copy_from_slice(&values[..rows]);
            }
        });
    });
}
