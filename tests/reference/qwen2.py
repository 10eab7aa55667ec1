"""Qwen2's fixtures: biases on queries, keys and values, tied and untied embeddings, and windows in the upper layers.

Run it with no arguments to write tests/fixtures/qwen2 again; it prints what each fixture can catch, and leaves that in
report.txt.
"""

import gguf
import transformers

from fixture import Family, Variant, main
from llama import config, rope

QWEN2 = Family("qwen2", transformers.Qwen2Config, gguf.MODEL_ARCH.QWEN2, gguf_permutes_qk=False)
ROPE = rope("default", 1_000_000.0)

FAMILIES = [
    (
        QWEN2,
        [
            Variant(
                "biases", 41, config(32, 96, heads=4, kv_heads=2, vocab=128, eps=1e-6, rope=ROPE), gguf=("f32", "q8_0")
            ),
            Variant(
                "tied",
                42,
                config(32, 96, heads=4, kv_heads=1, vocab=264, eps=1e-6, rope=ROPE, tie_word_embeddings=True),
                gguf=("f32",),
                old_config=True,
                distinct=2,
            ),
            Variant(
                "windows",
                43,
                config(32, 64, heads=4, kv_heads=2, vocab=128, eps=1e-6, rope=ROPE, sliding_window=16)
                | {"use_sliding_window": True, "max_window_layers": 1},
            ),
        ],
    ),
]

if __name__ == "__main__":
    main(__doc__, FAMILIES)
