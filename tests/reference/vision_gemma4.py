"""Fixtures of Gemma 4 with images, made as vision.py makes those of the other families: a small model, with vectors of a
token's own in the layers and layers within ranges, and a large one, whose image rows see each other in layers with windows.

Run it with no arguments to write their folders in tests/fixtures/vision again.
"""

import torch
import transformers

import vision
from vision import Variant

NAMED = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>",
}
SPECIALS = (*NAMED.values(), "<|video|>")
# Each becomes at most 70 rows, the least that the processor allows.
SIZES = ((61, 47), (16, 17), (30, 190))


def rope(theta, **rest):
    return {"rope_type": "default", "rope_theta": theta} | rest


def gemma4(text, tower):
    def build(ids):
        full = rope(1e5, rope_type="proportional", partial_rotary_factor=0.5)
        given = vision.sizes(
            vocab_size=len(ids), num_hidden_layers=3, head_dim=8, sliding_window=9, rms_norm_eps=1e-5,
            layer_types=["sliding_attention", "full_attention"] * 2, bos_token_id=0, eos_token_id=1, pad_token_id=1,
            rope_parameters={"sliding_attention": rope(1e3), "full_attention": full}, vocab_size_per_layer_input=len(ids),
        )
        eyes = vision.tower(
            patch_size=4, num_key_value_heads=3, head_dim=8, pooling_kernel_size=2, position_embedding_size=160, **tower,
        )
        return transformers.Gemma4Config(
            text_config=given | text, vision_config=eyes, audio_config=None, image_token_id=ids["<|image|>"],
            boi_token_id=ids["<|image>"], eoi_token_id=ids["<image|>"], video_token_id=ids["<|video|>"],
            audio_token_id=ids["<|audio|>"], boa_token_id=ids["<|audio>"], eoa_token_index=ids["<audio|>"],
        )

    return build


SMALL = {
    "num_hidden_layers": 4, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True, "final_logit_softcapping": 8.0,
}
LARGE = {
    "num_hidden_layers": 4, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision",
}


def processor(tokenizer):
    settings = {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}
    images = transformers.Gemma4ImageProcessor(**settings)
    videos = transformers.Gemma4VideoProcessor(**settings)
    return transformers.Gemma4Processor(transformers.Gemma4AudioFeatureExtractor(), images, tokenizer, videos)


def buffers(model, rng):
    """Ranges that some values leave, and shifts and scales of rows."""
    for name, value in model.named_buffers():
        kind = name.rpartition(".")[2]
        drawn = {
            "input_min": -rng.uniform(0.8, 1.5), "input_max": rng.uniform(0.8, 1.5), "output_min": -rng.uniform(0.8, 1.5),
            "output_max": rng.uniform(0.8, 1.5), "std_bias": rng.standard_normal(value.shape),
            "std_scale": rng.uniform(0.5, 1.5, value.shape),
        }
        if kind in drawn and "vision" in name:
            value.copy_(torch.as_tensor(drawn[kind], dtype=value.dtype))


def variant(name, seed, config):
    return Variant(
        name, seed, transformers.Gemma4ForConditionalGeneration, config, processor, SPECIALS, NAMED, SIZES,
        vision.prompts("<|image|>"), "<|image|>", "<|image|>", old_files=False, buffers=buffers,
    )


vision.VARIANTS = [
    variant("gemma4", 54, gemma4(SMALL, {"use_clipped_linears": True})),
    variant("gemma4_large", 52, gemma4(LARGE, {"standardize": True})),
]

if __name__ == "__main__":
    vision.main()
