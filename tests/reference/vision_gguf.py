"""GGUF files of fixtures with images: text model and tower (`mmproj`) as llama.cpp's converter lays them out.

It converts the folders that vision.py, vision_glm.py and vision_qwen.py have written, so that their numbers hold for both formats.
Run it with no arguments after these, to write text.gguf and mmproj.gguf beside their folders' weights.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
import transformers

import families
import vision
from gguf_file import Layout

ROOT = Path(__file__).resolve().parent.parent / "fixtures" / "vision"


def qwen2_5_vl(folder, config, weights, processor, tokens):
    """Queries, keys and values lie apart, and the frames of the convolution, too. Published files leave out the usual window."""
    text(folder, gguf.MODEL_ARCH.QWEN2VL, config, weights, tokens, **sections(config))
    sizes = config.vision_config
    every = sizes.fullatt_block_indexes[0] + 1
    keys = {"n_wa_pattern": every, "window_size": sizes.window_size, "attention.layer_norm_epsilon": 1e-6, "image_size": 560} | pixels(processor)
    tower(folder, "qwen2.5vl_merger", "silu", sizes, config, keys, processor, qwen_tensors(weights, sizes))


def qwen3_vl(folder, config, weights, processor, tokens, arch=gguf.MODEL_ARCH.QWEN3VL, **more):
    """Taps are called by their blocks."""
    sizes = config.vision_config
    taps = getattr(sizes, "deepstack_visual_indexes", [])
    head = {f"attention.{part}_length": config.text_config.head_dim for part in ("key", "value")}
    text(folder, arch, config, weights, tokens, n_deepstack_layers=len(taps), **head, **sections(config), **more)
    keys = {
        "spatial_merge_size": sizes.spatial_merge_size, "attention.layer_norm_epsilon": config.text_config.rms_norm_eps,
        "image_size": int(sizes.num_position_embeddings**0.5 * sizes.patch_size),
        "is_deepstack_layers": [index in taps for index in range(sizes.depth)],
    }
    tower(
        folder, "qwen3vl_merger", "gelu", sizes, config, keys | pixels(processor), processor, qwen_tensors(weights, sizes, taps)
    )


def qwen3_5(folder, config, weights, processor, tokens):
    """The text model has delta nets."""
    own, codec, coded = config.text_config, families.DeltaNet(turned=True), {}
    for name, value in weights.items():
        parts = None if "visual" in name else codec.parts(name, value, own)
        coded.update(parts or [(name, value)])
    keys = {
        "ssm.conv_kernel": own.linear_conv_kernel_dim, "ssm.state_size": own.linear_key_head_dim,
        "ssm.group_count": own.linear_num_key_heads, "ssm.time_step_rank": own.linear_num_value_heads,
        "ssm.inner_size": own.linear_num_value_heads * own.linear_value_head_dim,
        "full_attention_interval": own.layer_types.index("full_attention") + 1,
        "rope.dimension_count": int(own.head_dim * own.rope_parameters["partial_rotary_factor"]),
    }
    qwen3_vl(folder, config, coded, processor, tokens, arch=gguf.MODEL_ARCH.QWEN35, **keys)


def glm4v(folder, config, weights, processor, tokens):
    """The rotated values of a head take turns in folders, and are halves in files."""
    own = config.text_config
    head_dim = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    rotated = int(head_dim * own.rope_parameters["partial_rotary_factor"])
    turned = dict(weights)
    for name, value in weights.items():
        if "visual" not in name and (".q_proj." in name or ".k_proj." in name):
            heads = value.reshape(-1, head_dim, *value.shape[1:])
            parts = heads[:, :rotated:2], heads[:, 1:rotated:2], heads[:, rotated:]
            turned[name] = np.concatenate(parts, axis=1).reshape(value.shape)
    keys = {"rope.dimension_count": rotated}
    if head_dim * own.num_attention_heads != own.hidden_size:
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    glm(folder, gguf.MODEL_ARCH.GLM4, config, turned, processor, tokens, **keys)


def glm4v_moe(folder, config, weights, processor, tokens):
    """They are halves in both. Gates and values of the experts are two tensors in files."""
    own, apart = config.text_config, {}
    for name, value in weights.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(value, 2, axis=1)
            apart |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        else:
            apart[name.replace("e_score_correction_bias", "e_score_correction.bias")] = value
    keys = {
        "rope.dimension_count": int(own.head_dim * own.rope_parameters["partial_rotary_factor"]),
        "attention.key_length": own.head_dim, "attention.value_length": own.head_dim, "expert_count": own.n_routed_experts,
        "expert_used_count": own.num_experts_per_tok, "expert_feed_forward_length": own.moe_intermediate_size,
        "expert_shared_count": own.n_shared_experts, "expert_weights_scale": own.routed_scaling_factor,
        "leading_dense_block_count": own.first_k_dense_replace,
    }
    glm(folder, gguf.MODEL_ARCH.GLM4_MOE, config, apart, processor, tokens, **keys)


def glm(folder, arch, config, weights, processor, tokens, **keys):
    """Published files leave out the limits of the image processor."""
    sizes = config.vision_config
    text(folder, arch, config, weights, tokens, **keys, **sections(config))
    found = {}
    for name, value in weights.items():
        _, is_visual, name = name.rpartition("visual.")
        if name == "patch_embed.proj.weight":
            found["v.patch_embd.weight"], found["v.patch_embd.weight.1"] = value[:, :, 0], value[:, :, 1]
        elif is_visual:
            found[f"visual.{name}"] = value
    keys = {"image_size": sizes.image_size, "attention.layer_norm_epsilon": sizes.rms_norm_eps}
    # A processor's file counts the pixels of both frames of a patch.
    keys |= {key: limit // sizes.temporal_patch_size for key, limit in pixels(processor).items()}
    tower(folder, "glm4v", "silu", sizes, config, keys, processor, found)


def lfm2_vl(folder, config, weights, processor, tokens):
    """The inner width of the text model's layers is given as it is, and not cut."""
    own, sizes = config.text_config, config.vision_config
    heads = [own.num_key_value_heads * (kind == "full_attention") for kind in own.layer_types]
    keys = {
        "attention.head_count_kv": heads, "shortconv.l_cache": own.conv_L_cache, "attention.layer_norm_rms_epsilon": own.norm_eps,
        "rope.freq_base": own.rope_parameters["rope_theta"],
    }
    plain = {name: value.squeeze(1) if name.endswith("conv.conv.weight") else value for name, value in weights.items()}
    text(folder, gguf.MODEL_ARCH.LFM2, config, plain, tokens, **keys)
    found = {
        name.replace("vision_tower.", "vision_tower.vision_model.").removeprefix("model."): value for name, value in weights.items()
        if "vision_tower" in name or "projector" in name
    }
    keys = {"attention.layer_norm_epsilon": sizes.layer_norm_eps, "projector.scale_factor": config.downsample_factor}
    # A square of the table of positions; published models have 256 pixels.
    keys["image_size"] = int(sizes.num_patches**0.5) * sizes.patch_size
    tower(folder, "lfm2", "gelu", sizes, config, keys, processor, found)


