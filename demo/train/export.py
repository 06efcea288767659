"""Turn a training checkpoint into the published folders: bf16 in the layout of the official checkpoints."""

import json, os, shutil, sys, torch
from safetensors.torch import save_file
from model import Cfg


def text_config(c=Cfg()):
    return dict(
        attention_bias=False,
        attention_dropout=0.0,
        attn_output_gate=True,
        bos_token_id=None,
        dtype="bfloat16",
        eos_token_id=8185,
        full_attention_interval=c.period,
        head_dim=c.hd,
        hidden_act="silu",
        hidden_size=c.hid,
        initializer_range=0.02,
        layer_types=["full_attention" if (i + 1) % c.period == 0 else "linear_attention" for i in range(c.layers)],
        linear_conv_kernel_dim=c.conv,
        linear_key_head_dim=c.ld,
        linear_num_key_heads=c.lk,
        linear_num_value_heads=c.lv,
        linear_value_head_dim=c.ld,
        mamba_ssm_dtype="float32",
        max_position_embeddings=8192,
        model_type="qwen3_5_moe_text",
        moe_intermediate_size=c.inter,
        mtp_num_hidden_layers=0,
        num_attention_heads=c.heads,
        num_experts=c.experts,
        num_experts_per_tok=c.topk,
        num_hidden_layers=c.layers,
        num_key_value_heads=c.kv,
        output_router_logits=False,
        pad_token_id=8183,
        partial_rotary_factor=0.25,
        rms_norm_eps=c.eps,
        rope_parameters=dict(
            mrope_interleaved=True,
            mrope_section=[11, 11, 10],
            partial_rotary_factor=0.25,
            rope_theta=10000000,
            rope_type="default",
        ),
        router_aux_loss_coef=0.001,
        shared_expert_intermediate_size=c.shared,
        tie_word_embeddings=False,
        use_cache=True,
        vocab_size=c.vocab,
    )


def main(ck, tok, out):
    os.makedirs(out, exist_ok=True)
    sd = torch.load(ck, map_location="cpu", weights_only=True)["model"]
    w = {}
    for k, v in sd.items():
        k = k.replace("model.", "model.language_model.", 1) if k.startswith("model.") else k
        w[k] = v.to(torch.bfloat16).contiguous()
    save_file(w, f"{out}/model.safetensors", metadata={"format": "pt"})
    cfg = dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        dtype="bfloat16",
        model_type="qwen3_5_moe",
        text_config=text_config(),
        tie_word_embeddings=False,
    )
    json.dump(cfg, open(f"{out}/config.json", "w"), indent=2)
    json.dump(
        dict(do_sample=True, temperature=0.6, top_k=20, top_p=0.95, eos_token_id=[8185, 8183], pad_token_id=8183),
        open(f"{out}/generation_config.json", "w"),
        indent=2,
    )
    shutil.copy(f"{tok}/tokenizer.json", out)
    shutil.copy("chat_template.jinja", out)
    T = json.load(open(f"{out}/tokenizer.json"))
    tc = dict(
        add_bos_token=False,
        add_prefix_space=False,
        added_tokens_decoder={
            str(t["id"]): {k: t[k] for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")}
            for t in T["added_tokens"]
        },
        bos_token=None,
        clean_up_tokenization_spaces=False,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        errors="replace",
        model_max_length=8192,
        split_special_tokens=False,
        tokenizer_class="PreTrainedTokenizerFast",
    )
    json.dump(tc, open(f"{out}/tokenizer_config.json", "w"), indent=2)
    print({k: tuple(v.shape) for k, v in list(w.items())[:24]}, sum(v.numel() for v in w.values()))


if __name__ == "__main__":
    main(*sys.argv[1:4])
