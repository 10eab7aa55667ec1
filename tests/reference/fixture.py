"""Makes one fixture: a tiny random checkpoint, the same as GGUF, and the numbers that transformers gets from it.

A reference is only as good as its power to catch a mistake. Weights are drawn so that attention is far from uniform,
logits spread over several units and epsilon matters, and every fixture is refused here if a known mistake, or a tenth
more of any one tensor, would move its logits by less than 0.01. f32 results are compared with a float64 decoder of our
own, and so is what each GGUF file says when it is read back. Model families share all of this; a family's script is
its table of variants.
"""

import argparse
import functools
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import forward
import gguf_file
from byte_tokenizer import BOS, EOS, EOT, Vocabulary
from random_blocks import random_blocks

POSITIONS = 72
LONG_POSITIONS = 88  # A second text for LongRoPE, beyond an original context of 72.
PROMPT = 8
CONTINUATION = 16
F32_ERROR_MAX = 2e-5  # Room for another processor: where the fixtures were made, all stay below 1e-5.
SENSITIVITY_MIN = 1e-2
GREEDY_MARGIN_MIN = 2e-2
_STREAM_STD = 0.03  # Small, so that the epsilon of a norm matters.


@dataclass(frozen=True)
class Family:
    """What the variants of one architecture have in common."""

    name: str
    config_class: type
    gguf_arch: int
    gguf_permutes_qk: bool


@dataclass(frozen=True)
class Variant:
    """One fixture. `config` goes to the family's config class as it is."""

    name: str
    seed: int
    config: dict
    gguf: tuple = ()
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    old_config: bool = False  # Write config.json as transformers 4 did: rope_theta, rope_scaling, torch_dtype.
    omitted: tuple = ()  # Keys that config.json leaves to their defaults.
    explicit_head_dim: bool = False  # GGUF says attention.key_length.
    distinct: int = 6  # Tokens that the greedy continuation must have; tied embeddings like to repeat themselves.
    blocks: dict = field(default_factory=dict)  # Tensor suffix to block format: GGUF only, out of random blocks.


def main(doc, families):
    """The command line of a family's script: pairs of a `Family` and its variants, all into one folder."""
    variants = {v.name: functools.partial(make, family, v) for family, variants in families for v in variants}
    run(doc, families[0][0].name, variants)


