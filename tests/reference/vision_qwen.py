"""Fixtures of Qwen2.5-VL, Qwen3-VL and Qwen3.5 with images, made as vision.py makes those of the other families.

Run it with no arguments to write their folders in tests/fixtures/vision again.
"""

import transformers

import vision
from vision import Variant

SPECIALS = (
    "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>",
)
NAMED = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
# The smallest and the largest images are outside of these limits.
PIXELS = {"shortest_edge": 32 * 32, "longest_edge": 72 * 72}
SIZES = ((61, 47), (20, 25), (33, 190))


def sections(*counts, **rest):
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(counts)} | rest


def ids_of(ids):
    return {
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


def tower(**rest):
    return {"hidden_size": 24, "depth": 3, "num_heads": 3, "intermediate_size": 40, "patch_size": 8, "out_hidden_size": 32} | rest


def qwen2_5(ids):
    text = vision.sizes(vocab_size=len(ids), bos_token_id=0, eos_token_id=1, rope_parameters=sections(1, 1, 2))
    text.pop("head_dim")
    return transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=tower(window_size=32, fullatt_block_indexes=[1]), **ids_of(ids)
    )


def qwen3(ids):
    text = vision.sizes(
        vocab_size=len(ids), num_hidden_layers=3, head_dim=16, bos_token_id=0, eos_token_id=1, rope_parameters=sections(4, 2, 2)
    )
    eyes = tower(num_position_embeddings=25, deepstack_visual_indexes=[0, 2], hidden_act="gelu_pytorch_tanh")
    return transformers.Qwen3VLConfig(text_config=text, vision_config=eyes, **ids_of(ids))


def qwen3_5(ids):
    text = vision.sizes(
        vocab_size=len(ids), num_hidden_layers=2, head_dim=32, bos_token_id=0, eos_token_id=1,
        rope_parameters=sections(4, 2, 2, partial_rotary_factor=0.5),
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    )
    eyes = tower(num_position_embeddings=36, hidden_act="gelu_pytorch_tanh")
    return transformers.Qwen3_5Config(text_config=text, vision_config=eyes, **ids_of(ids))


def processor(kind, **settings):
    def build(tokenizer):
        images = transformers.Qwen2VLImageProcessor(size=dict(PIXELS), patch_size=8, **settings)
        videos = transformers.Qwen3VLVideoProcessor(patch_size=8) if kind is transformers.Qwen3VLProcessor else (
            transformers.Qwen2VLVideoProcessor(patch_size=8)
        )
        return kind(image_processor=images, tokenizer=tokenizer, video_processor=videos)

    return build


HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def variant(name, seed, model, config, processor, **rest):
    return Variant(
        name, seed, model, config, processor, SPECIALS, NAMED, SIZES, vision.prompts(IMAGE), IMAGE, "<|image_pad|>", **rest
    )


vision.VARIANTS = [
    variant(
        "qwen2_5_vl", 41, transformers.Qwen2_5_VLForConditionalGeneration, qwen2_5, processor(transformers.Qwen2_5_VLProcessor)
    ),
    variant(
        "qwen3_vl", 42, transformers.Qwen3VLForConditionalGeneration, qwen3, processor(transformers.Qwen3VLProcessor, **HALF),
        old_files=False,
    ),
    variant(
        "qwen3_5", 43, transformers.Qwen3_5ForConditionalGeneration, qwen3_5, processor(transformers.Qwen3VLProcessor, **HALF),
    ),
]

if __name__ == "__main__":
    vision.main()
