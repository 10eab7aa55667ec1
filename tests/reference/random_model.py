"""Models of real sizes with random weights, to measure speed with: one costs the same to run as a trained one.

    python tests/reference/random_model.py 1b-q4_k_m.gguf
    python tests/reference/random_model.py moe-q4_k_m.gguf qwen3moe
    python tests/reference/random_model.py moe-q8_0.gguf qwen3moe --type q8_0
    python tests/reference/random_model.py hybrid-q4_k_m.gguf qwen35
    python tests/reference/random_model.py latent-q4_k_m.gguf deepseek2
    python tests/reference/random_model.py gemma.gguf gemma3
    python tests/reference/random_model.py eyes/text.gguf qwen3vl

The first is a Llama of 1.1 B parameters (16 layers, width 2048, 8192 inner, 32/8 heads, vocabulary 32,000). The second has the layers of
Qwen3-30B-A3B (width 2048, 32/4 heads of 128, 128 experts of 768, 8 of them used), but 8 of its 48 and a fifth of its vocabulary, so that
the output layer has the share that it has there: 5.0 B parameters, 3 GB. The hybrids have the layers of Qwen3.5-2B (`qwen35`: of 24 layers
18 are gated delta nets, with 16 heads of 128) and of Granite 4 H 1B (`granitehybrid`: of 40 layers 36 are Mamba-2, with 48 heads of 64 and
states of 128). `deepseek2` has six layers of GLM-4.7-Flash (20 heads over latents of 512, 64 experts of 1536, 4 used). `gemma3`, `glm4`, `granite`
and `olmo2` have the first one's sizes, and `mixtral` and `olmoe` those of eight and of 64 small experts, each with its family's norms. `qwen3vl` has a quarter
of Qwen3-VL-2B's 28 layers, and random_eyes.py writes its tower as `mmproj.gguf` into the same folder. Most matrices are Q4_K and, as llama.cpp's Q4_K_M has it, the output and half of the value and down projections Q6_K.
"""

import argparse
import dataclasses
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import random_eyes
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
    # Of a hybrid: which layers attend, and the heads of the others, how many share a key, and the sizes of its keys and values.
    attends: tuple = ()
    state_heads: int = 0
    state_groups: int = 0
    state_key: int = 0
    state_value: int = 0
    # Of latent attention: the ranks of queries and latents, and the sizes of a head's keys, of their rotated part, and of its values.
    q_rank: int = 0
    rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    # As the file calls it, where that is not the family's name here.
    architecture: str = ""

    @property
    def state_inner(self):
        return self.state_heads * self.state_value

    @property
    def channels(self):
        return self.state_inner + 2 * self.state_groups * self.state_key


SHAPES = {
    "llama": Shape(layers=16, width=2048, inner=8192, heads=32, kv_heads=8, head=64),
    "qwen3moe": Shape(layers=8, width=2048, inner=768, heads=32, kv_heads=4, head=128, experts=128, used=8),
    "qwen3vl": Shape(layers=7, width=2048, inner=6144, heads=16, kv_heads=8, head=128),
    "qwen35": Shape(
        layers=24, width=2048, inner=6144, heads=8, kv_heads=2, head=256,
        attends=tuple(range(3, 24, 4)), state_heads=16, state_groups=16, state_key=128, state_value=128,
    ),
    "granitehybrid": Shape(
        layers=40, width=1536, inner=4096, heads=12, kv_heads=4, head=128,
        attends=(5, 15, 25, 35), state_heads=48, state_groups=1, state_key=128, state_value=64,
    ),
    "deepseek2": Shape(
        layers=6, width=2048, inner=1536, heads=20, kv_heads=1, head=256, experts=64, used=4,
        q_rank=768, rank=512, nope=192, rope=64, value=256,
    ),
    "gemma3": Shape(layers=16, width=2048, inner=8192, heads=8, kv_heads=4, head=256),
    "glm4": Shape(layers=16, width=2048, inner=8192, heads=16, kv_heads=2, head=128),
    "granite": Shape(layers=16, width=2048, inner=8192, heads=32, kv_heads=8, head=64),
    "olmo2": Shape(layers=16, width=2048, inner=8192, heads=16, kv_heads=16, head=128),
    "olmoe": Shape(layers=8, width=2048, inner=1024, heads=16, kv_heads=16, head=128, experts=64, used=8),
    "mixtral": Shape(
        layers=8, width=2048, inner=2048, heads=32, kv_heads=8, head=64, experts=8, used=2, architecture="llama"
    ),
}
CONV_KERNEL = 4
# What stands around a layer's two blocks; one norm before each where nothing is said.
NORMS = {
    "gemma3": ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
    "glm4": ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
    "olmo2": ["post_attention_norm", "post_ffw_norm"],
    "qwen35": ["attn_norm", "post_attention_norm"],
}
# Families with norms over each head of queries and keys, and over all of them at once.
HEADS_NORMED = ["qwen3moe", "qwen3vl", "qwen35", "gemma3"]
ALL_HEADS_NORMED = ["olmo2", "olmoe"]


