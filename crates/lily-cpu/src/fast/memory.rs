//! Bytes that the fast path takes, before it takes them (`docs/memory.md`).

use lily_model::{Footprint, LayerKind, SequenceBytes, Shape};

use super::kv::KvCache;
use super::matmul::ROWS;
use super::mixers::LinearState;
use super::quantise::GROUP;
use super::{CHUNK, Fast, KvElement};

/// `len` values, for reuse with other lengths. A buffer that must grow is made anew with exactly this length: growing in
/// place would take up to twice as much, and copy what nobody reads.
pub fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.capacity() < len {
        *buffer = Vec::new();
        buffer.reserve_exact(len);
    }
    buffer.resize(len, T::default());
}

/// Bytes of `Activations` of `rows` rows.
fn activations(rows: usize, cols: usize) -> usize {
    rows * (4 * cols + 2 * (cols + GROUP) + 2 * 4 * (cols / GROUP))
}

/// Bytes of the values on the way of `tokens` tokens, all layers together: buffers are reused from layer to layer.
pub fn buffers(s: &Shape, tokens: usize) -> u64 {
    let n = tokens;
    let floats = n * s.hidden // the residual stream
        + (n + s.conv_taps - 1) * s.conv_dim() // u
        + n * (2 * s.value_dim() + s.conv_dim() + 4 * s.linear_value_heads) // z, o; c; a, b, decay, β
        + n * (3 * s.query_dim() + 2 * s.kv_dim()) // queries with gates, attended; keys, values
        + n * s.hidden // outputs of the mixers
        + n * s.rotary_dim // cos, sin
        + n * (s.experts + 1) // router
        + n * s.experts_per_token * 4 // experts, weights, slots, tokens
        + n * (s.experts_per_token + 1) * s.hidden; // outputs of the experts
    let bytes = 4 * floats
        + 8 * (s.experts + 1)
        + activations(n, s.hidden)
        + activations(n, s.value_dim().max(s.query_dim()))
        + activations(n * s.experts_per_token, s.expert_width)
        + activations(n, s.shared_width);
    bytes as u64
}

/// Bytes that one thread keeps between tasks, at most.
fn thread(s: &Shape, tokens: usize) -> u64 {
    // Outputs of two products by all rows of a task; eight tokens' queries, outputs and scores by the heads of a group.
    let group = s.query_heads / s.kv_heads;
    let panel = 64 << 10;
    (panel + 4 * (2 * tokens * ROWS + 8 * group * (2 * s.head_dim + 64 + 2))) as u64
}

impl<K: KvElement> Fast<K> {
    /// What a sequence of this shape comes to hold.
    pub fn sequence(s: &Shape) -> SequenceBytes {
        let state = s.count(LayerKind::Linear) as u64 * LinearState::start(s).bytes();
        let block = s.count(LayerKind::Full) as u64 * KvCache::<K>::new(s.kv_heads, s.head_dim).block_bytes();
        SequenceBytes { state, block }
    }

    /// What the fast path takes for a checkpoint of this shape with `weights` bytes of weights, on `threads` threads, for
    /// contexts up to `context`, of which `parallel` decode at once.
    pub fn footprint(s: &Shape, weights: u64, threads: usize, context: usize, parallel: usize) -> Footprint {
        let tokens = CHUNK.min(context);
        let prepared = s.count(LayerKind::Linear) * 4 * s.conv_taps * s.conv_dim();
        // A row of logits of each sequence, and one that the sampler works on.
        let logits = 4 * s.vocab * (2 * parallel + 2);
        let scratch = buffers(s, tokens) + threads as u64 * thread(s, tokens) + (prepared + logits) as u64;
        Footprint { weights, mapped: true, sequence: Self::sequence(s), scratch }
    }
}

#[cfg(test)]
mod tests {
    use lily_checkpoint::Checkpoint;
    use lily_model::Rows;

    use super::*;
    use crate::Forward;
    use crate::fast::Bf16;

    #[test]
    fn buffers_take_what_was_said() {
        let demo = format!("{}/../../demo/4bit", env!("CARGO_MANIFEST_DIR"));
        let checkpoint = Checkpoint::open(demo.as_ref()).unwrap();
        let s = checkpoint.shape();
        let mut fast = Fast::<Bf16>::new(s, checkpoint.weights(), 2);
        let mut state = fast.start();
        // A short pass before a longer one: what had to grow is no larger than it must be.
        for tokens in [40, 65] {
            fast.forward(&mut state, &vec![300; tokens], Rows::Last);
        }
        assert_eq!(fast.buffers.bytes(), buffers(s, 65));
        let sequence = Fast::<Bf16>::sequence(s);
        assert_eq!(fast.state_bytes(&state), sequence.of(105));
    }
}
