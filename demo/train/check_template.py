"""The jinja template must give the same text as chatml.render on generated conversations."""

import json, random, sys
from transformers import AutoTokenizer
import skills, build_data
from chatml import render

tk = AutoTokenizer.from_pretrained(sys.argv[1])
r = random.Random(4)
n = 0
for i in range(600):
    msgs, tools = skills.conversation(r, r.choice(["mix", "tool", "story", "needle", "tool"]))
    hf = []
    for m in msgs:
        d = dict(role=m["role"], content=m["content"])
        if m.get("reasoning"):
            d["reasoning_content"] = m["reasoning"]
        if m.get("calls"):
            d["tool_calls"] = [dict(type="function", function=dict(name=a, arguments=b)) for a, b in m["calls"]]
        hf.append(d)
    a = tk.apply_chat_template(hf, tools=tools, tokenize=False)
    b = render(msgs, tools)
    assert a == b, (a, b)
    ids = tk.encode(b)
    assert tk.decode(ids) == b, (tk.decode(ids), b)
    k = max(i for i, m in enumerate(hf) if m["role"] == "assistant")
    p = tk.apply_chat_template(hf[:k], tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    if not hf[k].get("reasoning_content"):
        assert b.startswith(p), (b, p)
    n += 1
print("template ok", n, repr(p[-60:]), type(tk).__name__, tk.encode("Hi<|im_end|>"))
print(repr(tk.apply_chat_template([dict(role="user", content="Hi")], tokenize=False, add_generation_prompt=True)))
