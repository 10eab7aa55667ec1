"""Mistral's fixtures: windows, heads whose size does not follow from the width, and Ministral 3's growing queries.

GGUF files of all but the last are called `llama`, as llama.cpp calls them. Run it with no arguments to write
tests/fixtures/mistral again; it prints what each fixture can catch, and leaves that in report.txt.
"""

import gguf
import transformers

from fixture import Family, Variant, main
from llama import config, rope

MISTRAL = Family("mistral", transformers.MistralConfig, gguf.MODEL_ARCH.LLAMA, gguf_permutes_qk=True)
MINISTRAL = Family("mistral", transformers.MinistralConfig, gguf.MODEL_ARCH.LLAMA, gguf_permutes_qk=True)
MINISTRAL3 = Family("mistral", transformers.Ministral3Config, gguf.MODEL_ARCH.MISTRAL3, gguf_permutes_qk=True)
YARN = rope(
    "yarn",
    1_000_000.0,
    factor=8.0,
    original_max_position_embeddings=32,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.5,
)

FAMILIES = [
    (
        MISTRAL,
        [
            # 7B v0.1: a window, here shorter than the text.
            Variant(
                "window",
                21,
                config(32, 96, heads=4, kv_heads=2, vocab=128, sliding_window=24),
                gguf=("f32", "q8_0"),
                old_config=True,
            ),
            # 7B v0.2 and v0.3: none.
            Variant(
                "full",
                22,
                config(32, 96, heads=4, kv_heads=2, vocab=128, rope=rope("default", 1_000_000.0), sliding_window=None),
                gguf=("f32",),
            ),
            # NeMo and Small: heads larger than width / heads.
            Variant(
                "head_dim",
                23,
                config(32, 64, heads=4, kv_heads=2, vocab=128, head_dim=16, sliding_window=None),
                gguf=("f32",),
                explicit_head_dim=True,
            ),
        ],
    ),
    (
        MINISTRAL,
        [
            Variant(
                "mixed_windows",
                24,
                config(32, 64, heads=4, kv_heads=2, vocab=128, head_dim=8, sliding_window=16)
                | {"layer_types": ["full_attention", "sliding_attention"]},
            ),
        ],
    ),
    (
        MINISTRAL3,
        [
            Variant(
                "growing",
                25,
                config(32, 64, heads=4, kv_heads=2, vocab=128, rope=YARN, head_dim=16),
                gguf=("f32",),
                explicit_head_dim=True,
            ),
        ],
    ),
]

if __name__ == "__main__":
    main(__doc__, FAMILIES)
