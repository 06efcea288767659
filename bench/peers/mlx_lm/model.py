"""Qwen3.6-35B-A3B for MLX-LM with random weights, made on the device.

The layout is that of a 4-bit conversion: affine, groups of 64, the router's and the shared expert's gates in 8 bits.
A weight is scale * code + bias with a bias of minus the scale times the middle code, so the mean is zero and the routing
spreads over the experts.
"""
import math

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import qwen3_5_moe
from mlx_lm.models.cache import KVCache, make_prompt_cache

HIDDEN, GROUP = 2048, 64
KV_HEADS, HEAD_DIM = 2, 256
CONV_TAPS, CONV_WIDTH = 3, 8192  # state of the convolution
VALUE_HEADS, LINEAR_DIM = 32, 128  # state of the delta rule


def config(layers, vocab, experts):
    return {
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text", "vocab_size": vocab, "hidden_size": HIDDEN, "num_hidden_layers": layers,
            "num_attention_heads": 16, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "attention_bias": False,
            "full_attention_interval": 4, "linear_conv_kernel_dim": CONV_TAPS + 1, "linear_key_head_dim": LINEAR_DIM,
            "linear_value_head_dim": LINEAR_DIM, "linear_num_key_heads": 16, "linear_num_value_heads": VALUE_HEADS,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": experts,
            "num_experts_per_tok": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "rope_parameters": {"type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                                "mrope_interleaved": True, "mrope_section": [11, 11, 10]},
        },
    }


def bits_of(name):
    return 8 if name.endswith(("mlp.gate", "mlp.shared_expert_gate")) else 4


def codes(shape):
    """Random 32-bit words. `randint` is good for 24 bits at most, so two halves are put together."""
    high, low = (mx.random.randint(0, 1 << 16, shape, dtype=mx.uint32) for _ in range(2))
    return (high << 16) | low


def uniform(low, high, like):
    return mx.random.uniform(low, high, like.shape).astype(mx.bfloat16)


def plain(name, like):
    """A tensor that is not quantised."""
    if name.endswith("conv1d.weight"):
        return uniform(-0.5, 0.5, like)
    if name.endswith("A_log"):
        return uniform(-1.0, 2.0, like)
    if name.endswith("dt_bias"):
        return uniform(-6.0, -1.5, like)
    assert "norm" in name, name
    return uniform(0.8, 1.2, like)


def quantised(name, module):
    """Codes, scales and biases of one matrix, of deviation gain / sqrt(row length)."""
    bits = bits_of(name)
    row = module.weight.shape[-1] * 32 // bits
    gain = 3.0 if name.endswith("lm_head") else 2.0 if name.endswith("mlp.gate") else 1.0
    deviation = 1.0 if name.endswith("embed_tokens") else gain / math.sqrt(row)
    step = deviation / math.sqrt((4**bits - 1) / 12)
    scales = uniform(0.75 * step, 1.25 * step, module.scales)
    biases = (-(2**bits - 1) / 2 * scales.astype(mx.float32)).astype(mx.bfloat16)
    return {"weight": codes(module.weight.shape), "scales": scales, "biases": biases}


def build(layers, vocab=248320, experts=256, seed=1):
    """The model and the bytes of its weights."""
    mx.random.seed(seed)
    model = qwen3_5_moe.Model(qwen3_5_moe.ModelArgs.from_dict(config(layers, vocab, experts)))
    nn.quantize(model, group_size=GROUP, bits=4, class_predicate=lambda name, module:
                hasattr(module, "to_quantized") and {"group_size": GROUP, "bits": bits_of(name)})
    drawn, matrices = [], set()
    for name, module in model.named_modules():
        if "scales" in module:
            matrices.add(name)
            drawn += [(f"{name}.{part}", value) for part, value in quantised(name, module).items()]
    drawn += [(name, plain(name, like)) for name, like in tree_flatten(model.parameters())
              if name.rsplit(".", 1)[0] not in matrices]
    size = 0
    for _, value in drawn:
        mx.eval(value)  # one after the other: the intermediate values of a tensor are gone before the next
        size += value.nbytes
    model.update(tree_unflatten(drawn))
    model.eval()
    return model, size


def filled_cache(model, depth):
    """A cache as `depth` tokens would leave it, with random contents."""
    cache, parts = make_prompt_cache(model), []
    for layer in cache:
        if isinstance(layer, KVCache):
            room = -(-depth // layer.step) * layer.step + layer.step
            shape = (1, KV_HEADS, room, HEAD_DIM)
            layer.keys, layer.values = (mx.random.uniform(-1, 1, shape).astype(mx.bfloat16) for _ in range(2))
            layer.offset = depth
            parts += [layer.keys, layer.values]
        else:
            layer[0] = mx.random.uniform(-1, 1, (1, CONV_TAPS, CONV_WIDTH)).astype(mx.bfloat16)
            layer[1] = 0.1 * mx.random.uniform(-1, 1, (1, VALUE_HEADS, LINEAR_DIM, LINEAR_DIM))
            parts += [layer[0], layer[1]]
    mx.eval(parts)
    return cache


def experts_used(model, tokens):
    """How many experts each layer uses for `tokens`."""
    from mlx_lm.models.switch_layers import SwitchGLU

    seen, original = [], SwitchGLU.__call__

    def watching(self, x, indices):
        seen.append(indices)
        return original(self, x, indices)

    SwitchGLU.__call__ = watching
    try:
        mx.eval(model(tokens[None], cache=make_prompt_cache(model)))
    finally:
        SwitchGLU.__call__ = original
    return [len(set(layer.flatten().tolist())) for layer in seen]
