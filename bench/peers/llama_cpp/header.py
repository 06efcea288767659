#!/usr/bin/env python3
"""Write the header of a Q4_0 GGUF file of Qwen3.6-35B-A3B (architecture qwen35moe) and nothing else.

    header.py --layers 40 --out model.gguf

The file is extended to its full size (19.7 GB for 40 layers) as a hole, which takes no room on the disk. `bench.cpp` loads
it without reading the tensors and draws them at random. Shapes and types are what `llama-quantize Q4_0` makes of the
model: Q4_0 everywhere, the head in Q6_K, small vectors and the router in F32. Needs Python alone.
"""
import argparse
import math
import struct

VOCAB, HIDDEN, CONTEXT = 248320, 2048, 262144
HEADS, KV_HEADS, HEAD_DIM = 16, 2, 256  # full attention
KEY_HEADS, VALUE_HEADS, LINEAR_DIM, CONV = 16, 32, 128, 4  # linear attention
EXPERTS, EXPERTS_USED, EXPERT_WIDTH = 256, 8, 512
FULL_EVERY = 4  # each fourth layer is full attention

# ggml's number of a type: (elements of a block, bytes of a block)
F32, Q4_0, Q6_K = 0, 2, 14
BLOCKS = {F32: (1, 4), Q4_0: (32, 18), Q6_K: (256, 210)}
MOSTLY_Q4_0 = 2  # general.file_type
ALIGNMENT = 32


def tensors(layers):
    """(name, shape with the contiguous dimension last, type) of every tensor, in the order of the file."""
    key, value = KEY_HEADS * LINEAR_DIM, VALUE_HEADS * LINEAR_DIM
    yield "token_embd.weight", (VOCAB, HIDDEN), Q4_0
    for layer in range(layers):
        p = f"blk.{layer}."
        yield p + "attn_norm.weight", (HIDDEN,), F32
        yield p + "post_attention_norm.weight", (HIDDEN,), F32
        if layer % FULL_EVERY == FULL_EVERY - 1:
            yield p + "attn_q.weight", (2 * HEADS * HEAD_DIM, HIDDEN), Q4_0  # queries and gates
            yield p + "attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN), Q4_0
            yield p + "attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN), Q4_0
            yield p + "attn_output.weight", (HIDDEN, HEADS * HEAD_DIM), Q4_0
            yield p + "attn_q_norm.weight", (HEAD_DIM,), F32
            yield p + "attn_k_norm.weight", (HEAD_DIM,), F32
        else:
            yield p + "attn_qkv.weight", (2 * key + value, HIDDEN), Q4_0
            yield p + "attn_gate.weight", (value, HIDDEN), Q4_0
            yield p + "ssm_conv1d.weight", (2 * key + value, CONV), F32
            yield p + "ssm_dt.bias", (VALUE_HEADS,), F32
            yield p + "ssm_a", (VALUE_HEADS,), F32
            yield p + "ssm_beta.weight", (VALUE_HEADS, HIDDEN), Q4_0
            yield p + "ssm_alpha.weight", (VALUE_HEADS, HIDDEN), Q4_0
            yield p + "ssm_norm.weight", (LINEAR_DIM,), F32
            yield p + "ssm_out.weight", (HIDDEN, value), Q4_0
        yield p + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), F32
        yield p + "ffn_gate_exps.weight", (EXPERTS, EXPERT_WIDTH, HIDDEN), Q4_0
        yield p + "ffn_up_exps.weight", (EXPERTS, EXPERT_WIDTH, HIDDEN), Q4_0
        yield p + "ffn_down_exps.weight", (EXPERTS, HIDDEN, EXPERT_WIDTH), Q4_0
        yield p + "ffn_gate_inp_shexp.weight", (HIDDEN,), F32
        yield p + "ffn_gate_shexp.weight", (EXPERT_WIDTH, HIDDEN), Q4_0
        yield p + "ffn_up_shexp.weight", (EXPERT_WIDTH, HIDDEN), Q4_0
        yield p + "ffn_down_shexp.weight", (HIDDEN, EXPERT_WIDTH), Q4_0
    yield "output_norm.weight", (HIDDEN,), F32
    yield "output.weight", (VOCAB, HIDDEN), Q6_K


def metadata(layers):
    """The keys that the loader wants, without a vocabulary."""
    arch = "qwen35moe"
    return {
        "general.architecture": arch,
        "general.name": f"Qwen3.6-35B-A3B, random, {layers} layers",
        "general.file_type": MOSTLY_Q4_0,
        "general.quantization_version": 2,
        "general.alignment": ALIGNMENT,
        f"{arch}.block_count": layers,
        f"{arch}.context_length": CONTEXT,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.vocab_size": VOCAB,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.key_length": HEAD_DIM,
        f"{arch}.attention.value_length": HEAD_DIM,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.rope.freq_base": 1e7,
        f"{arch}.rope.dimension_count": HEAD_DIM // 4,
        f"{arch}.rope.dimension_sections": [11, 11, 10, 0],
        f"{arch}.full_attention_interval": FULL_EVERY,
        f"{arch}.expert_count": EXPERTS,
        f"{arch}.expert_used_count": EXPERTS_USED,
        f"{arch}.expert_feed_forward_length": EXPERT_WIDTH,
        f"{arch}.expert_shared_feed_forward_length": EXPERT_WIDTH,
        f"{arch}.ssm.conv_kernel": CONV,
        f"{arch}.ssm.state_size": LINEAR_DIM,
        f"{arch}.ssm.group_count": KEY_HEADS,
        f"{arch}.ssm.time_step_rank": VALUE_HEADS,
        f"{arch}.ssm.inner_size": VALUE_HEADS * LINEAR_DIM,
        "tokenizer.ggml.model": "no_vocab",
    }


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    """A metadata value with the number of its type before it (GGUF version 3)."""
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, list):
        return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)
    return struct.pack("<II", 4, v)


def padded(n):
    return -n % ALIGNMENT + n


def bytes_of(shape, kind):
    elements, size = BLOCKS[kind]
    assert shape[-1] % elements == 0, (shape, kind)
    return math.prod(shape) // elements * size


def header(layers):
    """(the header's bytes, padded; the bytes of all tensors, padded)"""
    keys, plan, offset = metadata(layers), list(tensors(layers)), 0
    out = [struct.pack("<4sIQQ", b"GGUF", 3, len(plan), len(keys))]
    out += [string(k) + value(v) for k, v in keys.items()]
    for name, shape, kind in plan:
        dims = shape[::-1]  # the file has the contiguous dimension first
        out.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        offset += padded(bytes_of(shape, kind))
    head = b"".join(out)
    return head + bytes(padded(len(head)) - len(head)), offset


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--layers", type=int, default=40, help="a multiple of 4")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    if a.layers < FULL_EVERY or a.layers % FULL_EVERY:
        ap.error("--layers must be a multiple of 4")
    head, size = header(a.layers)
    with open(a.out, "wb") as f:
        f.write(head)
        f.truncate(len(head) + size)
    print(f"{a.out}: header of {len(head)} bytes, {(len(head) + size) / 1e9:.2f} GB with the hole")


if __name__ == "__main__":
    main()
