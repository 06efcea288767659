"""Held-out evaluation text: teacher documents never trained on, plus programmatic conversations from unused seeds."""

import random, sys
from tokenizers import Tokenizer
import build_data

docs, tok, out = sys.argv[1:4]
tk = Tokenizer.from_file(tok)
r = random.Random(31337)
val = [x for x in build_data.teacher(docs) if x[3] % 50 == 0 and x[0] not in ("story", "compare")]
r.shuffle(val)
text = ""
while len(tk.encode(text).ids) < 5000:
    t = build_data.render_teacher(r, *val.pop()[:3]) if r.random() < 0.25 else build_data.render_prog(r)
    if len(t) > 2500 or not t.startswith("<|im_start|>"):
        continue
    text += t
open(out, "w").write(text)
print(len(tk.encode(text).ids), "tokens")
