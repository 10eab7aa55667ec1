"""Models of equal size with random weights, one for each kind of recurrence, to compare speed with.

    python tests/reference/random_recurrent.py FOLDER

writes `qwen35.gguf` (gated delta nets), `kimi-linear.gguf`, `rwkv7.gguf`, `mamba.gguf` and `jamba.gguf`, each with about 210 million
parameters of width 1024 (130 MB; Q4_K, but for what has too short rows). None has experts, so that the bytes of a file but for the embedding are
those that a token reads.
"""

import argparse
import dataclasses
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import random_model
from random_blocks import random_blocks
from random_model import SHAPES, VOCABULARY

WIDTH, INNER, CONV = 1024, 3072, 4
# Layers of each, by which sizes are about equal.
LAYERS = {"qwen35": 12, "kimi-linear": 12, "rwkv7": 14, "mamba": 26, "jamba": 11}
KIMI_ATTENDS = (3, 7, 11)
JAMBA_ATTENDS = (4,)
HEADS, HEAD, RANK, ROPE = 8, 128, 512, 64
SCAN = 2 * WIDTH  # Channels of a selective scan.
STATE, STEP = 16, 64


class Writer:
    def __init__(self, path, arch):
        self.gguf, self.rng = gguf.GGUFWriter(path, arch), np.random.default_rng(1)

    def matrix(self, name, rows, cols):
        kind = Type.Q4_K if cols % 256 == 0 else Type.Q8_0
        self.gguf.add_tensor(name, random_blocks(kind, rows, cols, cols**-0.5, self.rng), raw_dtype=kind)

    def stack(self, name, count, rows, cols):
        blocks = random_blocks(Type.Q8_0, count * rows, cols, cols**-0.5, self.rng)
        self.gguf.add_tensor(name, blocks.reshape(count, rows, -1), raw_dtype=Type.Q8_0)

    def values(self, name, size, low=0.5, high=1.5):
        self.gguf.add_tensor(name, self.rng.uniform(low, high, size).astype(np.float32))

    def mlp(self, i):
        self.values(f"blk.{i}.ffn_norm.weight", WIDTH)
        self.matrix(f"blk.{i}.ffn_gate.weight", INNER, WIDTH)
        self.matrix(f"blk.{i}.ffn_up.weight", INNER, WIDTH)
        self.matrix(f"blk.{i}.ffn_down.weight", WIDTH, INNER)


def kimi(writer, i):
    inner = HEADS * HEAD
    writer.values(f"blk.{i}.attn_norm.weight", WIDTH)
    if i in KIMI_ATTENDS:
        writer.matrix(f"blk.{i}.attn_q.weight", HEADS * (HEAD + ROPE), WIDTH)
        writer.matrix(f"blk.{i}.attn_kv_a_mqa.weight", RANK + ROPE, WIDTH)
        writer.values(f"blk.{i}.attn_kv_a_norm.weight", RANK)
        writer.stack(f"blk.{i}.attn_k_b.weight", HEADS, RANK, HEAD)
        writer.stack(f"blk.{i}.attn_v_b.weight", HEADS, HEAD, RANK)
    else:
        for name in "qkv":
            writer.matrix(f"blk.{i}.attn_{name}.weight", inner, WIDTH)
            writer.values(f"blk.{i}.ssm_conv1d_{name}.weight", (1, inner, 1, CONV), -0.5, 0.5)
        for name in "fg":
            writer.matrix(f"blk.{i}.ssm_{name}_a.weight", HEAD, WIDTH)
            writer.matrix(f"blk.{i}.ssm_{name}_b.weight", inner, HEAD)
        writer.matrix(f"blk.{i}.ssm_beta.weight", HEADS, WIDTH)
        writer.values(f"blk.{i}.ssm_a", (1, 1, HEADS, 1), -1.0, -0.1)
        writer.values(f"blk.{i}.ssm_dt.bias", inner, -1.0, 1.0)
        writer.values(f"blk.{i}.ssm_norm.weight", HEAD)
    writer.matrix(f"blk.{i}.attn_output.weight", WIDTH, inner)
    writer.mlp(i)


def rwkv(writer, i):
    for name in ("attn_norm", "attn_norm_2", "time_mix_ln", *(["token_embd_norm"] if i == 0 else [])):
        here = name if name == "token_embd_norm" else f"blk.{i}.{name}"
        writer.values(f"{here}.weight", WIDTH)
        writer.values(f"{here}.bias", WIDTH, -0.1, 0.1)
    writer.values(f"blk.{i}.time_mix_lerp_fused.weight", (6, 1, 1, WIDTH), 0.0, 1.0)
    for name in ("k_k", "k_a", "r_k"):
        writer.values(f"blk.{i}.time_mix_{name}.weight", WIDTH, 0.0, 1.0)
    for name, rank in (("w", 64), ("a", 64), ("v", 32), ("g", 128)):
        writer.matrix(f"blk.{i}.time_mix_{name}1.weight", rank, WIDTH)
        writer.matrix(f"blk.{i}.time_mix_{name}2.weight", WIDTH, rank)
        if name != "g":
            writer.values(f"blk.{i}.time_mix_{name}0.weight", WIDTH, -1.0, 1.0)
    for name in ("receptance", "key", "value", "output"):
        writer.matrix(f"blk.{i}.time_mix_{name}.weight", WIDTH, WIDTH)
    writer.values(f"blk.{i}.channel_mix_lerp_k.weight", WIDTH, 0.0, 1.0)
    writer.matrix(f"blk.{i}.channel_mix_key.weight", 4 * WIDTH, WIDTH)
    writer.matrix(f"blk.{i}.channel_mix_value.weight", WIDTH, 4 * WIDTH)


