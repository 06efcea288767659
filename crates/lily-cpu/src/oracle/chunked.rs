//! The delta rule over a chunk of tokens at once (`docs/model.md §4.5`): equal to [`super::delta::step`] in real
//! arithmetic, and the form that the GPU's prefill kernels compute. Kept plain, as their oracle.

use super::ops::dot;

/// Inputs of one value head over C tokens; q already scaled, both q and k of unit length.
pub struct Chunk<'a> {
    /// [C × key dim].
    pub q: &'a [f32],
    /// [C × key dim].
    pub k: &'a [f32],
    /// [C × value dim].
    pub v: &'a [f32],
    /// `[C]`, log decay, ≤ 0.
    pub g: &'a [f32],
    /// `[C]`, write strength.
    pub beta: &'a [f32],
}

/// Outputs [C × value dim]; the state [key dim × value dim] becomes the one after the chunk.
pub fn chunk(state: &mut [f32], c: &Chunk<'_>) -> Vec<f32> {
    let tokens = c.g.len();
    let (dk, dv) = (c.k.len() / tokens, c.v.len() / tokens);
    let k = |i: usize| &c.k[i * dk..(i + 1) * dk];
    let q = |i: usize| &c.q[i * dk..(i + 1) * dk];

    // G_i = Σ_{t ≤ i} g_t. Decays are formed from differences, whose exponents are never positive.
    let total: Vec<f32> =
        c.g.iter()
            .scan(0.0, |sum, g| {
                *sum += g;
                Some(*sum)
            })
            .collect();
    let decay = |i: usize, j: usize| (total[i] - total[j]).exp();

    // (I + A) U = R by forward substitution; A is strictly lower triangular.
    let mut u = vec![0.0; tokens * dv];
    for i in 0..tokens {
        let memory = read(state, k(i), dv);
        let mut row: Vec<f32> = (0..dv).map(|n| c.beta[i] * (c.v[i * dv + n] - total[i].exp() * memory[n])).collect();
        for j in 0..i {
            let a = c.beta[i] * dot(k(i), k(j)) * decay(i, j);
            for (r, u) in row.iter_mut().zip(&u[j * dv..(j + 1) * dv]) {
                *r -= a * u;
            }
        }
        u[i * dv..(i + 1) * dv].copy_from_slice(&row);
    }

    let mut out = Vec::with_capacity(tokens * dv);
    for (i, sum) in total.iter().enumerate() {
        let mut o: Vec<f32> = read(state, q(i), dv).iter().map(|m| sum.exp() * m).collect();
        for j in 0..=i {
            let p = dot(q(i), k(j)) * decay(i, j);
            for (o, u) in o.iter_mut().zip(&u[j * dv..(j + 1) * dv]) {
                *o += p * u;
            }
        }
        out.extend(o);
    }

    let last = tokens - 1;
    for (i, row) in state.chunks_exact_mut(dv).enumerate() {
        for s in row.iter_mut() {
            *s *= total[last].exp();
        }
        for j in 0..tokens {
            let weight = decay(last, j) * k(j)[i];
            for (s, u) in row.iter_mut().zip(&u[j * dv..(j + 1) * dv]) {
                *s += weight * u;
            }
        }
    }
    out
}

/// Sᵀ x: [key dim × value dim], [key dim] → [value dim].
fn read(state: &[f32], x: &[f32], dv: usize) -> Vec<f32> {
    let mut out = vec![0.0; dv];
    for (row, x) in state.chunks_exact(dv).zip(x) {
        for (o, s) in out.iter_mut().zip(row) {
            *o += s * x;
        }
    }
    out
}