def qwen_tensors(weights, sizes, taps=None):
    """The names of llama.cpp, some of which its table has not."""
    found = {}
    for name, value in weights.items():
        _, is_visual, name = name.rpartition("visual.")
        if not is_visual:
            continue
        parts = name.split(".")
        if name == "patch_embed.proj.weight":
            found["v.patch_embd.weight"], found["v.patch_embd.weight.1"] = value[:, :, 0], value[:, :, 1]
        elif ".qkv." in name and taps is None:
            for part, third in zip("qkv", np.split(value, 3)):
                found[f"v.blk.{parts[1]}.attn_{part}.{parts[-1]}"] = third
        elif parts[0] == "deepstack_merger_list":
            part = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}[parts[2]]
            found[f"v.deepstack.{taps[int(parts[1])]}.{part}.{parts[-1]}"] = value
        elif parts[0] == "merger":
            part = {
                "ln_q": "v.post_ln", "norm": "v.post_ln", "mlp.0": "mm.0", "linear_fc1": "mm.0", "mlp.2": "mm.2",
                "linear_fc2": "mm.2",
            }[".".join(parts[1:-1])]
            found[f"{part}.{parts[-1]}"] = value
        else:
            found[f"visual.{name}"] = value
    return found


def sections(config):
    """mRoPE's sections, of which llama.cpp has four."""
    rope = config.text_config.rope_parameters
    return {"rope.freq_base": rope["rope_theta"], "rope.dimension_sections": [*rope["mrope_section"], 0]}


