//! Keys of a cache read alone: q · k of one query row for each kv head, three ways.

use crate::args::AblateKeysArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};
use crate::kernels::View;

/// Width of a key.
const HEAD: u64 = 256;

/// Who reads a key `[256]` of BF16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReads {
    /// A simdgroup: neighbouring lanes read neighbouring 16 bytes.
    Rows,
    /// A lane, 16 bytes at a time: neighbouring lanes read 512 bytes apart.
    Lanes,
    /// A lane, a value at a time.
    Values,
}

/// scores = q · k. `q`: `[kv heads × 256]` F32; `keys`: `[kv heads × positions × 256]` BF16, both aligned to 16 bytes;
/// `scores`: `[kv heads × positions]` F32.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn key_reads<G: Gpu>(
    gpu: &mut G,
    how: KeyReads,
    q: View<'_, G::Buffer>,
    keys: View<'_, G::Buffer>,
    scores: View<'_, G::Buffer>,
    [kv_heads, positions]: [u32; 2],
) -> Result<(), GpuError> {
    let rows = u64::from(kv_heads) * u64::from(positions);
    for (view, bytes) in [(q, u64::from(kv_heads) * HEAD * 4), (keys, rows * HEAD * 2), (scores, rows * 4)] {
        let has = gpu.bytes(view.buffer);
        assert!(view.offset + bytes <= has, "{bytes} bytes at {} of a buffer of {has}", view.offset);
    }
    let [q, keys, scores] = [q, keys, scores].map(|v| Arg::Buffer(v.buffer, v.offset));
    gpu.encode(&Launch {
        kernel: match how {
            KeyReads::Rows => "ablate_keys_rows",
            KeyReads::Lanes => "ablate_keys_lanes",
            KeyReads::Values => "ablate_keys_values",
        },
        constants: &[],
        args: &[q, keys, scores, Arg::Value(&AblateKeysArgs { positions }.to_bytes())],
        groups: [positions.div_ceil(256), kv_heads, 1],
        threads: [256, 1, 1],
    })
}
