"""Phi's fixtures: the parallel block of Phi-2 with its biases and partial rotation, and Phi-3's stacked projections,
windows and LongRoPE on both sides of its switch.

Run it with no arguments to write tests/fixtures/phi again; it prints what each fixture can catch, and leaves that in
report.txt.
"""

import gguf
import transformers

from fixture import Family, Variant, main
from llama import config, rope

PHI = Family("phi", transformers.PhiConfig, gguf.MODEL_ARCH.PHI2, gguf_permutes_qk=False)
PHI3 = Family("phi", transformers.Phi3Config, gguf.MODEL_ARCH.PHI3, gguf_permutes_qk=False)


ORIGINAL = 72


def phi3(*sizes, **rest):
    return config(*sizes, pad_token_id=None, original_max_position_embeddings=ORIGINAL, **rest)


def longrope(pairs, partial=1.0):
    """Factors as Phi-3's: near one at the start of a head, growing to its end."""
    return rope(
        "longrope",
        original_max_position_embeddings=ORIGINAL,
        partial_rotary_factor=partial,
        short_factor=[round(1 + 0.05 * i, 3) for i in range(pairs)],
        long_factor=[round(1.1 + 0.4 * i, 3) for i in range(pairs)],
    )


def phi2(hidden, heads, vocab, partial):
    return {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocab,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "eos_token_id": 1,
        "rope_parameters": rope("default", partial_rotary_factor=partial),
    }


FAMILIES = [
    (
        PHI,
        [
            # 0.4 of 16 is 6 values, not 6.4.
            Variant("phi2", 31, phi2(32, heads=2, vocab=128, partial=0.4), gguf=("f32", "fused", "q8_0")),
            # Phi-1.5: half of each head, and a config.json in the old style.
            Variant("phi1_5", 132, phi2(32, heads=2, vocab=128, partial=0.5), old_config=True),
        ],
    ),
    (
        PHI3,
        [
            # Phi-3-mini-4k: no grouping, a window, here shorter than the text.
            Variant(
                "window",
                33,
                phi3(32, 64, 4, 4, 128, sliding_window=24) | {"max_position_embeddings": 256},
                gguf=("f32", "f16", "q8_0"),
            ),
            # Phi-3-medium-128k, Phi-3.5: LongRoPE.
            Variant("longrope", 34, phi3(64, 64, 4, 2, 128, rope=longrope(8)), gguf=("f32",), old_config=True),
            # Phi-4-mini: part of each head rotated, tied embeddings.
            Variant(
                "mini",
                35,
                phi3(64, 96, 2, 1, 160, rope=longrope(12, partial=0.75), tie_word_embeddings=True, sliding_window=200),
                gguf=("f32",),
                distinct=2,
            ),
            # Phi-4: neither window nor scaling.
            Variant("phi4", 36, phi3(32, 64, 4, 2, 128, rope=rope("default", 250_000.0)), gguf=("f32",)),
        ],
    ),
]

if __name__ == "__main__":
    main(__doc__, FAMILIES)