def pixels(processor):
    """The limits of a processor, which published files leave out where they are the usual ones."""
    size = processor.image_processor.size
    return {"image_min_pixels": size["shortest_edge"], "image_max_pixels": size["longest_edge"]}


def pixtral(folder, config, weights, processor, tokens, arch=gguf.MODEL_ARCH.LLAMA):
    """The converter permutes queries and keys of the tower as it does those of a Llama."""
    head_dim = config.text_config.head_dim
    text(
        folder, arch, config, weights, tokens, permuted=True,
        **{"rope.dimension_count": head_dim, "rope.freq_base": config.text_config.rope_parameters["rope_theta"]},
    )
    sizes = config.vision_config
    # Published checkpoints have one size for both.
    keys = {"image_size": processor.image_processor.size["longest_edge"], "attention.layer_norm_epsilon": 1e-5}
    if getattr(config, "spatial_merge_size", 1) > 1:
        keys["spatial_merge_size"] = config.spatial_merge_size
    heads, found = sizes.num_attention_heads, {}
    for name, value in weights.items():
        if "embed_tokens" in name:
            found["v.token_embd.img_break"] = value[tokens.convert_tokens_to_ids("[IMG_BREAK]")]
        if "vision_tower" in name or "projector" in name:
            if ".q_proj." in name or ".k_proj." in name:
                value = value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
            found[name.removeprefix("model.")] = value
    tower(folder, "pixtral", sizes.hidden_act, sizes, config, keys, processor, found)


def mistral3(*given):
    pixtral(*given, arch=gguf.MODEL_ARCH.MISTRAL3)


