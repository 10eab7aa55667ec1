"""The zoo's fixtures: one small checkpoint per family that is wrapped rather than written.

They are made like the others, but for the float64 decoder, which knows none of these families: transformers itself,
computing in double precision, says how far f32 is from the truth, and a mistake is a configuration that says something
else. Run it with no arguments to write tests/fixtures/zoo again; it prints what each fixture can catch, and leaves that
in report.txt.
"""

import copy
import functools
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

import gguf_file
from byte_tokenizer import BOS, Vocabulary
from fixture import (
    F32_ERROR_MAX,
    SENSITIVITY_MIN,
    check_folder,
    distance,
    empty_model,
    logits_of,
    model_of,
    run,
    tokens_with_clear_continuation,
    write_folder,
)

# Text that nobody reads through a window must fit into one: all have 72 tokens.
WINDOW = 96
FINAL_NORMS = ("model.norm.weight", "backbone.norm_f.weight", "model.embedding_norm.weight")
EPS = 1e-3  # Large, so that it matters beside norms that are applied to norms.


@dataclass(frozen=True)
class Variant:
    """One fixture. `mistakes` says what else its configuration could be taken to say."""

    name: str
    seed: int
    config: transformers.PreTrainedConfig
    mistakes: dict
    arch: int | None = None  # GGUF's architecture, where there is such a file.
    distinct: int = 6
    # What `fixture.write_folder` asks for.
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    old_config: bool = False
    omitted: tuple = field(default=())


def rope(theta, **parameters):
    return {"rope_type": "default", "rope_theta": theta, **parameters}


def sizes(layers=2, heads=4, kv_heads=2, **rest):
    return {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 256,
        "bos_token_id": BOS,
        "eos_token_id": 1,
        "pad_token_id": None,
        "attn_implementation": "eager",
        **rest,
    }


THETA = {"rope_parameters": rope(10_000.0)}
NORM = {"rms_norm_eps": 1e-5}

VARIANTS = [
    Variant(
        "mamba",
        64,
        transformers.MambaConfig(
            vocab_size=128, hidden_size=32, num_hidden_layers=2, bos_token_id=BOS, eos_token_id=1, pad_token_id=None
        ),
        {"activation": {"hidden_act": "gelu"}},
        distinct=2,
    ),
    Variant(
        "qwen3",
        66,
        transformers.Qwen3Config(**sizes(head_dim=16, rms_norm_eps=EPS), rope_parameters=rope(1_000.0)),
        {"rope theta": THETA, "norm epsilon": NORM},
        arch=gguf.MODEL_ARCH.QWEN3,
    ),
    # A quarter of each head rotated, and a config.json of transformers 4.
    Variant(
        "stablelm",
        67,
        transformers.StableLmConfig(
            **sizes(heads=2, kv_heads=1, layer_norm_eps=EPS),
            use_qkv_bias=True,
            rope_parameters=rope(100.0, partial_rotary_factor=0.25),
        ),
        {
            "rope theta": {"rope_parameters": rope(10_000.0, partial_rotary_factor=0.25)},
            "half of the head rotated": {"rope_parameters": rope(100.0, partial_rotary_factor=0.5)},
            "norm epsilon": {"layer_norm_eps": 1e-5},
        },
        old_config=True,
    ),
    Variant(
        "starcoder2",
        68,
        transformers.Starcoder2Config(
            **sizes(norm_epsilon=EPS, sliding_window=WINDOW), rope_parameters=rope(1_000.0)
        ),
        {"rope theta": THETA, "norm epsilon": {"norm_epsilon": 1e-5}, "activation": {"hidden_act": "silu"}},
        distinct=2,
    ),
]


def main():
    run(__doc__, "zoo", {variant.name: functools.partial(make, variant) for variant in VARIANTS})


def make(variant, root):
    """Writes the fixture's folder and returns its report, one line per finding."""

    def gguf_files(made):
        layout = gguf_file.Layout(variant.arch, variant.config, permuted=False)
        for format in ("f32", "q8_0"):
            path = made.folder / f"{format}.gguf"
            gguf_file.write(path, layout, made.weights, format, made.vocabulary, explicit_head_dim=True)
            stored, _ = gguf_file.read(path, layout, made.weights.keys())
            if format == "f32":
                assert all(np.array_equal(stored[name], value) for name, value in made.weights.items())
            else:
                yield format, stored

    return make_folder(variant, root, gguf_files if variant.arch is not None else None)


@dataclass
class Made:
    folder: Path
    weights: dict
    vocabulary: Vocabulary


def make_folder(variant, root, gguf_files):
    """Writes a folder with a random model, and its files: `gguf_files` writes GGUF files, and gives the format of each that
    rounds, and the weights as it stores them. Returns the report."""
    folder, config = root / variant.name, variant.config
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(variant.seed)
    weights = _draw(config, rng)
    tokens, greedy, margin = tokens_with_clear_continuation(config, weights, variant.distinct, rng)
    expected = logits_of(config, weights, tokens)
    reference = {"tokens": tokens.astype(np.uint32), "greedy": greedy.astype(np.uint32), "logits": expected}
    report = [f"logits std {expected.std():.2f}, greedy margin {margin:.3f}, {len(set(greedy.tolist()))} distinct"]
    vocabulary = Vocabulary.of_size(config.vocab_size)
    write_folder(folder, config, weights, variant, vocabulary)
    check_folder(folder, tokens, expected)
    for format, stored in gguf_files(Made(folder, weights, vocabulary)) if gguf_files else ():
        logits = reference[f"logits_{format}"] = logits_of(config, stored, tokens)
        more = distance(_logits_of_rounded(config, stored, tokens), logits)
        report.append(
            f"{format}.gguf: its rounding moves the logits by {distance(logits, expected):.1e}, "
            f"rounding the inputs of dense layers to q8_0 too by {more:.1e} more"
        )
    report += _check_power(variant, weights, tokens, expected)
    save_file(reference, folder / "reference.safetensors")
    for path in folder.iterdir():
        path.chmod(0o644)
    return report


