"""A decoder in numpy float64, written from the papers, against which the fixtures are checked.

transformers makes the reference logits; a second implementation says how far f32 rounding carries them from the true
value, and reads the GGUF files the way a runtime does, so that a wrong permutation or frequency table cannot be
committed as truth. Its switches make the classic mistakes on purpose (a wrong RoPE pairing, base, head mapping,
epsilon): a fixture on which such a mistake does not show is worthless, and the scripts refuse to write it.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Everything about a decoder that is not a weight."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    rope: dict = field(default_factory=dict)
    divisors: np.ndarray | None = None  # GGUF's rope_freqs.weight: what each frequency is divided by.
    rotary_dim: int = 0  # How many values of a head turn; 0 for all.
    windows: tuple = ()  # Per layer, how many tokens back a token sees, itself included; empty or None for all.
    parallel: bool = False  # Phi: attention and MLP side by side on one LayerNorm, gelu without a gate.
    growth: tuple = ()  # (beta, original): queries times 1 + beta ln(1 + floor(position / original)).
    interleaved: bool = False  # RoPE turns neighbours (GGUF's llama order) instead of halves (Hugging Face's order).
    kv_tiled: bool = False  # A mistake on purpose: head h reads kv head h % kv_heads.
    attention_scale: float | None = None
    q8_inputs: bool = False  # Each matrix multiplies inputs rounded to Q8_0 blocks, as integer kernels do.


def logits(weights, shape, tokens):
    """Logits [tokens, vocabulary] of a decoder with Hugging Face's tensor names."""
    w = {name: np.asarray(value, dtype=np.float64) for name, value in apart(weights, shape).items()}
    x = w["model.embed_tokens.weight"][tokens]
    linear = partial(_linear, w, shape.q8_inputs)
    cos, sin = rotation(shape, len(tokens))
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        window = shape.windows[layer] if shape.windows else None
        if shape.parallel:
            y = _layer_norm(w, at + "input_layernorm", x, shape.eps)
            mlp = linear(at + "mlp.fc2", _gelu(linear(at + "mlp.fc1", y)))
            x = x + _attention(linear, at + "self_attn.", y, shape, window, cos, sin) + mlp
            continue
        y = _rms_norm(w, at + "input_layernorm", x, shape.eps)
        x = x + _attention(linear, at + "self_attn.", y, shape, window, cos, sin)
        y = _rms_norm(w, at + "post_attention_layernorm", x, shape.eps)
        gate, up = linear(at + "mlp.gate_proj", y), linear(at + "mlp.up_proj", y)
        x = x + linear(at + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    if shape.parallel:
        x = _layer_norm(w, "model.final_layernorm", x, shape.eps)
    else:
        x = _rms_norm(w, "model.norm", x, shape.eps)
    return linear("lm_head" if "lm_head.weight" in w else "model.embed_tokens", x)


def apart(weights, shape):
    """Weights whose stacked projections (qkv_proj, gate_up_proj) are taken apart."""
    kv = shape.kv_heads * shape.head_dim
    found = {}
    for name, value in weights.items():
        path, _, kind = name.rpartition(".")
        if path.endswith(".qkv_proj"):
            parts, sizes = ("q_proj", "k_proj", "v_proj"), (shape.heads * shape.head_dim, kv, kv)
        elif path.endswith(".gate_up_proj"):
            parts, sizes = ("gate_proj", "up_proj"), (len(value) // 2,) * 2
        else:
            found[name] = value
            continue
        for part, rows in zip(parts, np.split(value, list(accumulate(sizes))[:-1])):
            found[f"{path.rpartition('.')[0]}.{part}.{kind}"] = rows
    return found


def rotation(shape, positions):
    """Cosines and sines [positions, rotated values / 2]."""
    frequencies, amplitude = _frequencies(shape, positions)
    angles = np.arange(positions)[:, None] * frequencies[None, :]
    return np.cos(angles) * amplitude, np.sin(angles) * amplitude


def llama3_divisors(head_dim, theta, rope):
    """What Llama 3.1 divides each frequency by: nothing if fast, `factor` if slow, a blend between."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] / wavelengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - kept) / rope["factor"] + kept)


def _frequencies(shape, positions):
    turning = shape.rotary_dim or shape.head_dim
    frequencies = shape.theta ** (-np.arange(0, turning, 2) / turning)
    if shape.divisors is not None:
        return frequencies / shape.divisors, 1.0
    match shape.rope.get("rope_type", "default"):
        case "default":
            return frequencies, 1.0
        case "linear":
            return frequencies / shape.rope["factor"], 1.0
        case "llama3":
            return frequencies / llama3_divisors(shape.head_dim, shape.theta, shape.rope), 1.0
        case "yarn":
            # Ministral 3 divides the amplitude by the one over all dimensions, which is the same.
            amplitude = 1.0 if shape.rope.get("mscale_all_dim") else 0.1 * math.log(shape.rope["factor"]) + 1
            return frequencies * _yarn_ramp(shape), shape.rope.get("amplitude", amplitude)
        case "longrope":
            original = shape.rope["original_max_position_embeddings"]
            amplitude = math.sqrt(1 + math.log(shape.rope["factor"]) / math.log(original))
            divisors = shape.rope["long_factor" if positions > original else "short_factor"]
            return frequencies / np.asarray(divisors, dtype=np.float64), shape.rope.get("amplitude", amplitude)
    raise ValueError(f"rope type {shape.rope['rope_type']} has no float64 check yet; write it before the fixture")


def _yarn_ramp(shape):
    """YaRN keeps what turns more than 32 times in the original context, and interpolates what turns less than once."""

    def dimension(turns):
        context = shape.rope["original_max_position_embeddings"]
        return shape.head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(shape.theta))

    low = max(math.floor(dimension(32)), 0)
    high = min(math.ceil(dimension(1)), shape.head_dim - 1)
    interpolated = np.clip((np.arange(shape.head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return interpolated / shape.rope["factor"] + (1 - interpolated)


def _attention(linear, at, x, shape, window, cos, sin):
    positions = len(x)
    q, k, v = (
        linear(at + name, x).reshape(positions, heads, shape.head_dim).swapaxes(0, 1)
        for name, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads), ("v_proj", shape.kv_heads))
    )
    q, k = (_rotate(part, cos, sin, shape.interleaved) for part in (q, k))
    if shape.growth:
        beta, original = shape.growth
        q = q * (1 + beta * np.log(1 + np.arange(positions) // original))[:, None]
    group = shape.heads // shape.kv_heads
    k, v = (np.tile(p, (group, 1, 1)) if shape.kv_tiled else np.repeat(p, group, axis=0) for p in (k, v))
    scores = q @ k.swapaxes(1, 2) * (shape.attention_scale or shape.head_dim**-0.5)
    back = np.arange(positions)[:, None] - np.arange(positions)[None, :]
    scores = np.where((back >= 0) & (back < (window or positions)), scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
    return linear(at + ("dense" if shape.parallel else "o_proj"), mixed.swapaxes(0, 1).reshape(positions, -1))


def _rotate(x, cos, sin, interleaved):
    turning = 2 * cos.shape[-1]
    if turning < x.shape[-1]:
        return np.concatenate((_rotate(x[..., :turning], cos, sin, interleaved), x[..., turning:]), axis=-1)
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack((a * cos - b * sin, a * sin + b * cos), axis=-1).reshape(x.shape)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, a * sin + b * cos), axis=-1)


def _linear(w, q8_inputs, name, x):
    if q8_inputs:
        blocks = x.reshape(-1, 32)
        step = np.maximum(np.abs(blocks).max(axis=1, keepdims=True) / 127, 1e-300)
        x = (np.round(blocks / step) * step).reshape(x.shape)
    y = x @ w[name + ".weight"].T
    bias = w.get(name + ".bias")
    return y if bias is None else y + bias


def _rms_norm(w, name, x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w[name + ".weight"]


def _layer_norm(w, name, x, eps):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w[name + ".weight"] + w.get(name + ".bias", 0)


def _gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