def mamba(writer, i, is_normed=False):
    writer.values(f"blk.{i}.attn_norm.weight", WIDTH)
    writer.matrix(f"blk.{i}.ssm_in.weight", 2 * SCAN, WIDTH)
    writer.values(f"blk.{i}.ssm_conv1d.weight", (SCAN, CONV), -0.5, 0.5)
    writer.values(f"blk.{i}.ssm_conv1d.bias", SCAN, -0.1, 0.1)
    writer.matrix(f"blk.{i}.ssm_x.weight", STEP + 2 * STATE, SCAN)
    writer.matrix(f"blk.{i}.ssm_dt.weight", SCAN, STEP)
    writer.values(f"blk.{i}.ssm_dt.bias", SCAN, -2.0, 0.0)
    writer.values(f"blk.{i}.ssm_a", (SCAN, STATE), -4.0, -0.1)
    writer.values(f"blk.{i}.ssm_d", SCAN)
    writer.matrix(f"blk.{i}.ssm_out.weight", WIDTH, SCAN)
    for name, size in [("dt", STEP), ("b", STATE), ("c", STATE)] if is_normed else []:
        writer.values(f"blk.{i}.ssm_{name}_norm.weight", size)


def jamba(writer, i):
    if i in JAMBA_ATTENDS:
        writer.values(f"blk.{i}.attn_norm.weight", WIDTH)
        for name, rows in (("q", WIDTH), ("k", WIDTH // 4), ("v", WIDTH // 4), ("output", WIDTH)):
            writer.matrix(f"blk.{i}.attn_{name}.weight", rows, WIDTH)
    else:
        mamba(writer, i, is_normed=True)
    writer.mlp(i)


def keys(arch):
    scan = {"ssm.conv_kernel": CONV, "ssm.state_size": STATE, "ssm.inner_size": SCAN, "ssm.time_step_rank": STEP}
    latents = {
        "attention.kv_lora_rank": RANK,
        "attention.key_length": RANK + ROPE,
        "attention.value_length": RANK,
        "attention.key_length_mla": HEAD + ROPE,
        "attention.value_length_mla": HEAD,
        "rope.dimension_count": ROPE,
    }
    layers = range(LAYERS[arch])
    return {
        "kimi-linear": latents
        | {
            "attention.head_count": HEADS,
            "attention.head_count_kv": [int(i in KIMI_ATTENDS) for i in layers],
            "ssm.conv_kernel": CONV,
            "kda.head_dim": HEAD,
        },
        "rwkv7": {"attention.head_count": 0, "wkv.head_size": 64},
        "mamba": scan | {"attention.head_count": 0},
        "jamba": scan
        | {"attention.head_count": HEADS, "attention.head_count_kv": [2 * int(i in JAMBA_ATTENDS) for i in layers]},
    }[arch]


def write(path, arch, layer):
    writer = Writer(path, arch)
    out = writer.gguf
    out.add_context_length(32_768)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS[arch])
    out.add_feed_forward_length(4 * WIDTH if arch == "rwkv7" else INNER)
    out.add_layer_norm_rms_eps(1e-5)
    if arch == "rwkv7":
        out.add_layer_norm_eps(1e-5)
    for key, value in keys(arch).items():
        add = out.add_array if isinstance(value, list) else out.add_uint32
        add(f"{arch}.{key}", value)
    random_model.tokenizer(out)
    writer.matrix("token_embd.weight", VOCABULARY, WIDTH)
    for i in range(LAYERS[arch]):
        layer(writer, i)
    writer.values("output_norm.weight", WIDTH)
    if arch == "rwkv7":
        writer.values("output_norm.bias", WIDTH, -0.1, 0.1)
    writer.matrix("output.weight", VOCABULARY, WIDTH)
    finish(out)


def qwen(path):
    shape = dataclasses.replace(
        SHAPES["qwen35"], layers=LAYERS["qwen35"], width=WIDTH, inner=INNER, heads=4, attends=(3, 7, 11), state_heads=8, state_groups=8
    )
    writer = gguf.GGUFWriter(path, "qwen35")
    random_model.header(writer, "qwen35", shape)
    random_model.tensors(writer, "qwen35", shape, Type.Q4_K, Type.Q4_K)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    qwen(folder / "qwen35.gguf")
    for arch, layer in {"kimi-linear": kimi, "rwkv7": rwkv, "mamba": mamba, "jamba": jamba}.items():
        write(folder / f"{arch}.gguf", arch, layer)


if __name__ == "__main__":
    main()
