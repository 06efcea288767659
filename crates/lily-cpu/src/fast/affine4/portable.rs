//! Plain Rust: the definition that the vector versions must equal bit for bit.

use lily_checkpoint::Affine;

use super::super::quantise::{GROUP, Row, slot};
use super::{PANEL_ROWS, Panel, bf16};

/// Code of column `i` in a group's 32 bytes.
#[inline(always)]
fn code(bytes: &[u8], i: usize) -> i16 {
    i16::from(bytes[i / 2] >> (4 * (i % 2)) & 15)
}

/// Eight output rows (indices into the matrix) for one token.
pub fn gemv8(m: &Affine, rows: &[usize; 8], x: Row<'_>, out: &mut [f32; 8]) {
    let groups = m.cols / GROUP;
    for (out, &row) in out.iter_mut().zip(rows) {
        let mut acc = 0.0f32;
        for g in 0..groups {
            let at = row * groups + g;
            let bytes = &m.codes[at * GROUP / 2..(at + 1) * GROUP / 2];
            let x_codes = &x.codes[g * GROUP..(g + 1) * GROUP];
            let sum: i32 = (0..GROUP).map(|i| i32::from(code(bytes, i)) * i32::from(x_codes[slot(i)])).sum();
            acc = (sum as f32).mul_add(bf16(&m.scales, at) * x.scales[g], acc);
            acc = bf16(&m.biases, at).mul_add(x.sums[g], acc);
        }
        *out = acc;
    }
}

/// Unpacks groups `g..g + n` of sixteen rows.
pub fn pack(m: &Affine, rows: &[usize; PANEL_ROWS], g: usize, n: usize, panel: &mut Panel) {
    let groups = m.cols / GROUP;
    panel.groups = n;
    for (r, &row) in rows.iter().enumerate() {
        for j in 0..n {
            let at = row * groups + g + j;
            let bytes = &m.codes[at * GROUP / 2..(at + 1) * GROUP / 2];
            for i in 0..GROUP {
                let (pair, odd) = (slot(i) / 2, slot(i) % 2);
                panel.codes[((j * GROUP / 2 + pair) * PANEL_ROWS + r) * 2 + odd] = code(bytes, i);
            }
            panel.scales[j][r] = bf16(&m.scales, at);
            panel.biases[j][r] = bf16(&m.biases, at);
        }
    }
}

/// N tokens (each already at the panel's first group) times the panel, onto `acc`.
pub fn tile<const N: usize>(panel: &Panel, x: &[Row<'_>; N], acc: &mut [[f32; PANEL_ROWS]; N]) {
    for (x, acc) in x.iter().zip(acc) {
        for g in 0..panel.groups {
            let mut sums = [0i32; PANEL_ROWS];
            for pair in 0..GROUP / 2 {
                let at = (g * GROUP / 2 + pair) * PANEL_ROWS * 2;
                let (x0, x1) = (i32::from(x.codes[g * GROUP + 2 * pair]), i32::from(x.codes[g * GROUP + 2 * pair + 1]));
                for r in 0..PANEL_ROWS {
                    sums[r] += i32::from(panel.codes[at + 2 * r]) * x0 + i32::from(panel.codes[at + 2 * r + 1]) * x1;
                }
            }
            for r in 0..PANEL_ROWS {
                acc[r] = (sums[r] as f32).mul_add(panel.scales[g][r] * x.scales[g], acc[r]);
                acc[r] = panel.biases[g][r].mul_add(x.sums[g], acc[r]);
            }
        }
    }
}
