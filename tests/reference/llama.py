"""Llama's fixtures: every way in which checkpoints called Llama differ, each as small as it can be.

Each variant turns one knob that a loader can get wrong: grouping of heads, tied embeddings, widths that do not follow
from each other, biases, each RoPE scaling, shards, half precision, and both styles of config.json. Run it with no
arguments to write tests/fixtures/llama again; it prints what each fixture can catch, and leaves that in report.txt.
"""

import gguf
import torch
import transformers

from fixture import Family, Variant, main

LLAMA = Family("llama", transformers.LlamaConfig, gguf.MODEL_ARCH.LLAMA, gguf_permutes_qk=True)
ALL_FORMATS = ("f32", "f16", "q8_0")


def config(hidden, inter, heads, kv_heads, vocab, eps=1e-5, eos=1, rope=None, **rest):
    return {
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "rms_norm_eps": eps,
        "max_position_embeddings": 256,
        "eos_token_id": eos,
        "rope_parameters": rope or {"rope_type": "default", "rope_theta": 10_000.0},
        **rest,
    }


def rope(kind, theta=10_000.0, **parameters):
    return {"rope_type": kind, "rope_theta": theta, **parameters}


LLAMA3_ROPE = rope(
    "llama3", 500_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
YARN_ROPE = rope("yarn", factor=4.0, original_max_position_embeddings=64)

VARIANTS = [
    # Llama 1: a config.json that says neither theta nor kv heads nor head_dim.
    Variant(
        "mha",
        1,
        config(32, 96, heads=4, kv_heads=4, vocab=160, eps=1e-6),
        gguf=ALL_FORMATS,
        old_config=True,
        omitted=("rope_theta", "num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "pretraining_tp"),
    ),
    Variant(
        "gqa",
        2,
        config(64, 96, heads=8, kv_heads=2, vocab=264, eos=[1, 2], rope=rope("default", 500_000.0)),
        gguf=ALL_FORMATS,
    ),
    Variant("tied", 3, config(32, 96, heads=4, kv_heads=1, vocab=264, tie_word_embeddings=True), gguf=ALL_FORMATS),
    Variant(
        "llama3",
        4,
        config(32, 64, heads=2, kv_heads=1, vocab=128, eos=[1, 2], rope=LLAMA3_ROPE),
        gguf=ALL_FORMATS,
        old_config=True,
    ),
    Variant("odd_vocab", 5, config(32, 64, heads=4, kv_heads=2, vocab=251), gguf=ALL_FORMATS),
    Variant(
        "head_dim",
        6,
        config(32, 64, heads=4, kv_heads=2, vocab=128, head_dim=16),
        gguf=ALL_FORMATS,
        explicit_head_dim=True,
    ),
    Variant(
        "biases",
        7,
        config(32, 64, heads=4, kv_heads=2, vocab=128, attention_bias=True, mlp_bias=True),
        gguf=("f32",),
    ),
    Variant(
        "linear",
        8,
        config(32, 64, heads=2, kv_heads=1, vocab=128, rope=rope("linear", factor=4.0)),
        gguf=("f32",),
        old_config=True,
    ),
    Variant("yarn", 9, config(32, 64, heads=2, kv_heads=1, vocab=128, rope=YARN_ROPE), gguf=("f32",)),
    Variant("sharded", 10, config(32, 64, heads=4, kv_heads=2, vocab=128), max_shard_size="40KB"),
    Variant("bf16", 11, config(32, 64, heads=4, kv_heads=2, vocab=128), dtype=torch.bfloat16),
    Variant("f16", 12, config(32, 64, heads=4, kv_heads=2, vocab=128), dtype=torch.float16),
    # One matrix per block format, wide enough for super-blocks, two of them in each row of down_proj.
    Variant(
        "kquant",
        13,
        config(256, 512, heads=4, kv_heads=2, vocab=128) | {"num_hidden_layers": 1},
        gguf=("mixed",),
        blocks={
            "embed_tokens.weight": "Q4_K",
            "q_proj.weight": "Q5_K",
            "k_proj.weight": "Q4_1",
            "v_proj.weight": "Q6_K",
            "o_proj.weight": "Q5_0",
            "gate_proj.weight": "Q4_0",
            "up_proj.weight": "Q5_1",
            "down_proj.weight": "Q3_K",
            "lm_head.weight": "Q2_K",
        },
    ),
    # The same for the formats with tables.
    Variant(
        "iquant",
        14,
        config(256, 512, heads=4, kv_heads=2, vocab=128) | {"num_hidden_layers": 1},
        gguf=("mixed",),
        blocks={
            "embed_tokens.weight": "IQ4_XS",
            "q_proj.weight": "IQ3_S",
            "k_proj.weight": "MXFP4",
            "v_proj.weight": "IQ4_NL",
            "o_proj.weight": "IQ3_XXS",
            "gate_proj.weight": "IQ2_S",
            "up_proj.weight": "IQ2_XS",
            "down_proj.weight": "IQ2_XXS",
            "lm_head.weight": "IQ4_XS",
        },
    ),
    Variant(
        "ternary",
        15,
        config(256, 512, heads=4, kv_heads=2, vocab=128) | {"num_hidden_layers": 1},
        gguf=("mixed",),
        blocks={
            "embed_tokens.weight": "TQ2_0",
            "q_proj.weight": "IQ1_S",
            "k_proj.weight": "IQ1_M",
            "v_proj.weight": "TQ1_0",
            "o_proj.weight": "TQ2_0",
            "gate_proj.weight": "IQ1_M",
            "up_proj.weight": "IQ1_S",
            "down_proj.weight": "TQ1_0",
            "lm_head.weight": "TQ2_0",
        },
    ),
]


if __name__ == "__main__":
    main(__doc__, [(LLAMA, VARIANTS)])