def _draw(config, rng):
    with torch.device("meta"):
        model = empty_model(config)
        kept = model.state_dict().keys()
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        shapes |= {name: tuple(p.shape) for name, p in model.named_buffers() if name in kept}
    return {name: _values(name, shape, config, rng).astype(np.float32) for name, shape in sorted(shapes.items())}


def _values(name, shape, config, rng):
    into_stream = any(part in name for part in ("o_proj", "down_proj", "c_proj", "out_proj"))
    normal = rng.standard_normal(shape)
    if "embed" in name and not name.endswith("norm.weight"):
        return 0.1 * normal
    if name.endswith(("norm.weight", "norm_f.weight", "layernorm.weight")):
        # A head that is tied to small embeddings wants a large norm before it.
        is_last = config.tie_word_embeddings and name in FINAL_NORMS
        scale = 1.5 / (0.1 * math.sqrt(config.hidden_size)) if is_last else 1.0
        # Gemma's norms multiply by one more than their weights, and Qwen's do from Qwen3-Next on, but for its gated ones.
        more = config.model_type.startswith(("gemma2", "gemma3")) or (
            config.model_type.startswith(("qwen3_next", "qwen3_5")) and not name.endswith("linear_attn.norm.weight")
        )
        return rng.uniform(0.5, 1.5, shape) * scale - more
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.1, 4.0, shape))
    if config.model_type == "rwkv7" and name.split(".")[-1].startswith(("k_", "r_", "x_")):
        return rng.uniform(0.2, 1.2, shape)
    if name.endswith("mixer.D"):
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith("dt_bias"):
        bias = rng.uniform(-4.0, -1.0, shape)  # So that much is remembered for long.
        if config.model_type == "nemotron_h":
            bias[1::2] -= 6.0  # So that the shortest step of time is felt.
        return bias
    if name.endswith("dt_proj.bias"):
        return rng.uniform(-3.0, 0.0, shape)
    if "conv1d" in name:
        return 0.5 * normal
    if name.endswith("sinks"):
        return normal
    if name.endswith("bias"):
        return (0.1 if into_stream else 0.5) * normal
    gain = 0.5 if into_stream else 1.5 if "lm_head" in name else 1.2
    # Experts stand one behind the other; gpt-oss has theirs transposed.
    inputs = shape[-1] if len(shape) < 3 or config.model_type != "gpt_oss" else shape[1]
    return gain * normal / math.sqrt(inputs)


@torch.no_grad()
def _logits_of_rounded(config, weights, tokens):
    """The logits where each matrix multiplies inputs rounded to Q8_0 blocks, as integer kernels do."""

    def rounded(_, inputs):
        blocks = inputs[0].reshape(-1, 32)
        step = (blocks.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
        return ((blocks / step).round() * step).reshape(inputs[0].shape)

    model = model_of(config, weights)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)
    return model(torch.tensor(tokens)[None], use_cache=False).logits[0].numpy()


def _check_power(variant, weights, tokens, expected):
    """How far f32 is from the truth, and how far each mistake would be."""
    with torch.no_grad():
        exact = model_of(variant.config, weights).double()(torch.tensor(tokens)[None], use_cache=False).logits[0]
    error = distance(exact.numpy(), expected)
    assert error <= F32_ERROR_MAX, f"f32 is {error:.1e} from double precision"
    report = [f"f32 is within {error:.1e} of double precision"]
    found = {}
    for mistake, changes in variant.mistakes.items():
        mistaken = copy.deepcopy(variant.config)
        for key, value in changes.items():
            assert getattr(mistaken, key) != value
            setattr(mistaken, key, value)
        found[mistake] = distance(logits_of(mistaken, weights, tokens), expected)
    for kind in ("bias", "q_norm.weight", "k_norm.weight"):
        for part in sorted({name.split(".")[-2] for name in weights if name.endswith("." + kind)}):
            plain = {name: np.full_like(value, kind != "bias") for name, value in weights.items()}
            taken = {name: plain[name] if name.endswith(f"{part}.{kind.split('.')[-1]}") else weights[name] for name in weights}
            found[f"no {kind.split('.')[-1]} of {part}"] = distance(logits_of(variant.config, taken, tokens), expected)
    scales = {name: np.ones_like(value) for name, value in weights.items() if value.size == 1}
    if scales:
        found["no scale of layers"] = distance(logits_of(variant.config, weights | scales, tokens), expected)
    each = {}
    for name, value in weights.items():
        if value.size == 1:
            continue
        # Of half of the rows: before a norm, a tenth more of everything is nothing.
        more = value.copy()
        more[::2] *= 1.1
        each[name] = distance(logits_of(variant.config, weights | {name: more}, tokens), expected)
    weakest = min(each, key=each.get)
    found[f"a tenth more of half of the least felt tensor ({weakest})"] = each[weakest]
    for mistake, change in found.items():
        assert change > SENSITIVITY_MIN, f"{mistake} would move the logits by only {change:.1e}"
        report.append(f"{mistake}: {change:.2g}")
    return report


if __name__ == "__main__":
    main()
