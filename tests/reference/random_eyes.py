"""Towers of real sizes with random weights, as `mmproj` files beside the text models of random_model.py.

It is called by random_model.py for families with images, and needs no model of transformers.
"""

import dataclasses

import gguf
import numpy as np

# As they stand in the text model's vocabulary, for which it leaves room.
TOKENS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclasses.dataclass
class Tower:
    depth: int
    width: int
    inner: int
    heads: int
    patch: int
    # Positions on a side of the table, and the blocks with taps.
    side: int
    taps: tuple


# A quarter of Qwen3-VL-2B's 24 blocks and four mergers, so that two cores answer in seconds.
TOWERS = {"qwen3vl": Tower(depth=6, width=1024, inner=4096, heads=16, patch=16, side=48, taps=(2,))}


def write(path, family, text_width):
    """Matrices in F16, as published files have them; norms, biases and positions in F32."""
    tower, rng = TOWERS[family], np.random.default_rng(2)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    sizes = {
        "patch_size": tower.patch, "embedding_length": tower.width, "feed_forward_length": tower.inner, "block_count": tower.depth,
        "attention.head_count": tower.heads, "projection_dim": text_width, "spatial_merge_size": 2,
        "image_size": tower.side * tower.patch,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.is_deepstack_layers", [block in tower.taps for block in range(tower.depth)])
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)

    def values(name, *shape, scale, kind=np.float32):
        writer.add_tensor(name, (rng.standard_normal(shape, np.float32) * scale).astype(kind))

    def linear(name, rows, cols):
        values(f"{name}.weight", rows, cols, scale=cols**-0.5, kind=np.float16)
        values(f"{name}.bias", rows, scale=0.02)

    def norm(name, size):
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(size, np.float32))

    width, merged = tower.width, 4 * tower.width
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        values(name, width, 3, tower.patch, tower.patch, scale=(6 * tower.patch**2) ** -0.5, kind=np.float16)
    values("v.patch_embd.bias", width, scale=0.02)
    values("v.position_embd.weight", tower.side**2, width, scale=0.02)
    for block in range(tower.depth):
        norm(f"v.blk.{block}.ln1", width)
        norm(f"v.blk.{block}.ln2", width)
        linear(f"v.blk.{block}.attn_qkv", 3 * width, width)
        linear(f"v.blk.{block}.attn_out", width, width)
        linear(f"v.blk.{block}.ffn_up", tower.inner, width)
        linear(f"v.blk.{block}.ffn_down", width, tower.inner)
    for block in tower.taps:
        norm(f"v.deepstack.{block}.norm", merged)
        linear(f"v.deepstack.{block}.fc1", merged, merged)
        linear(f"v.deepstack.{block}.fc2", text_width, merged)
    norm("v.post_ln", width)
    linear("mm.0", merged, merged)
    linear("mm.2", text_width, merged)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