def run(doc, folder, variants):
    """The command line of a script that makes fixtures: a function for each name, which writes the fixture's folder below a
    root and returns its report, one line per finding. The reports say what fixtures can catch, and stand beside them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parent.parent / "fixtures" / folder
    parser.add_argument("--out", type=Path, default=default, help="folder to write the variants to")
    parser.add_argument("--only", help="make these variants alone, with commas between")
    args = parser.parse_args()
    chosen = list(variants) if args.only is None else args.only.split(",")
    unknown = [name for name in chosen if name not in variants]
    if unknown:
        raise SystemExit(f"no variant is called {', '.join(unknown)} (there are: {', '.join(variants)})")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    disable_progress_bar()
    lines = []
    for name in chosen:
        found = [name, *("    " + line for line in variants[name](args.out))]
        print("\n".join(found), flush=True)
        lines += found
    if args.only is None:
        (args.out / "report.txt").write_text("\n".join(lines) + "\n")


def make(family, variant, root):
    """Writes the fixture's folder and returns its report, one line per finding."""
    folder = root / variant.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(variant.seed)
    config = family.config_class(bos_token_id=BOS, attn_implementation="eager", **variant.config)
    layout = gguf_file.Layout(family.gguf_arch, config, family.gguf_permutes_qk)
    weights, encoded = _draw(config, layout, variant, rng)
    tokens, greedy, margin = tokens_with_clear_continuation(config, weights, variant.distinct, rng)
    expected = logits_of(config, weights, tokens)
    reference = {"tokens": tokens.astype(np.uint32), "greedy": greedy.astype(np.uint32), "logits": expected}

    if config.rope_parameters["rope_type"] == "longrope":
        beyond = rng.integers(EOT + 1, config.vocab_size, LONG_POSITIONS - POSITIONS)
        reference["tokens_long"] = np.concatenate((tokens, beyond)).astype(np.uint32)
        reference["logits_long"] = logits_of(config, weights, reference["tokens_long"].astype(np.int64))

    vocabulary = Vocabulary.of_size(config.vocab_size)
    if not variant.blocks:
        write_folder(folder, config, weights, variant, vocabulary)
        check_folder(folder, tokens, expected)
    report = [f"logits std {expected.std():.2f}, greedy margin {margin:.3f}, {len(set(greedy.tolist()))} distinct"]
    for format in variant.gguf:
        path = folder / f"{format}.gguf"
        gguf_file.write(path, layout, weights, format, vocabulary, variant.explicit_head_dim, encoded)
        stored, error, q8_change = _check_gguf(path, layout, config, weights, tokens)
        line = f"{format}.gguf: read back in float64 within {error:.1e}"
        if format in ("f32", "mixed", "fused"):
            assert all(np.array_equal(stored[name], weights[name]) for name in weights)
        else:
            reference[f"logits_{format}"] = logits_of(config, stored, tokens)
            line += f", its rounding moves the logits by {distance(reference[f'logits_{format}'], expected):.1e}"
        if "tokens_long" in reference and format != "f32":
            long = logits_of(config, stored, reference["tokens_long"].astype(np.int64))
            reference[f"logits_long_{format}"] = long
        if format in ("q8_0", "mixed"):
            line += f", rounding activations to q8_0 too by {q8_change:.1e} more"
        report.append(line)
    report += _check_power(_shape(config), weights, tokens, expected)
    if "tokens_long" in reference:
        report += _check_long(_shape(config), weights, reference)
    save_file(reference, folder / "reference.safetensors")
    for path in folder.iterdir():
        path.chmod(0o644)
    return report


def _draw(config, layout, variant, rng):
    """Random weights by Hugging Face name, and those of them that are blocks."""
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in empty_model(config).named_parameters()}
    weights, encoded = {}, {}
    for name, shape in sorted(shapes.items()):
        std = _std(name, shape, config)
        kind = next((Type[format] for suffix, format in variant.blocks.items() if name.endswith(suffix)), None)
        if kind is not None:
            data = random_blocks(kind, *shape, std, rng)
            encoded[name] = (data, kind)
            weights[name] = layout.to_hf(name, dequantize(data, kind))
        elif name.endswith("norm.weight"):
            weights[name] = (rng.uniform(0.5, 1.5, shape) * std).astype(np.float32)
        else:
            weights[name] = (rng.standard_normal(shape) * std).astype(np.float32)
        if variant.dtype != torch.float32:
            weights[name] = torch.from_numpy(weights[name]).to(variant.dtype).float().numpy()
    return weights, encoded


def _std(name, shape, config):
    into_stream = any(part in name for part in ("o_proj", "down_proj", ".dense.", ".fc2."))
    if "embed_tokens" in name:
        return _STREAM_STD
    if name.endswith("norm.bias"):
        return 0.4
    if "norm" in name:
        tied_head = name == "model.norm.weight" and config.tie_word_embeddings
        return 1.5 / (_STREAM_STD * config.hidden_size**0.5) if tied_head else 1.0
    if name.endswith(".bias"):
        return _STREAM_STD / 2 if into_stream else 0.7
    gain = 3 * _STREAM_STD if into_stream else 1.5 if "lm_head" in name else 0.9
    return gain / shape[1] ** 0.5


def empty_model(config):
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def model_of(config, weights):
    model = empty_model(config)
    state = {name: torch.from_numpy(value) for name, value in weights.items()}
    if config.tie_word_embeddings:
        table = next(name for name in state if name.endswith(("embed_tokens.weight", "embeddings.weight")))
        state["lm_head.weight"] = state[table]
    model.load_state_dict(state, strict=True)
    return model.eval()


