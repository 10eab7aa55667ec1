"""A Llama of a real size with random weights, to measure speed with: it costs the same to run as a trained one.

    python tests/reference/random_model.py 1b-q4_k_m.gguf

writes 1.1 B parameters (16 layers, width 2048, 8192 inner, 32/8 heads, vocabulary 32,000), most matrices in Q4_K and,
as llama.cpp's Q4_K_M has it, the output and half of the value and down projections in Q6_K.
"""

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from random_blocks import random_blocks

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 16, 2048, 8192, 32, 8, 32_000


def main(path):
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(131_072)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *tokens, *(f"▁{i}" for i in range(VOCABULARY - 259))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def matrix(name, rows, cols, kind=Type.Q4_K):
        writer.add_tensor(name, random_blocks(kind, rows, cols, cols**-0.5, rng), raw_dtype=kind)

    def norm(name):
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    kv = WIDTH // HEADS * KV_HEADS
    matrix("token_embd.weight", VOCABULARY, WIDTH)
    for i in range(LAYERS):
        better = Type.Q6_K if i < LAYERS // 8 or i >= 7 * LAYERS // 8 or i % 3 == 2 else Type.Q4_K
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", WIDTH, WIDTH)
        matrix(f"blk.{i}.attn_k.weight", kv, WIDTH)
        matrix(f"blk.{i}.attn_v.weight", kv, WIDTH, better)
        matrix(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", INNER, WIDTH)
        matrix(f"blk.{i}.ffn_up.weight", INNER, WIDTH)
        matrix(f"blk.{i}.ffn_down.weight", WIDTH, INNER, better)
    norm("output_norm.weight")
    matrix("output.weight", VOCABULARY, WIDTH, Type.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
