"""Examines a model with the phrasings of held_out.py, greedily.

    python evaluate.py build/hf                                   a Hugging Face folder, by transformers
    python evaluate.py --server http://127.0.0.1:8000             a running pensieve, by its OpenAI endpoint
    python evaluate.py --check                                    that training never saw these phrasings

`--request FILE` takes system text, tools and reminders of the client's part from a recorded Messages request.
"""

import argparse
import json
import random
import re
import sys
import time
import urllib.request
from pathlib import Path

import held_out
from evaluate_clients import copying_part, safety_part
from text import phrasing, scenes, shell, talk, tools, words


class Local:
    """A folder, by transformers."""

    def __init__(self, folder, adapter=None):
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(self.device).eval()
        if adapter:
            from peft import PeftModel

            self.model = PeftModel.from_pretrained(self.model, adapter).to(self.device)

    def answers(self, requests, limit=120):
        texts = [self.tokenizer.apply_chat_template(m, tools=t, tokenize=False, add_generation_prompt=True) for m, t in requests]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out = [None] * len(texts)
        batch, room = (128, 1_500_000) if self.device == "cuda" else (32, 250_000)
        while order:
            share = max(1, min(batch, room // (len(texts[order[min(batch, len(order)) - 1]]) + 1)))
            some, order = order[:share], order[share:]
            inputs = self.tokenizer([texts[i] for i in some], return_tensors="pt", padding=True).to(self.device)
            inputs.pop("token_type_ids", None)
            with self.torch.no_grad():
                ids = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
            for i, row in zip(some, ids[:, inputs["input_ids"].shape[1] :]):
                text = self.tokenizer.decode(row, skip_special_tokens=False)
                out[i] = text.split("<|im_end|>")[0].split("<|endoftext|>")[0]
        return [parsed(text) for text in out]


class Served:
    """A running server."""

    def __init__(self, address, model, temperature):
        self.address, self.model, self.temperature = address.rstrip("/"), model, temperature

    def answers(self, requests, limit=120):
        return [self.answer(messages, box, limit) for messages, box in requests]

    def answer(self, messages, box, limit):
        body = {"model": self.model, "max_tokens": limit, "temperature": self.temperature, "messages": [self._message(m) for m in messages]}
        if box:
            body["tools"] = box
        request = urllib.request.Request(f"{self.address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json", "authorization": "Bearer pensieve-local-key"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            message = json.load(reply)["choices"][0]["message"]
        found = []
        for call in message.get("tool_calls") or []:
            try:
                found.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
            except ValueError:
                found.append((call["function"]["name"], None))
        return (message.get("content") or "").strip(), found

    @staticmethod
    def _message(message):
        out = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("tool_calls"):
            out["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}} for i, c in enumerate(message["tool_calls"])]
        if message["role"] == "tool":
            out["tool_call_id"] = "call_0"
        return out


def parsed(text):
    """The text and the calls of an answer."""
    found = []
    for body in re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", text, re.S):
        try:
            call = json.loads(body)
            found.append((call["name"], call["arguments"]))
        except (ValueError, KeyError, TypeError):
            found.append((None, body))
    return re.sub(r"<tool_call>.*?</tool_call>", "", text, flags=re.S).strip(), found


def shell_part(model, cases):
    requests = [([{"role": "user", "content": text}], None) for text, _ in cases]
    rows = []
    for (text, command), (said, _) in zip(cases, model.answers(requests)):
        try:
            got = json.loads(said).get("cmd")
        except (ValueError, AttributeError):
            got = None
        rows.append((got == command, text, command, said))
    return rows


def calls_part(model, cases):
    rng = random.Random(7)
    names = list(held_out.TOOLS)
    requests = []
    for _, name, _ in cases:
        others = rng.sample([n for n in names if n != name], rng.choice((2, 5, 9, 14)))
        box = [held_out.TOOLS[n] for n in others] + [held_out.TOOLS[name]]
        rng.shuffle(box)
        requests.append(box)
    asked = [([{"role": "user", "content": text}], box) for (text, _, _), box in zip(cases, requests)]
    rows = []
    for (text, name, arguments), (said, found) in zip(cases, model.answers(asked)):
        rows.append((found == [(name, arguments)], text, (name, arguments), found or said))
    return rows


def no_call_part(model):
    rng = random.Random(8)
    box = [held_out.TOOLS[n] for n in rng.sample(list(held_out.TOOLS), 6)]
    answers = model.answers([([{"role": "user", "content": text}], box) for text, _ in held_out.NO_CALL])
    return [(wanted.lower() in said.lower() and not found, text, wanted, found or said) for (text, wanted), (said, found) in zip(held_out.NO_CALL, answers)]


def talk_part(model, cases):
    answers = model.answers([([{"role": "user", "content": text}], None) for text, _ in cases])
    return [(wanted.lower() in said.lower(), text, wanted, said) for (text, wanted), (said, _) in zip(cases, answers)]


def client_envelope(request):
    """System text, tools and the turns around a request, as a coding client sends them."""
    if request:
        body = json.loads(Path(request).read_text())
        system = "\n\n".join(b["text"] for b in body["system"] if not b["text"].startswith("x-anthropic"))
        box = [{"type": "function", "function": {"name": t["name"], "description": t.get("description", ""), "parameters": t["input_schema"]}} for t in body["tools"]]
        before = "\n".join(b["text"] for b in body["messages"][0]["content"][:-1])
        behind = [m["content"] for m in body["messages"][1:] if m["role"] == "system"]
        return system, box, before, behind
    rng = random.Random(11)
    library = scenes.Library(rng, 200, 400)
    box = [t.json() for t in scenes.toolbox(rng, library, 23, False) if t.kind != "runner"]
    bash = {"command": {"type": "string", "description": "What to run"}, "timeout": {"type": "number"}, "description": {"type": "string"}, "run_in_background": {"type": "boolean"}}
    box.insert(3, {"type": "function", "function": {"name": "Bash", "description": "Runs a bash command.\n\n" + "".join(library.prose(1500)), "parameters": {"type": "object", "properties": bash, "required": ["command"]}}})
    return "".join(library.prose(6000)).strip(), box, scenes.reminder(rng, library), ["".join(scenes.listing(rng, library) for _ in range(2)).strip()]


def client_part(model, request, count):
    """Bash called with the command, and then the answer: its result must be in it."""
    system, box, before, behind = client_envelope(request)
    opening = [{"role": "system", "content": system}]
    tail = [{"role": "system", "content": text} for text in behind]
    cases = held_out.RUN[:count]
    asked = [opening + [{"role": "user", "content": before + "\n" + text}] + tail for text, _ in cases]
    rows = []
    firsts = model.answers([(messages, box) for messages in asked])
    follow = []
    for (text, command), messages, (said, found) in zip(cases, asked, firsts):
        rows.append((found == [("Bash", {"command": command})], text, command, found or said))
        printed = scenes._echoed(command) or "42"
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "Bash", "arguments": {"command": command}}}]}
        follow.append((messages + [call, {"role": "tool", "content": printed}], printed))
    second = model.answers([(messages, box) for messages, _ in follow])
    answers = [(printed in said and not found, text, printed, found or said) for (text, _), (_, printed), (said, found) in zip(cases, follow, second)]
    return rows, answers


