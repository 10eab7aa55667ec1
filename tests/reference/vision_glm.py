"""Fixtures of GLM-4.1V, GLM-4.5V and GLM-OCR with images, made as vision.py makes those of the other families.

Run it with no arguments to write their folders in tests/fixtures/vision again.
"""

import transformers

import vision
from vision import Variant

SPECIALS = (
    "<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
)
NAMED = {"image_token": "<|image|>", "video_token": "<|video|>"}
IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
# The smallest and the largest images are outside of these limits, which count both frames of a patch.
PIXELS = {"shortest_edge": 2 * 32 * 32, "longest_edge": 2 * 72 * 72}
SIZES = ((61, 47), (20, 13), (33, 190))


def build(config, eyes, **text):
    def of(ids):
        sizes = vision.sizes(
            vocab_size=len(ids), num_attention_heads=2, num_key_value_heads=1, bos_token_id=0, eos_token_id=1,
            rope_parameters={
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
            },
        )
        sizes.pop("head_dim")
        tower = {
            "hidden_size": 24, "depth": 3, "num_heads": 3, "intermediate_size": 40, "out_hidden_size": 32, "patch_size": 8,
            "image_size": 40,
        }
        return config(
            text_config=sizes | text, vision_config=tower | eyes, image_token_id=ids["<|image|>"],
            video_token_id=ids["<|video|>"], image_start_token_id=ids["<|begin_of_image|>"],
            image_end_token_id=ids["<|end_of_image|>"], video_start_token_id=ids["<|begin_of_video|>"],
            video_end_token_id=ids["<|end_of_video|>"], tie_word_embeddings=False,
        )

    return of


def processor(tokenizer):
    images = transformers.Glm4vImageProcessor(size=dict(PIXELS), patch_size=8)
    videos = transformers.Glm4vVideoProcessor(patch_size=8)
    return transformers.Glm4vProcessor(images, tokenizer, videos)


def variant(name, seed, model, config):
    return Variant(
        name, seed, model, config, processor, SPECIALS, NAMED, SIZES, vision.prompts(IMAGE), IMAGE, "<|image|>", old_files=False
    )


EXPERTS = {
    "first_k_dense_replace": 1, "n_routed_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "routed_scaling_factor": 3.0,
    "n_shared_experts": 1, "head_dim": 16, "use_qk_norm": True,
}

vision.VARIANTS = [
    variant("glm4v", 61, transformers.Glm4vForConditionalGeneration, build(transformers.Glm4vConfig, {})),
    variant("glm4v_moe", 61, transformers.Glm4vMoeForConditionalGeneration, build(transformers.Glm4vMoeConfig, {}, **EXPERTS)),
    variant("glm_ocr", 61, transformers.GlmOcrForConditionalGeneration, build(transformers.GlmOcrConfig, {}, num_attention_heads=3, head_dim=16)),
]

if __name__ == "__main__":
    vision.main()