@torch.no_grad()
def logits_of(config, weights, tokens):
    return model_of(config, weights)(torch.tensor(tokens)[None], use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def tokens_with_clear_continuation(config, weights, distinct, rng):
    """Random tokens whose first eight continue greedily without near ties, without an end and with some variety."""
    model = model_of(config, weights)
    for _ in range(200):
        tokens = np.concatenate(([BOS], rng.integers(EOT + 1, config.vocab_size, POSITIONS - 1)))
        sequence, margin = tokens[:PROMPT].tolist(), np.inf
        for _ in range(CONTINUATION):
            best = model(torch.tensor([sequence]), use_cache=False).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            sequence.append(int(best.indices[0]))
        greedy = sequence[PROMPT:]
        if margin >= GREEDY_MARGIN_MIN and len(set(greedy)) >= distinct and not {BOS, EOS, EOT} & set(greedy):
            return tokens, np.array(greedy), margin
    raise ValueError("no prompt continues clearly; take another seed")


def write_folder(folder, config, weights, variant, vocabulary):
    model = model_of(config, weights).to(variant.dtype)
    model.config.dtype = variant.dtype
    model.save_pretrained(folder, max_shard_size=variant.max_shard_size)
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    if variant.old_config:
        _make_old(settings)
    for key in variant.omitted:
        del settings[key]
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    vocabulary.write(folder)


def _make_old(settings):
    rope = settings.pop("rope_parameters")
    settings["torch_dtype"] = settings.pop("dtype")
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            settings[key] = rope.pop(key)
    if rope["rope_type"] == "longrope":
        del rope["original_max_position_embeddings"]  # Phi-3 has it beside.
    settings["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if rope["rope_type"] in ("linear", "longrope"):
        rope["type"] = rope.pop("rope_type")
    del settings["transformers_version"]


@torch.no_grad()
def check_folder(folder, tokens, expected):
    """The files alone, config.json included, must give the reference."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    again = model(torch.tensor(tokens)[None], use_cache=False).logits[0].numpy()
    assert np.array_equal(again, expected), f"the folder gives other logits, by {distance(again, expected):.1e}"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert tokenizer.decode(tokenizer("hi there")["input_ids"], skip_special_tokens=True) == "hi there"


def _check_gguf(path, layout, config, weights, tokens):
    """The stored weights in Hugging Face order; how far transformers is from a float64 decoder that follows the file's
    own row order and metadata; and how far activations in q8_0, which fast kernels use, move that decoder."""
    names = gguf_file.fused(weights) if path.stem == "fused" else weights
    in_file_order, shape = gguf_file.read(path, layout, names.keys())
    stored = {name: layout.to_hf(name, value) for name, value in in_file_order.items()}
    exact = forward.logits(in_file_order, shape, tokens)
    error = distance(exact, logits_of(config, stored, tokens))
    assert error <= F32_ERROR_MAX, f"{path.name} read back differs by {error:.1e}"
    return stored, error, distance(forward.logits(in_file_order, replace(shape, q8_inputs=True), tokens), exact)


def _shape(config):
    rope = dict(config.rope_parameters)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if rope["rope_type"] == "longrope":
        rope["factor"] = config.max_position_embeddings / rope["original_max_position_embeddings"]
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    growth = (rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings"))
    return forward.Shape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        eps=getattr(config, "rms_norm_eps", None) or config.layer_norm_eps,
        theta=rope["rope_theta"],
        rope=rope,
        rotary_dim=int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        windows=tuple(window if kind == "sliding_attention" else None for kind in types),
        parallel=config.model_type == "phi",
        growth=growth if growth[0] else (),
    )


def _check_power(shape, weights, tokens, expected):
    """How far f32 is from the truth, and how far each mistake would be."""
    error = distance(forward.logits(weights, shape, tokens), expected)
    assert error <= F32_ERROR_MAX, f"f32 is {error:.1e} from float64"
    report = [f"f32 is within {error:.1e} of float64"]
    found = {
        mistake: distance(forward.logits(wrong_weights, wrong, tokens), expected)
        for mistake, wrong, wrong_weights in _mistakes(shape, weights)
    }
    each = {
        name: distance(forward.logits(weights | {name: value * 1.1}, shape, tokens), expected)
        for name, value in weights.items()
    }
    weakest = min(each, key=each.get)
    found[f"a tenth more of the least felt tensor ({weakest})"] = each[weakest]
    for mistake, change in found.items():
        assert change > SENSITIVITY_MIN, f"{mistake} would move the logits by only {change:.1e}"
        report.append(f"{mistake}: {change:.2g}")
    return report


def _check_long(shape, weights, reference):
    """The same beyond LongRoPE's original context, where the short factors must show."""
    tokens, expected = reference["tokens_long"].astype(np.int64), reference["logits_long"]
    error = distance(forward.logits(weights, shape, tokens), expected)
    assert error <= F32_ERROR_MAX, f"f32 is {error:.1e} from float64 on the long text"
    mistaken = replace(shape, rope=shape.rope | {"long_factor": shape.rope["short_factor"]})
    change = distance(forward.logits(weights, mistaken, tokens), expected)
    assert change > SENSITIVITY_MIN, f"short factors on the long text would move the logits by only {change:.1e}"
    return [f"f32 is within {error:.1e} of float64 on the long text", f"short factors on the long text: {change:.2g}"]


def _mistakes(shape, weights):
    rope = shape.rope
    yield "rope turns neighbours instead of halves", replace(shape, interleaved=True), weights
    other = 10_000.0 if shape.theta != 10_000.0 else 500_000.0
    yield f"rope theta {other:g}", replace(shape, theta=other), weights
    other = 1e-5 if shape.eps != 1e-5 else 1e-6
    yield f"norm epsilon {other:g}", replace(shape, eps=other), weights
    if 1 < shape.kv_heads < shape.heads:
        yield "kv heads tiled instead of repeated", replace(shape, kv_tiled=True), weights
    width = weights["model.embed_tokens.weight"].shape[1]
    if shape.head_dim * shape.heads != width:
        yield "attention scale of width/heads", replace(shape, attention_scale=(width / shape.heads) ** -0.5), weights
    if rope["rope_type"] != "default":
        yield "no rope scaling", replace(shape, rope={}), weights
    if rope["rope_type"] == "llama3":
        for name, bound in (("low", "low_freq_factor"), ("high", "high_freq_factor")):
            edge = rope["high_freq_factor" if name == "low" else "low_freq_factor"]
            no_band = rope | {bound: edge + (-1e-9 if name == "low" else 1e-9)}
            yield f"no middle band, {name} bound moved", replace(shape, rope=no_band), weights
    if rope["rope_type"] == "yarn":
        other = ("with an", {"amplitude": 1.3}) if rope.get("mscale_all_dim") else ("without its", {"amplitude": 1.0})
        yield f"yarn {other[0]} amplitude", replace(shape, rope=rope | other[1]), weights
        yield "linear instead of yarn", replace(shape, rope=rope | {"rope_type": "linear"}), weights
    if rope["rope_type"] == "longrope":
        yield "longrope without its amplitude", replace(shape, rope=rope | {"amplitude": 1.0}), weights
        yield "long factors on a short text", replace(shape, rope=rope | {"short_factor": rope["long_factor"]}), weights
    if shape.rotary_dim != shape.head_dim and rope["rope_type"] == "default":
        yield "the whole head rotated", replace(shape, rotary_dim=0), weights
    if any(window and window < POSITIONS for window in shape.windows):
        yield "no window", replace(shape, windows=()), weights
        for name, more in (("wider", 1), ("narrower", -1)):
            windows = tuple(window and window + more for window in shape.windows)
            yield f"a window one token {name}", replace(shape, windows=windows), weights
        if len(set(shape.windows)) > 1:
            yield "layers' windows exchanged", replace(shape, windows=shape.windows[::-1]), weights
    if shape.growth:
        yield "queries that do not grow", replace(shape, growth=()), weights
    for part in sorted({name.split(".")[-2] for name in weights if name.endswith(".bias")}):
        kept = {name: value for name, value in weights.items() if not f".{name}".endswith(f".{part}.bias")}
        yield f"no bias of {part}", shape, kept


def distance(a, b):
    return float(np.abs(a - b).max())
