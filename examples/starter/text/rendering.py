"""The chat template once more, in Python, as pieces that are learned or only read.

Serving renders chat_template.jinja; training needs to know which parts of the text are the model's own, and has to be fast.
`check` compares the two, so that a model is never trained on another text than it will see.
"""

import json
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent.parent / "chat_template.jinja"
DESCRIPTION_CHARACTERS = 200
ENUM_CHARACTERS = 120

READ, LEARNED = 0, 1


def tool_line(tool):
    """A tool as the model sees it."""
    function = tool.get("function") or tool
    schema = function.get("parameters") or {}
    required = schema.get("required") or []
    shown = []
    for key, value in (schema.get("properties") or {}).items():
        if value.get("enum"):
            kind = "|".join(str(v) for v in value["enum"])[:ENUM_CHARACTERS]
        else:
            kind = value["type"] if isinstance(value.get("type"), str) else "any"
        shown.append(f"{_json(key)}: {_json(kind if key in required else kind + '?')}")
    description = (function.get("description") or "")[:DESCRIPTION_CHARACTERS]
    return f'{{"name": {_json(function["name"])}, "description": {_json(description)}, "parameters": {{{", ".join(shown)}}}}}\n'


def pieces(messages, tools):
    """The conversation as (text, READ or LEARNED); `tools` are tools or lines of tool_line. Pieces end where tokens end."""
    out = []
    opening = bool(messages) and messages[0]["role"] == "system"
    if tools or opening:
        out.append(("<|im_start|>system\n", READ))
        if tools:
            out.append(("You can call these tools. A question mark stands behind what may be left out.\n<tools>\n", READ))
            out.extend((tool if isinstance(tool, str) else tool_line(tool), READ) for tool in tools)
            out.append(('</tools>\nTo call one, write\n<tool_call>\n{"name": NAME, "arguments": {KEY: VALUE}}\n</tool_call>\n', READ))
        if opening:
            out.extend(_blocks(messages[0]["content"]))
        out.append(("<|im_end|>\n", READ))
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            if index:
                out.append(("<|im_start|>system\n", READ))
                out.extend(_blocks(message["content"]))
                out.append(("<|im_end|>\n", READ))
        elif role == "tool":
            if index == 0 or messages[index - 1]["role"] != "tool":
                out.append(("<|im_start|>user\n", READ))
            last = index + 1 == len(messages) or messages[index + 1]["role"] != "tool"
            answer = _blocks(message["content"], "\n")
            out.append(("<tool_response>\n" + ("" if answer[0][0] != "\n" else answer.pop()[0]), READ))
            out.extend(answer)
            out.append(("</tool_response>" + ("<|im_end|>\n" if last else "\n"), READ))
        elif role == "user":
            out.append(("<|im_start|>user\n", READ))
            out.extend(_blocks(message["content"]))
            out.append(("<|im_end|>\n", READ))
        else:
            out.append(("<|im_start|>assistant\n", READ))
            said = (message.get("content") or "").strip()
            for number, call in enumerate(message.get("tool_calls") or []):
                function = call.get("function") or call
                said += ("\n" if said or number else "") + f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {_json(function["arguments"])}}}\n</tool_call>'
            out.append((said + "<|im_end|>", READ if message.get("given") else LEARNED))
            out.append(("\n", READ))
    return out


def _blocks(content, end=""):
    """A text, or a list of stretches that each end with a newline; the ends are trimmed as the template does."""
    if isinstance(content, str):
        content = [content]
    content = [c for c in content if c]
    if not content:
        return [(end, READ)] if end else []
    content = [content[0].lstrip(), *content[1:]]
    content[-1] = content[-1].rstrip() + end
    return [(c, READ) for c in content]


def _json(value):
    return json.dumps(value, ensure_ascii=False)


def plain(messages):
    """The messages as a client's would be: one string each."""
    return [{**m, "content": "".join(m["content"]).strip() if isinstance(m.get("content"), list) else m.get("content")} for m in messages]


def compiled():
    """The template, as transformers compiles it."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(TEMPLATE.read_text())


def check(template, messages, tools):
    """Fails unless both ways give the same text."""
    expected = template.render(messages=plain(messages), tools=tools or None, add_generation_prompt=False)
    got = "".join(text for text, _ in pieces(messages, tools))
    assert got == expected, f"\n--- pieces\n{got}\n--- template\n{expected}"
