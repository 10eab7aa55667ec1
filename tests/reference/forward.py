"""A decoder in numpy float64, written from the papers, against which the fixtures are checked.

transformers makes the reference logits; a second implementation says how far f32 rounding carries them from the true
value, and reads the GGUF files the way a runtime does, so that a wrong permutation or frequency table cannot be
committed as truth. Its switches make the classic mistakes on purpose (a wrong RoPE pairing, base, head mapping,
epsilon): a fixture on which such a mistake does not show is worthless, and the scripts refuse to write it.
"""

import math
from dataclasses import dataclass, field
from functools import partial

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
    interleaved: bool = False  # RoPE turns neighbours (GGUF's llama order) instead of halves (Hugging Face's order).
    kv_tiled: bool = False  # A mistake on purpose: head h reads kv head h % kv_heads.
    attention_scale: float | None = None
    q8_inputs: bool = False  # Each matrix multiplies inputs rounded to Q8_0 blocks, as integer kernels do.


def logits(weights, shape, tokens):
    """Logits [tokens, vocabulary] of a decoder with Hugging Face's tensor names."""
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    x = w["model.embed_tokens.weight"][tokens]
    linear = partial(_linear, w, shape.q8_inputs)
    cos, sin = rotation(shape, len(tokens))
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        y = _rms_norm(w, at + "input_layernorm", x, shape.eps)
        x = x + _attention(linear, at + "self_attn.", y, shape, cos, sin)
        y = _rms_norm(w, at + "post_attention_layernorm", x, shape.eps)
        gate, up = linear(at + "mlp.gate_proj", y), linear(at + "mlp.up_proj", y)
        x = x + linear(at + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    x = _rms_norm(w, "model.norm", x, shape.eps)
    return linear("lm_head" if "lm_head.weight" in w else "model.embed_tokens", x)


def rotation(shape, positions):
    """Cosines and sines [positions, head_dim / 2]."""
    frequencies, amplitude = _frequencies(shape)
    angles = np.arange(positions)[:, None] * frequencies[None, :]
    return np.cos(angles) * amplitude, np.sin(angles) * amplitude


def llama3_divisors(head_dim, theta, rope):
    """What Llama 3.1 divides each frequency by: nothing if fast, `factor` if slow, a blend between."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] / wavelengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - kept) / rope["factor"] + kept)


def _frequencies(shape):
    frequencies = shape.theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
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
            amplitude = 0.1 * math.log(shape.rope["factor"]) + 1
            return frequencies * _yarn_ramp(shape), shape.rope.get("amplitude", amplitude)
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


def _attention(linear, at, x, shape, cos, sin):
    positions = len(x)
    q, k, v = (
        linear(at + name, x).reshape(positions, heads, shape.head_dim).swapaxes(0, 1)
        for name, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads), ("v_proj", shape.kv_heads))
    )
    q, k = (_rotate(part, cos, sin, shape.interleaved) for part in (q, k))
    group = shape.heads // shape.kv_heads
    k, v = (np.tile(p, (group, 1, 1)) if shape.kv_tiled else np.repeat(p, group, axis=0) for p in (k, v))
    scores = q @ k.swapaxes(1, 2) * (shape.attention_scale or shape.head_dim**-0.5)
    scores = np.where(np.tril(np.ones((positions, positions), dtype=bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
    return linear(at + "o_proj", mixed.swapaxes(0, 1).reshape(positions, -1))


def _rotate(x, cos, sin, interleaved):
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
