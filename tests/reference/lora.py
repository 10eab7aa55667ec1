"""Adapters for the tiny checkpoints, as PEFT saves them and as GGUF files, with the logits that transformers and PEFT get.

Each variant turns one knob that a reader of adapters can get wrong: rank, rank-stabilised scaling, patterns, fused
projections, embeddings and heads, tied or not. Run it with no arguments to write tests/fixtures/lora again; it needs the
checkpoints that the other scripts make. An adapter that would move the logits by less than 0.05 is refused, and so is one
under which single precision is itself too far from double to be compared with.
"""

import argparse
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_file import Layout

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
POSITIONS = 40
NOISE_MAX = 3e-5  # Tests allow 1e-4.


@dataclass(frozen=True)
class Variant:
    """One adapter of one checkpoint."""

    name: str
    base: str
    seed: int
    config: dict
    arch: int = None  # Also write it as a GGUF file of this architecture.
    permuted: bool = False
    settings: dict = field(default_factory=dict)
    strength: float = 1.0


LLAMA = {"arch": gguf.MODEL_ARCH.LLAMA, "permuted": True}

VARIANTS = [
    Variant("rank1", "llama/gqa", 1, {"r": 1, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}, **LLAMA),
    Variant("rank16", "llama/gqa", 2, {"r": 16, "lora_alpha": 24, "target_modules": ALL}, **LLAMA),
    Variant("rank64", "llama/gqa", 3, {"r": 64, "lora_alpha": 32, "target_modules": "all-linear"}),
    Variant(
        "rslora", "llama/gqa", 4, {"r": 8, "lora_alpha": 8, "use_rslora": True, "target_modules": r".*\.(q|down)_proj"}
    ),
    Variant(
        "patterns",
        "llama/gqa",
        5,
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ALL,
            "rank_pattern": {"k_proj": 2, r"layers.1.mlp.up_proj": 6},
            "alpha_pattern": {r".*layers\.0.*q_proj": 2},
        },
    ),
    Variant("head", "llama/gqa", 6, {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head"]}, **LLAMA),
    Variant("tied", "llama/tied", 7, {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj"]}, **LLAMA),
    Variant("mistral", "mistral/head_dim", 8, {"r": 8, "lora_alpha": 16, "target_modules": ALL}, **LLAMA),
    Variant("phi2", "phi/phi2", 9, {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "dense", "fc1", "fc2"]}),
    Variant(
        "phi3",
        "phi/mini",
        10,
        {"r": 8, "lora_alpha": 16, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
        arch=gguf.MODEL_ARCH.PHI3,
    ),
    Variant(
        "mistral64",
        "mistral/head_dim",
        11,
        {
            "r": 64,
            "lora_alpha": 16,
            "use_rslora": True,
            "target_modules": "all-linear",
            "rank_pattern": {"q_proj": 1, r"layers\.1\.mlp\.down_proj": 3},
            "alpha_pattern": {r"layers\.0\.self_attn\.v_proj": 4},
        },
        strength=0.4,
    ),
    Variant(
        "phi2_64",
        "phi/phi2",
        12,
        {"r": 64, "lora_alpha": 16, "use_rslora": True, "target_modules": "all-linear", "rank_pattern": {"k_proj": 1}},
        strength=0.4,
    ),
    Variant(
        "phi3_64",
        "phi/mini",
        13,
        {
            "r": 64,
            "lora_alpha": 16,
            "use_rslora": True,
            "target_modules": r".*\.(qkv_proj|gate_up_proj|down_proj)",
            "rank_pattern": {r"layers\.1\..*qkv_proj": 2},
            "alpha_pattern": {"down_proj": 8},
        },
        strength=0.4,
    ),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIXTURES / "lora", help="folder to write the variants to")
    parser.add_argument("--only", help="make this variant alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for variant in VARIANTS:
        if args.only in (None, variant.name):
            make(variant, args.out / variant.name)


def make(variant, folder):
    """Draws an adapter, saves it, reads it back and asks PEFT for its logits."""
    base = FIXTURES / variant.base
    torch.manual_seed(variant.seed)
    model = load(base)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **variant.config))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name:
                value.copy_(torch.randn(value.shape) * (0.15 if value.shape[0] > 4 else 0.3) * variant.strength)
    shutil.rmtree(folder, ignore_errors=True)
    adapted.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    tidy(folder / "adapter_config.json", variant.base)

    tokens = reference_tokens(base)
    with torch.no_grad():
        plain = load(base)(torch.tensor([tokens])).logits[0].numpy()
        logits = PeftModel.from_pretrained(load(base), folder)(torch.tensor([tokens])).logits[0].numpy()
    moved = float(np.abs(plain - logits).max())
    assert moved > 0.05, f"{variant.name} moves the logits by {moved} only"
    noise = float(np.abs(exact(base, folder, tokens) - logits).max())
    assert noise < NOISE_MAX, f"{variant.name}: in single precision the reference is off by {noise}"
    save_file(
        {"tokens": np.array(tokens, dtype=np.uint32), "logits": logits.astype(np.float32)},
        folder / "reference.safetensors",
    )
    if variant.arch is not None:
        write_gguf(variant, base, folder)
    print(f"{variant.name}: moves the logits of {variant.base} by up to {moved:.2f}")


def load(base):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()


def exact(base, folder, tokens):
    """The logits in double precision."""
    adapted = PeftModel.from_pretrained(load(base).double(), folder).double()
    with torch.no_grad():
        return adapted(torch.tensor([tokens])).logits[0].numpy()


def reference_tokens(base):
    return load_file(base / "reference.safetensors")["tokens"][:POSITIONS].tolist()


def tidy(path, base):
    """What depends on the machine or the run does not belong into a fixture."""
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = base
    for key in ("target_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_gguf(variant, base, folder):
    """The adapter as llama.cpp's converter lays it out: GGUF's names, its order of rows, the embedding's halves turned."""
    layout = Layout(variant.arch, AutoConfig.from_pretrained(base), variant.permuted)
    writer = gguf.GGUFWriter(folder / "adapter.gguf", gguf.MODEL_ARCH_NAMES[variant.arch])
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(variant.config["lora_alpha"]))
    for name, value in sorted(load_file(folder / "adapter_model.safetensors").items()):
        module, _, half = name.removeprefix("base_model.model.").partition(".lora_")
        target = f"{module}.weight"
        half = half.removesuffix(".weight")
        if half.startswith("embedding_"):
            # [rank, rows] and [width, rank] become [rows, rank] and [width, rank].
            value = value.T if half == "embedding_A" else value
        elif half == "B":
            value = layout.to_gguf(target, value)
        writer.add_tensor(f"{layout.name(target)}.lora_{half[-1].lower()}", np.ascontiguousarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
