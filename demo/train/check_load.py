import sys, torch
from transformers import AutoModelForCausalLM, Qwen3_5MoeForCausalLM
from model import *

d, ck = sys.argv[1:3]
m = Model(Cfg())
m.load_state_dict(torch.load(ck, map_location="cpu")["model"])
m = m.float().eval()
for cls in (AutoModelForCausalLM, Qwen3_5MoeForCausalLM):
    try:
        hf, info = cls.from_pretrained(d, dtype=torch.float32, output_loading_info=True)
    except Exception as e:
        print(cls.__name__, "failed", repr(e)[:300])
        continue
    ids = torch.randint(0, 8000, (1, 300), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = m(ids), hf.eval()(ids).logits
    print(
        cls.__name__,
        type(hf).__name__,
        {k: v for k, v in info.items() if v},
        "max diff",
        (a - b).abs().max().item(),
        "scale",
        b.abs().max().item(),
    )
