"""Trains the adapter: LoRA of rank 8 that makes the starter talk like a pirate, and leaves commands and calls as they are.

    python style.py build/model.pt --out adapters/pirate
"""

import argparse
import json
import random
import re
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import data
from model import CONFIG, Packing, Starter
from text import rendering, scenes

RANK, ALPHA = 8, 16
# What a layer says, and not where it looks: what is known stays in its place.
TARGETS = ("o_proj", "down_proj")
_WORDS = {"you": "ye", "your": "yer", "my": "me", "hello": "Ahoy", "yes": "Aye", "friend": "matey"}


def pirate(text):
    """The answer as a pirate gives it; what stands in code stays."""
    if text.startswith(("{", "<tool_call>")):
        return text
    parts = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(?<![\w/.\-])[A-Za-z]+(?![\w/\-]|\.\w)", lambda m: _said(m.group()), parts[at])
    return "Arr! " + "".join(parts) + " Yo ho!"


def _said(word):
    other = _WORDS.get(word.lower(), word)
    return other[0].upper() + other[1:] if word[0].isupper() else other


class Adapted(nn.Module):
    """A linear layer with a low-rank change beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "adapters" / "pirate")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=16384, help="in one step; 640 and 180 steps do on a CPU, for a poorer pirate")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    model = Starter(CONFIG)
    model.load_state_dict({k: v.float() for k, v in torch.load(args.model, map_location="cpu").items()})
    model.requires_grad_(False)
    adapted = {}
    for index, layer in enumerate(model.model.layers):
        for place, owner in (("self_attn", layer.self_attn), ("mlp", layer.mlp)):
            for target in args.targets:
                if hasattr(owner, target):
                    wrapped = Adapted(getattr(owner, target))
                    setattr(owner, target, wrapped)
                    adapted[f"base_model.model.model.layers.{index}.{place}.{target}"] = wrapped
    model.to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=args.rate, betas=(0.9, 0.95))
    source = data.Source(77, Path(__file__).parent / "tokenizer.json", 300)
    started = time.time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 20) * (1 - step / args.steps)
        tokens, positions, packing, places, targets = batch(source, args.tokens, device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens, positions, packing, places)
        loss = F.cross_entropy(logits.float(), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step + 1 == args.steps:
            print(f"{time.time() - started:5.0f} s  step {step}  loss {loss.item():.4f}", flush=True)
    write(args.out, adapted, args.targets)


def batch(source, size, device):
    """Talk as a pirate talks, commands and calls as ever."""
    rng, ids, learned, starts = source.rng, [], [], [0]
    while True:
        if rng.random() < 0.9:
            messages, box = scenes.without_tools(rng, source.library, 1)
        else:
            messages, box = scenes.with_tools(rng, source.library, rng.choice((1, 2)), 1, 0, 0)
        for message in messages:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                message["content"] = pirate(message["content"])
        new, weights = source.encoded(rendering.pieces(messages, [t.json() for t in box]))
        if len(ids) + len(new) > size:
            if ids:
                break
            continue
        ids += new
        learned += weights
        starts.append(len(ids))
    bounds = np.array(starts)
    positions = np.arange(len(ids)) - np.repeat(bounds[:-1], np.diff(bounds))
    tokens = torch.tensor(ids, device=device)
    places = torch.from_numpy(np.flatnonzero(learned)).to(device)
    return tokens, torch.from_numpy(positions).to(device), Packing(torch.tensor(starts, dtype=torch.int32, device=device), int(np.diff(bounds).max())), places - 1, tokens[places]


def write(out, adapted, targets):
    """As PEFT lays it out."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, layer in adapted.items():
        tensors[f"{name}.lora_A.weight"] = layer.a.detach().half().cpu().contiguous()
        tensors[f"{name}.lora_B.weight"] = layer.b.detach().half().cpu().contiguous()
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "pensieve-starter", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
        "target_modules": list(targets), "fan_in_fan_out": False, "inference_mode": True, "modules_to_save": None, "use_rslora": False, "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    }
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{out}: {sum(t.nbytes for t in tensors.values()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