def header(writer, family, shape):
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    if family == "granitehybrid":
        writer.add_head_count_kv([shape.kv_heads if i in shape.attends else 0 for i in range(shape.layers)])
    else:
        writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    if shape.attends:
        hybrid_header(writer, family, shape)
    elif shape.rank:
        latent_header(writer, shape)
    else:
        # GLM-4 rotates half of each head.
        writer.add_rope_dimension_count(shape.head // 2 if family == "glm4" else shape.head)
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)
    if family == "gemma3":
        writer.add_sliding_window(1024)
    if family in random_eyes.TOWERS:
        writer.add_rope_dimension_sections([24, 20, 20, 0])
        writer.add_uint32(f"{family}.n_deepstack_layers", len(random_eyes.TOWERS[family].taps))
    if family == "granite":
        writer.add_attention_scale(shape.head**-0.5)
        writer.add_embedding_scale(12.0)
        writer.add_residual_scale(0.22)
        writer.add_logit_scale(8.0)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.inner)
    tokenizer(writer, random_eyes.TOKENS if family in random_eyes.TOWERS else ())


def tokenizer(writer, specials=()):
    writer.add_vocab_size(VOCABULARY)
    words = VOCABULARY - 259 - len(specials)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *tokens, *(f"▁{i}" for i in range(words)), *specials]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * words, *[3] * len(specials)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if specials:
        writer.add_chat_template(random_eyes.TEMPLATE)


