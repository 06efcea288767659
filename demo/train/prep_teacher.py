"""Index the teacher GGUF and write its tokenizer as tokenizer.json (run once, on the CPU)."""

import json, sys, gguf
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, AddedToken


def main(path, out_dir):
    r = gguf.GGUFReader(path)
    idx = [
        dict(
            name=t.name,
            type=t.tensor_type.name,
            shape=[int(x) for x in t.shape][::-1],
            offset=int(t.data_offset),
            nbytes=int(t.n_bytes),
        )
        for t in r.tensors
    ]
    json.dump(idx, open(f"{out_dir}/teacher_index.json", "w"))
    toks = r.fields["tokenizer.ggml.tokens"].contents()
    merges = r.fields["tokenizer.ggml.merges"].contents()
    types = r.fields["tokenizer.ggml.token_type"].contents()
    tk = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(toks)}, merges=[tuple(m.split(" ")) for m in merges]))
    tk.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tk.decoder = decoders.ByteLevel()
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, ty in zip(toks, types) if ty == 3])
    tk.save(f"{out_dir}/teacher_tokenizer.json")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
