"""ChatML rendering used for the training text; equals chat_template.jinja (checked in check_template.py)."""

import json

TOOLS_HEAD = "# Tools\n\nYou can call these functions:\n<tools>\n"
TOOLS_TAIL = "\n</tools>\n\nTo call a function, answer only with a block in this form:\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"


def call(name, args):
    s = f"<tool_call>\n<function={name}>\n"
    for k, v in args.items():
        s += f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n"
    return s + "</function>\n</tool_call>"


def render(msgs, tools=None):
    """msgs: list of dicts role/content[/reasoning][/calls]; returns the whole conversation as text"""
    out = ""
    sys = None
    if msgs and msgs[0]["role"] == "system":
        sys, msgs = msgs[0]["content"].strip(), msgs[1:]
    if tools:
        out += (
            "<|im_start|>system\n"
            + TOOLS_HEAD
            + "\n".join(json.dumps(t, ensure_ascii=False) for t in tools)
            + TOOLS_TAIL
        )
        if sys:
            out += "\n\n" + sys
        out += "<|im_end|>\n"
    elif sys is not None:
        out += f"<|im_start|>system\n{sys}<|im_end|>\n"
    last = max((i for i, m in enumerate(msgs) if m["role"] == "user"), default=-1)
    for i, m in enumerate(msgs):
        c = m["content"].strip()
        if m["role"] == "user":
            out += f"<|im_start|>user\n{c}<|im_end|>\n"
        elif m["role"] == "tool":
            if i == 0 or msgs[i - 1]["role"] != "tool":
                out += "<|im_start|>user"
            out += f"\n<tool_response>\n{c}\n</tool_response>"
            if i + 1 == len(msgs) or msgs[i + 1]["role"] != "tool":
                out += "<|im_end|>\n"
        else:
            out += "<|im_start|>assistant\n"
            if i > last:
                out += f"<think>\n{m.get('reasoning', '').strip()}\n</think>\n\n"
            out += c
            for j, (n, a) in enumerate(m.get("calls", [])):
                out += ("\n\n" if c and j == 0 else "\n" if j else "") + call(n, a)
            out += "<|im_end|>\n"
    return out
