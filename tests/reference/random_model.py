"""Models of real sizes with random weights, to measure speed with: one costs the same to run as a trained one.

    python tests/reference/random_model.py 1b-q4_k_m.gguf
    python tests/reference/random_model.py moe-q4_k_m.gguf qwen3moe
    python tests/reference/random_model.py moe-q8_0.gguf qwen3moe --type q8_0

The first is a Llama of 1.1 B parameters (16 layers, width 2048, 8192 inner, 32/8 heads, vocabulary 32,000). The second has the layers of
Qwen3-30B-A3B (width 2048, 32/4 heads of 128, 128 experts of 768, 8 of them used), but 8 of its 48 and a fifth of its vocabulary, so that
the output layer has the share that it has there: 5.0 B parameters, 3 GB. Most matrices are Q4_K and, as llama.cpp's Q4_K_M has it, the output
and half of the value and down projections Q6_K.
"""

import argparse
import dataclasses

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from random_blocks import random_blocks

VOCABULARY = 32_000


@dataclasses.dataclass
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    experts: int = 0
    used: int = 0


SHAPES = {
    "llama": Shape(layers=16, width=2048, inner=8192, heads=32, kv_heads=8, head=64),
    "qwen3moe": Shape(layers=8, width=2048, inner=768, heads=32, kv_heads=4, head=128, experts=128, used=8),
}


def header(writer, family, shape):
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    if family == "llama":
        writer.add_rope_dimension_count(shape.head)
    else:
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_vocab_size(VOCABULARY)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *tokens, *(f"▁{i}" for i in range(VOCABULARY - 259))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def tensors(writer, family, shape, usual, best):
    rng = np.random.default_rng(1)

    def matrix(name, rows, cols, kind=usual):
        writer.add_tensor(name, random_blocks(kind, rows, cols, cols**-0.5, rng), raw_dtype=kind)

    def stack(name, rows, cols, kind=usual):
        blocks = random_blocks(kind, shape.experts * rows, cols, cols**-0.5, rng)
        writer.add_tensor(name, blocks.reshape(shape.experts, rows, -1), raw_dtype=kind)

    def norm(name, size=shape.width):
        writer.add_tensor(name, np.ones(size, np.float32))

    q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
    matrix("token_embd.weight", VOCABULARY, shape.width)
    for i in range(shape.layers):
        better = best if i < shape.layers // 8 or i >= 7 * shape.layers // 8 or i % 3 == 2 else usual
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", q, shape.width)
        matrix(f"blk.{i}.attn_k.weight", kv, shape.width)
        matrix(f"blk.{i}.attn_v.weight", kv, shape.width, better)
        matrix(f"blk.{i}.attn_output.weight", shape.width, q)
        norm(f"blk.{i}.ffn_norm.weight")
        if family == "llama":
            matrix(f"blk.{i}.ffn_gate.weight", shape.inner, shape.width)
            matrix(f"blk.{i}.ffn_up.weight", shape.inner, shape.width)
            matrix(f"blk.{i}.ffn_down.weight", shape.width, shape.inner, better)
            continue
        norm(f"blk.{i}.attn_q_norm.weight", shape.head)
        norm(f"blk.{i}.attn_k_norm.weight", shape.head)
        router = rng.standard_normal((shape.experts, shape.width), np.float32)
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router * shape.width**-0.5)
        stack(f"blk.{i}.ffn_gate_exps.weight", shape.inner, shape.width)
        stack(f"blk.{i}.ffn_up_exps.weight", shape.inner, shape.width)
        stack(f"blk.{i}.ffn_down_exps.weight", shape.width, shape.inner, better)
    norm("output_norm.weight")
    matrix("output.weight", VOCABULARY, shape.width, best)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("family", nargs="?", choices=list(SHAPES), default="llama")
    parser.add_argument("--type", choices=["q4_k_m", "q8_0"], default="q4_k_m")
    arguments = parser.parse_args()
    usual, best = (Type.Q8_0, Type.Q8_0) if arguments.type == "q8_0" else (Type.Q4_K, Type.Q6_K)
    writer = gguf.GGUFWriter(arguments.path, arguments.family)
    shape = SHAPES[arguments.family]
    header(writer, arguments.family, shape)
    tensors(writer, arguments.family, shape, usual, best)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