def gemma4(folder, config, weights, processor, tokens):
    """Layers with windows and others differ in their heads, and of both the files have the sizes. That the rows of an image
    see each other they do not say."""
    own, sizes = config.text_config, config.vision_config
    own.allow_global_per_layer_attribute_access = True
    windows = [kind == "sliding_attention" for kind in own.layer_types]
    layers, shared, wide = own.num_hidden_layers, own.num_kv_shared_layers, own.per_layer_config[windows.index(False)]
    narrow = own.per_layer_config[windows.index(True)]
    head_dim, full = wide.head_dim, own.rope_parameters["full_attention"]
    rotated = int(full["partial_rotary_factor"] * head_dim) // 2
    keys = {
        "attention.key_length": head_dim, "attention.value_length": head_dim, "attention.key_length_swa": narrow.head_dim,
        "attention.value_length_swa": narrow.head_dim, "attention.sliding_window": own.sliding_window,
        "attention.sliding_window_pattern": windows, "attention.shared_kv_layers": shared, "rope.freq_base": full["rope_theta"],
        "rope.freq_base_swa": own.rope_parameters["sliding_attention"]["rope_theta"], "rope.dimension_count": head_dim,
        "rope.dimension_count_swa": narrow.head_dim, "embedding_length_per_layer_input": own.hidden_size_per_layer_input,
    }
    if own.final_logit_softcapping:
        keys["final_logit_softcapping"] = own.final_logit_softcapping
    if own.use_double_wide_mlp:
        keys["feed_forward_length"] = [own.intermediate_size * (1 + (layer >= layers - shared)) for layer in range(layers)]
    if own.attention_k_eq_v:
        keys["attention.head_count_kv"] = [own.per_layer_config[layer].num_key_value_heads for layer in range(layers)]
    plain = {name.replace("layer_scalar", "layer_scalar.weight"): value for name, value in weights.items()}
    divisors = np.array([1.0] * rotated + [1e30] * (head_dim // 2 - rotated), np.float32)
    text(folder, gguf.MODEL_ARCH.GEMMA4, config, plain | {"rope_freqs.weight": divisors}, tokens, pad=own.pad_token_id, **keys)
    found = {}
    for name, value in weights.items():
        if "vision_tower" in name or "embed_vision" in name:
            name = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
            name += ".weight" if name.endswith("position_embedding_table") else ""
            if name.endswith("input_proj.weight"):
                value = value.reshape(len(value), sizes.patch_size, sizes.patch_size, 3).transpose(0, 3, 1, 2)
            found[name] = value.reshape(1) if value.ndim == 0 else value
    keys = {"image_size": 224, "attention.layer_norm_epsilon": 1e-6, "projector.scale_factor": sizes.pooling_kernel_size}
    tokens_max = processor.image_processor.max_soft_tokens
    keys["image_max_pixels"] = tokens_max * (sizes.pooling_kernel_size * sizes.patch_size) ** 2
    tower(folder, "gemma4v", "gelu", sizes, config, keys, processor, found, "clip.vision.projector_type")


def text(folder, arch, config, weights, tokens, permuted=False, pad=None, **keys):
    plain = {
        name: value for name, value in weights.items()
        if not any(part in name for part in ("visual", "vision_tower", "projector", "embed_vision"))
    }
    vision.write_text(folder, Layout(arch, config.text_config, permuted), keys, plain, tokens, pad)


def tower(folder, projector, act, sizes, config, keys, processor, weights, key="clip.projector_type"):
    depth = getattr(sizes, "depth", None) or sizes.num_hidden_layers
    common = {
        "patch_size": sizes.patch_size, "embedding_length": sizes.hidden_size, "feed_forward_length": sizes.intermediate_size,
        "block_count": depth, "attention.head_count": getattr(sizes, "num_heads", None) or sizes.num_attention_heads,
        "projection_dim": config.text_config.hidden_size,
    }
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_string(key, projector)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool(f"clip.use_{act}", True)
    vision.add(writer, "clip.vision", common | keys)
    writer.add_array("clip.vision.image_mean", [float(mean) for mean in processor.image_processor.image_mean])
    writer.add_array("clip.vision.image_std", [float(std) for std in processor.image_processor.image_std])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, depth)
    for name, value in weights.items():
        # Their number counts as that of a layer, of which there may be fewer.
        name = name.replace("multi_modal_projector.linear_", "mm.")
        named = name if name.startswith(("v.", "mm.")) else names.get_name(name, try_suffixes=SUFFIXES)
        assert named, f"llama.cpp has no name for {name}"
        writer.add_tensor(named, np.ascontiguousarray(value))
    vision.close(writer)


SUFFIXES = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")
CONVERTERS = {
    "gemma4": gemma4, "gemma4_large": gemma4, "glm4v": glm4v, "glm4v_moe": glm4v_moe, "glm_ocr": glm4v, "lfm2_vl_usual": lfm2_vl, "mistral3": mistral3,
    "pixtral": pixtral, "qwen2_5_vl": qwen2_5_vl, "qwen3_5": qwen3_5, "qwen3_vl": qwen3_vl,
}


def is_tied(config):
    return getattr(config.text_config, "tie_word_embeddings", False) or getattr(config, "tie_word_embeddings", False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="convert these fixtures alone, with commas between")
    args = parser.parse_args()
    for name, convert in CONVERTERS.items():
        if args.only is None or name in args.only.split(","):
            folder = ROOT / name
            model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
            weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
            if is_tied(model.config):
                weights.pop("lm_head.weight", None)
            processor = transformers.AutoProcessor.from_pretrained(folder)
            # The class that a processor takes may add tokens of its own.
            tokens = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            convert(folder, model.config, weights, processor, tokens)
            for path in folder.glob("*.gguf"):
                path.chmod(0o644)
            print(name, *(f"{path.name} {path.stat().st_size}" for path in sorted(folder.glob("*.gguf"))))


if __name__ == "__main__":
    main()