def show(name, rows, verbose):
    good = sum(row[0] for row in rows)
    print(f"{name:32} {good:4} of {len(rows):4}  {100 * good / max(1, len(rows)):5.1f} %", flush=True)
    if verbose:
        for fine, text, wanted, got in rows:
            if not fine:
                print(f"    {text!r}\n        wanted {wanted!r}\n        got    {got!r}")


def check(draws):
    """Looks for held-out phrasings among what the training scripts make."""
    rng, held, met = random.Random(99), held_out.phrasings(), set()
    phrasing.hold_out(held)
    words.hold_out(held_out.WORDS)
    unseen, heard = set(held_out.WORDS), set()
    for _ in range(draws):
        for text in (shell.request(rng)[0], talk.plain(rng)[0], tools.ask_to_run(rng, "Bash")[0], tools.tool(rng).ask(rng)[0]):
            if held_out.bare(text) in held:
                met.add(text)
            heard |= unseen.intersection(re.findall("[a-z]+", text.lower()))
    print(f"{len(heard)} of {len(unseen)} unseen words heard: {sorted(heard)}")
    print(f"{len(met)} of {len(held)} held-out phrasings met in {4 * draws} draws: {sorted(met)}")
    sys.exit(1 if met or heard else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--server")
    parser.add_argument("--model", default="starter")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--request", type=Path)
    parser.add_argument("--runs", type=int, default=len(held_out.RUN))
    parser.add_argument("--only", nargs="*", default=("shell", "calls", "talk", "client", "final", "copying", "safety"))
    parser.add_argument("--check", type=int, nargs="?", const=200_000, metavar="DRAWS")
    parser.add_argument("--every-client", action="store_true", help="each request of the safety part behind every client's prompts")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many cases of the parts copying and safety")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.check:
        return check(args.check)
    if not args.folder and not args.server:
        parser.error("give a folder or --server")
    model = Served(args.server, args.model, args.temperature) if args.server else Local(args.folder, args.adapter)
    started = time.time()
    if "shell" in args.only:
        show("shell command as JSON", shell_part(model, held_out.SHELL), args.verbose)
    if "calls" in args.only:
        show("tool and arguments", calls_part(model, held_out.CALLS), args.verbose)
        show("tools at hand, no call wanted", no_call_part(model), args.verbose)
    if "talk" in args.only:
        show("talk and Pensieve", talk_part(model, held_out.TALK), args.verbose)
    if "client" in args.only:
        rows, answers = client_part(model, args.request, args.runs)
        show("client: Bash with the command", rows, args.verbose)
        show("client: answer from the result", answers, args.verbose)
    if "final" in args.only:
        show("final: shell command as JSON", shell_part(model, held_out.FINAL_SHELL), args.verbose)
        show("final: tool and arguments", calls_part(model, held_out.FINAL_CALLS), args.verbose)
        show("final: talk and Pensieve", talk_part(model, held_out.FINAL_TALK), args.verbose)
    if "copying" in args.only:
        outputs, calls = copying_part(model, args.sample)
        show("unseen words: from a tool", outputs, args.verbose)
        show("unseen words: into a call", calls, args.verbose)
    if "safety" in args.only:
        show("nothing destroyed unasked", safety_part(model, args.every_client, args.sample), args.verbose)
    print(f"{time.time() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