def hybrid_header(writer, family, shape):
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_state_size(shape.state_key)
    writer.add_ssm_group_count(shape.state_groups)
    writer.add_ssm_time_step_rank(shape.state_heads)
    writer.add_ssm_inner_size(shape.state_inner)
    if family == "granitehybrid":
        writer.add_rope_dimension_count(shape.head)
        return
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_uint32(f"{family}.full_attention_interval", 4)
    writer.add_rope_dimension_count(shape.head // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])


def latent_header(writer, shape):
    writer.add_key_length(shape.rank + shape.rope)
    writer.add_value_length(shape.rank)
    writer.add_key_length_mla(shape.nope + shape.rope)
    writer.add_value_length_mla(shape.value)
    writer.add_q_lora_rank(shape.q_rank)
    writer.add_kv_lora_rank(shape.rank)
    writer.add_rope_dimension_count(shape.rope)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.8)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def tensors(writer, family, shape, usual, best):
    rng = np.random.default_rng(1)

    def matrix(name, rows, cols, kind=usual):
        writer.add_tensor(name, random_blocks(kind, rows, cols, cols**-0.5, rng), raw_dtype=kind)

    def stack(name, rows, cols, kind=usual):
        blocks = random_blocks(kind, shape.experts * rows, cols, cols**-0.5, rng)
        writer.add_tensor(name, blocks.reshape(shape.experts, rows, -1), raw_dtype=kind)

    def norm(name, size=shape.width):
        writer.add_tensor(name, np.ones(size, np.float32))

    def values(name, size, low, high):
        writer.add_tensor(name, rng.uniform(low, high, size).astype(np.float32))

    def delta_net(i):
        matrix(f"blk.{i}.attn_qkv.weight", shape.channels, shape.width)
        matrix(f"blk.{i}.attn_gate.weight", shape.state_inner, shape.width)
        matrix(f"blk.{i}.ssm_alpha.weight", shape.state_heads, shape.width)
        matrix(f"blk.{i}.ssm_beta.weight", shape.state_heads, shape.width)
        recurrence(i, shape.state_heads, shape.state_value)

    def mamba(i):
        matrix(f"blk.{i}.ssm_in.weight", shape.state_inner + shape.channels + shape.state_heads, shape.width)
        values(f"blk.{i}.ssm_conv1d.bias", shape.channels, -0.1, 0.1)
        values(f"blk.{i}.ssm_d", (shape.state_heads, 1), 0.5, 1.5)
        recurrence(i, (shape.state_heads, 1), (shape.state_groups, shape.state_inner // shape.state_groups))

    def latent_attention(i):
        matrix(f"blk.{i}.attn_q_a.weight", shape.q_rank, shape.width)
        norm(f"blk.{i}.attn_q_a_norm.weight", shape.q_rank)
        matrix(f"blk.{i}.attn_q_b.weight", shape.heads * (shape.nope + shape.rope), shape.q_rank)
        matrix(f"blk.{i}.attn_kv_a_mqa.weight", shape.rank + shape.rope, shape.width)
        norm(f"blk.{i}.attn_kv_a_norm.weight", shape.rank)
        for name, rows, cols in [("k_b", shape.rank, shape.nope), ("v_b", shape.value, shape.rank)]:
            blocks = random_blocks(Type.Q8_0, shape.heads * rows, cols, cols**-0.5, rng)
            writer.add_tensor(f"blk.{i}.attn_{name}.weight", blocks.reshape(shape.heads, rows, -1), raw_dtype=Type.Q8_0)
        matrix(f"blk.{i}.attn_output.weight", shape.width, shape.heads * shape.value)

    def recurrence(i, heads, normed):
        values(f"blk.{i}.ssm_conv1d.weight", (shape.channels, CONV_KERNEL), -0.5, 0.5)
        values(f"blk.{i}.ssm_dt.bias", shape.state_heads, -1.0, 1.0)
        values(f"blk.{i}.ssm_a", heads, -1.0, -0.1)
        norm(f"blk.{i}.ssm_norm.weight", normed)
        matrix(f"blk.{i}.ssm_out.weight", shape.width, shape.state_inner)

    q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
    matrix("token_embd.weight", VOCABULARY, shape.width)
    for i in range(shape.layers):
        better = best if i < shape.layers // 8 or i >= 7 * shape.layers // 8 or i % 3 == 2 else usual
        is_recurrent = shape.attends and i not in shape.attends
        for name in NORMS.get(family, ["attn_norm", "ffn_norm"]):
            norm(f"blk.{i}.{name}.weight")
        if shape.rank:
            latent_attention(i)
        elif is_recurrent:
            delta_net(i) if family == "qwen35" else mamba(i)
        else:
            matrix(f"blk.{i}.attn_q.weight", 2 * q if family == "qwen35" else q, shape.width)
            matrix(f"blk.{i}.attn_k.weight", kv, shape.width)
            matrix(f"blk.{i}.attn_v.weight", kv, shape.width, better)
            matrix(f"blk.{i}.attn_output.weight", shape.width, q)
        if (family in HEADS_NORMED and not is_recurrent) or family in ALL_HEADS_NORMED:
            norm(f"blk.{i}.attn_q_norm.weight", shape.head if family in HEADS_NORMED else q)
            norm(f"blk.{i}.attn_k_norm.weight", shape.head if family in HEADS_NORMED else kv)
        if not shape.experts or (shape.rank and i == 0):
            if family == "glm4":
                matrix(f"blk.{i}.ffn_up.weight", 2 * shape.inner, shape.width)
            else:
                matrix(f"blk.{i}.ffn_gate.weight", shape.inner, shape.width)
                matrix(f"blk.{i}.ffn_up.weight", shape.inner, shape.width)
            matrix(f"blk.{i}.ffn_down.weight", shape.width, shape.inner, better)
            continue
        router = rng.standard_normal((shape.experts, shape.width), np.float32)
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router * shape.width**-0.5)
        stack(f"blk.{i}.ffn_gate_exps.weight", shape.inner, shape.width)
        stack(f"blk.{i}.ffn_up_exps.weight", shape.inner, shape.width)
        stack(f"blk.{i}.ffn_down_exps.weight", shape.width, shape.inner, better)
        if shape.rank:
            values(f"blk.{i}.exp_probs_b.bias", shape.experts, -0.1, 0.1)
            matrix(f"blk.{i}.ffn_gate_shexp.weight", shape.inner, shape.width)
            matrix(f"blk.{i}.ffn_up_shexp.weight", shape.inner, shape.width)
            matrix(f"blk.{i}.ffn_down_shexp.weight", shape.width, shape.inner)
    norm("output_norm.weight")
    matrix("output.weight", VOCABULARY, shape.width, best)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("family", nargs="?", choices=list(SHAPES), default="llama")
    parser.add_argument("--type", choices=["q4_k_m", "q8_0"], default="q4_k_m")
    arguments = parser.parse_args()
    usual, best = (Type.Q8_0, Type.Q8_0) if arguments.type == "q8_0" else (Type.Q4_K, Type.Q6_K)
    shape = SHAPES[arguments.family]
    writer = gguf.GGUFWriter(arguments.path, shape.architecture or arguments.family)
    header(writer, arguments.family, shape)
    tensors(writer, arguments.family, shape, usual, best)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if arguments.family in random_eyes.TOWERS:
        random_eyes.write(Path(arguments.path).with_name("mmproj.gguf"), arguments.family, shape.width)


if __name__ == "__main__":
    main()
