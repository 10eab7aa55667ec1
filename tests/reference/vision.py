"""Fixtures of models that read images: a small checkpoint as published, images, prompts, and what transformers makes of them.

A fixture holds the images as decoded, what the processor turns each into, each prompt's token ids, the rows that the model puts
in place of the slots, what it adds to them after its first layers, and the logits of all tokens. Images have odd sizes, some prompts hold several, and one holds an image
twice. A fixture is refused if single precision is far from double, or if a tenth more of half of any one tensor would not show
in the logits. Run it with no arguments to write tests/fixtures/vision again; report.txt says what each fixture can catch.
"""

import argparse
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD
from transformers.utils.logging import disable_progress_bar

from byte_tokenizer import _LLAMA3_PATTERN, _byte_letters
from fixture import distance
from gguf_file import Layout

F32_ERROR_MAX = 2e-5
SENSITIVITY_MIN = 1e-3
POSITIONS = 4096
BOS, EOS = "<s>", "</s>"


@dataclass(frozen=True)
class Variant:
    name: str
    seed: int
    model: type
    config: object  # Of the ids of the special tokens.
    processor: object  # Of the tokenizer.
    specials: tuple  # Tokens besides those that begin and end a text.
    named: dict  # Names of the tokenizer's attributes: `image_token`.
    sizes: tuple  # Width and height of each image.
    prompts: tuple  # Texts with placeholders, and the images that they show.
    template: str  # How it writes an image in a conversation.
    slot: str
    old_files: bool = True  # `preprocessor_config.json`, which newer checkpoints have as part of `processor_config.json`.
    gguf: object = None  # Writes the checkpoint as GGUF files of text model and tower.
    published: tuple = ()  # A part of its tensors' names, and what published checkpoints call it.
    asked: dict = field(default_factory=dict)  # What the processor is called with.
    buffers: object = None  # Draws values that are no parameters.


def sizes(**rest):
    given = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return given | {"head_dim": 8, "intermediate_size": 48, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5} | rest


def tower(**rest):
    return {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "patch_size": 8} | rest


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def tokenizer(specials, named):
    """A byte-level BPE whose line breaks merge, as those of published vocabularies do."""
    merges = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("Ċ", "Ċ")]
    tokens = [BOS, EOS, *specials, *_byte_letters()[:98], *("".join(pair) for pair in merges)]
    special = {BOS, EOS, *specials}
    backend = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens if token in special])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=EOS, extra_special_tokens=named,
        model_max_length=POSITIONS,
    )


def template(image):
    """A conversation in which contents are texts or lists of parts."""
    return (
        "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: "
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}" + image + "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )


def gemma3(ids, **rest):
    text = sizes(
        vocab_size=len(ids), head_dim=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        sliding_window=7, query_pre_attn_scalar=16, rms_norm_eps=1e-6,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    return transformers.Gemma3Config(
        text_config=text,
        vision_config=tower(image_size=48, num_channels=3, vision_use_head=False, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh"),
        mm_tokens_per_image=9, boi_token_index=ids["<start_of_image>"], eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"], bos_token_id=0, eos_token_id=1, pad_token_id=1, **rest,
    )


def gemma3_processor(**settings):
    def build(tokenizer):
        images = transformers.Gemma3ImageProcessor(size={"height": 48, "width": 48}, image_mean=[0.5] * 3, image_std=[0.5] * 3, **settings)
        return transformers.Gemma3Processor(images, tokenizer, image_seq_length=9)

    return build


def gemma3_gguf(folder, config, weights, tokens):
    """Norms of the text model and the projector are sums with one."""
    text = config.text_config
    windows = [kind == "sliding_attention" for kind in text.layer_types]
    keys = {
        "attention.key_length": text.head_dim, "attention.value_length": text.head_dim, "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4, "attention.sliding_window": text.sliding_window, "attention.sliding_window_pattern": windows,
    }
    plain = {name: value + is_norm(name, value) for name, value in weights.items() if "language_model" in name}
    write_text(folder, Layout(gguf.MODEL_ARCH.GEMMA3, text, permuted=False), keys, plain, tokens)
    tower = {}
    for name, value in weights.items():
        if "language_model" not in name:
            name = name.removeprefix("model.").replace("_projection_weight", "_projection.weight")
            name = name.replace("vision_tower.", "vision_tower.vision_model.")
            tower[name] = value + np.float32(name.endswith("soft_emb_norm.weight"))
    write_tower(folder, "gemma3", config, {"projector.scale_factor": 2}, tower)


def idefics3_gguf(folder, config, weights, tokens):
    """The text model is a Llama, whose queries and keys have their halves interleaved."""
    text = config.text_config
    plain = {name: value for name, value in weights.items() if "text_model" in name or name.startswith("lm_head")}
    keys = {"rope.dimension_count": text.head_dim, "rope.freq_base": 1e5}
    write_text(folder, Layout(gguf.MODEL_ARCH.LLAMA, text, permuted=True), keys, plain, tokens)
    tower = {name: value for name, value in weights.items() if name not in plain}
    keys = {"projector.scale_factor": config.scale_factor, "preproc_image_size": 96}
    write_tower(folder, "idefics3", config, keys, tower)


def write_text(folder, layout, keys, weights, tokens, pad=None):
    """The text model as llama.cpp's converter writes it."""
    text, arch = layout.config, gguf.MODEL_ARCH_NAMES[layout.arch]
    common = {
        "context_length": POSITIONS, "embedding_length": text.hidden_size, "block_count": text.num_hidden_layers,
        "feed_forward_length": text.intermediate_size, "attention.head_count": text.num_attention_heads,
        "attention.head_count_kv": text.num_key_value_heads, "attention.layer_norm_rms_epsilon": text.rms_norm_eps,
    }
    writer = gguf.GGUFWriter(folder / "text.gguf", arch)
    add(writer, arch, common | keys)
    write_tokens(writer, tokens)
    if pad is not None:
        writer.add_pad_token_id(pad)
    for name, value in weights.items():
        name = name.replace("language_model.", "").replace("text_model.", "")
        named = layout.name(name) or layout.name(name + ".weight")
        assert named, f"llama.cpp has no name for {name}"
        named += "" if named.endswith((".weight", ".bias", ".ssm_a")) else ".weight"
        writer.add_tensor(named, np.ascontiguousarray(layout.to_gguf(name, value)))
    close(writer)


def write_tower(folder, projector, config, keys, weights):
    """The tower and its projector as llama.cpp's converter writes them."""
    vision = config.vision_config
    common = {
        "image_size": vision.image_size, "patch_size": vision.patch_size, "embedding_length": vision.hidden_size,
        "feed_forward_length": vision.intermediate_size, "block_count": vision.num_hidden_layers,
        "attention.head_count": vision.num_attention_heads, "projection_dim": config.text_config.hidden_size,
        "attention.layer_norm_epsilon": vision.layer_norm_eps,
    }
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_string("clip.projector_type", projector)
    writer.add_bool("clip.has_vision_encoder", True)
    add(writer, "clip.vision", common | keys)
    mean = {"gemma3": [[0.5] * 3, [0.5] * 3], "idefics3": [IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD]}[projector]
    writer.add_array("clip.vision.image_mean", mean[0])
    writer.add_array("clip.vision.image_std", mean[1])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision.num_hidden_layers)
    for name, value in weights.items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), value)
    close(writer)


def add(writer, prefix, keys):
    for key, value in keys.items():
        match value:
            case int():
                writer.add_uint32(f"{prefix}.{key}", value)
            case float():
                writer.add_float32(f"{prefix}.{key}", value)
            case _:
                writer.add_array(f"{prefix}.{key}", value)


def is_norm(name, value):
    return np.float32(value.ndim == 1 and "norm" in name)


def write_tokens(writer, tokens):
    """The tokenizer as metadata."""
    backend = json.loads(tokens.backend_tokenizer.to_str())
    special = {token["content"] for token in backend["added_tokens"]}
    listed = sorted(tokens.get_vocab(), key=tokens.get_vocab().get)
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in listed]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(listed)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in backend["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(tokens.chat_template)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def idefics3(ids):
    return transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(
            **sizes(vocab_size=len(ids), rope_parameters=rope(100_000.0)), bos_token_id=0, eos_token_id=1, pad_token_id=1
        ),
        vision_config=tower(image_size=32, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh"),
        scale_factor=2, image_token_id=ids["<image>"], pad_token_id=1, tie_word_embeddings=False,
    )


def smolvlm(ids):
    return transformers.SmolVLMConfig(
        text_config=transformers.LlamaConfig(
            **sizes(vocab_size=len(ids), rope_parameters=rope(100_000.0)), bos_token_id=0, eos_token_id=1, pad_token_id=1
        ),
        vision_config=tower(image_size=32, patch_size=4, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh"),
        scale_factor=4, image_token_id=ids["<image>"], pad_token_id=1, tie_word_embeddings=True,
    )


def idefics3_processor(tokenizer):
    images = transformers.Idefics3ImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=4)


def smolvlm_processor(tokenizer):
    images = transformers.SmolVLMImageProcessorPil(
        size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, do_image_splitting=False
    )
    return transformers.SmolVLMProcessor(images, tokenizer, transformers.SmolVLMVideoProcessor(), image_seq_len=4)


def mistral3(ids):
    return transformers.Mistral3Config(
        text_config=transformers.MistralConfig(
            **sizes(vocab_size=len(ids), sliding_window=None, rope_parameters=rope(1e6)), bos_token_id=0, eos_token_id=1
        ),
        vision_config=transformers.PixtralVisionConfig(**tower(num_attention_heads=3, image_size=64, hidden_act="silu")),
        image_token_index=ids["[IMG]"], spatial_merge_size=2, tie_word_embeddings=False,
    )


def pixtral(ids):
    return transformers.LlavaConfig(
        text_config=transformers.MistralConfig(
            **sizes(vocab_size=len(ids), sliding_window=None, rope_parameters=rope(1e6)), bos_token_id=0, eos_token_id=1
        ),
        vision_config=transformers.PixtralVisionConfig(**tower(num_attention_heads=3, image_size=64, hidden_act="gelu")),
        image_token_index=ids["[IMG]"], vision_feature_layer=-1, vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )


def pixtral_processor(tokenizer):
    images = transformers.PixtralImageProcessor(size={"longest_edge": 48}, patch_size={"height": 8, "width": 8})
    return transformers.PixtralProcessor(images, tokenizer, patch_size=8, spatial_merge_size=1)


def mistral3_processor(tokenizer):
    images = transformers.PixtralImageProcessor(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
    return transformers.PixtralProcessor(images, tokenizer, patch_size=8, spatial_merge_size=2)


def lfm2_vl(ids):
    text = sizes(vocab_size=len(ids), num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5)
    text |= {"block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "rope_parameters": rope(1e6), "tie_word_embeddings": True}
    return transformers.Lfm2VlConfig(
        text_config=text | {"model_type": "lfm2", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1},
        vision_config=tower(num_patches=16, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh")
        | {"model_type": "siglip2_vision_model", "vision_use_head": False},
        image_token_id=ids["<image>"], projector_hidden_size=40, downsample_factor=2, tie_word_embeddings=True,
    )


def lfm2_vl_processor(tokenizer):
    images = transformers.Lfm2VlImageProcessor(
        tile_size=32, encoder_patch_size=8, downsample_factor=2, min_image_tokens=3, max_image_tokens=6, min_tiles=2,
        max_tiles=4, image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )
    return transformers.Lfm2VlProcessor(images, tokenizer)


def lfm2_vl_usual_processor(tokenizer):
    images = transformers.Lfm2VlImageProcessor(encoder_patch_size=8, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return transformers.Lfm2VlProcessor(images, tokenizer)


TILE_TOKENS = tuple(f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5))
LFM2_TILE_TOKENS = tuple(f"<|img_row_{row}_col_{col}|>" for row in range(1, 5) for col in range(1, 5))


def prompts(image):
    return (
        (f"{image}what is this?", (0,)),
        (f"look: {image} and\n\n{image}the same?{image}", (1, 2, 1)),
    )


PAN_AND_SCAN = {
    "pan_and_scan_min_crop_size": 16, "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_ratio_to_activate": 1.2,
}
GEMMA3_TOKENS = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
GEMMA3_NAMED = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
IDEFICS3_TOKENS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *TILE_TOKENS)

VARIANTS = [
    Variant(
        "gemma3", 31, transformers.Gemma3ForConditionalGeneration, gemma3, gemma3_processor(), GEMMA3_TOKENS, GEMMA3_NAMED,
        ((61, 47), (48, 48), (33, 90)), prompts("<start_of_image>"), "<start_of_image>", "<image_soft_token>",
        gguf=gemma3_gguf, published=("vision_tower.", "vision_tower.vision_model."),
    ),
    Variant(
        "gemma3_pan_and_scan", 32, transformers.Gemma3ForConditionalGeneration, gemma3,
        gemma3_processor(**PAN_AND_SCAN), GEMMA3_TOKENS, GEMMA3_NAMED, ((97, 31), (50, 48), (29, 63)), prompts("<start_of_image>"), "<start_of_image>",
        "<image_soft_token>", old_files=False, asked={"do_pan_and_scan": True, **PAN_AND_SCAN},
    ),
    Variant(
        "idefics3", 33, transformers.Idefics3ForConditionalGeneration, idefics3,
        idefics3_processor, IDEFICS3_TOKENS, {}, ((61, 47), (32, 32), (30, 101)), prompts("<image>"), "<image>", "<image>",
        gguf=idefics3_gguf,
    ),
    Variant(
        "smolvlm", 34, transformers.SmolVLMForConditionalGeneration, smolvlm, smolvlm_processor,
        IDEFICS3_TOKENS,
        {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"},
        ((61, 47), (32, 32), (30, 101)), prompts("<image>"), "<image>", "<image>",
    ),
    Variant(
        "mistral3", 35, transformers.Mistral3ForConditionalGeneration, mistral3, mistral3_processor,
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"), {}, ((61, 47), (16, 17), (30, 101)), prompts("[IMG]"), "[IMG]", "[IMG]",
        old_files=False,
    ),
    Variant(
        "pixtral", 37, transformers.LlavaForConditionalGeneration, pixtral, pixtral_processor,
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"), {}, ((61, 47), (8, 9), (20, 71)), prompts("[IMG]"), "[IMG]", "[IMG]",
    ),
    Variant(
        "lfm2_vl", 36, transformers.Lfm2VlForConditionalGeneration, lfm2_vl, lfm2_vl_processor,
        ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *LFM2_TILE_TOKENS), {},
        ((61, 37), (16, 17), (70, 95)), prompts("<image>"), "<image>", "<image>",
    ),
    # The usual sizes, which GGUF files do not state.
    Variant(
        "lfm2_vl_usual", 48, transformers.Lfm2VlForConditionalGeneration, lfm2_vl, lfm2_vl_usual_processor,
        ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *LFM2_TILE_TOKENS), {},
        ((61, 37), (16, 17), (70, 195)), prompts("<image>"), "<image>", "<image>", old_files=False,
    ),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parent.parent / "fixtures" / "vision"
    parser.add_argument("--out", type=Path, default=default, help="folder to write the variants to")
    parser.add_argument("--only", help="make these variants alone, with commas between")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    disable_progress_bar()
    if args.only is None:
        write_sizes(args.out / "sizes.json")
    for variant in VARIANTS:
        if args.only is None or variant.name in args.only.split(","):
            lines = make(variant, args.out)
            (args.out / variant.name / "report.txt").write_text("\n".join(lines) + "\n")
            print("\n".join([variant.name, *("    " + line for line in lines)]), flush=True)


def write_sizes(path):
    """The rows that images of many sizes become with the settings of published checkpoints."""
    rng = np.random.default_rng(38)
    drawn = [tuple(int(side) for side in np.exp(rng.uniform(np.log(8), np.log(5000), 2))) for _ in range(120)]
    drawn += [(1, 1), (1, 3000), (512, 512), (513, 512), (1280, 1024), (1920, 1080), (1080, 1920), (640, 480), (4096, 4096)]
    idefics3 = [(*size, idefics3_rows(size)) for size in drawn]
    pan = {"pan_and_scan_min_crop_size": 256, "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    crops = transformers.Gemma3ImageProcessor().pan_and_scan_batched
    blank = [(size, torch.empty(1, 3, size[1], size[0], dtype=torch.uint8)) for size in drawn]
    gemma3 = [(*size, 256 * (1 + len(crops(image, *pan.values())))) for size, image in blank]
    pixtral = transformers.models.pixtral.image_processing_pixtral.get_resize_output_image_size
    pixels = [(size, pixtral(np.empty((size[1], size[0], 3), np.uint8), (1540, 1540), (28, 28))) for size in drawn]
    mistral3 = [(*size, height // 28 * (width // 28)) for size, (height, width) in pixels]
    # The published processor makes nothing of a line of pixels.
    mistral3 = [size for size in mistral3 if size[2] > 0]
    lfm2_vl = [(*size, lfm2_vl_rows(size)) for size in drawn]
    squares = transformers.models.gemma4.image_processing_gemma4.get_aspect_ratio_preserving_size
    gemma4 = [(width, height, np.prod(squares(height, width, 16, 280 * 9, 3)) // 48**2) for width, height in drawn]
    resize = transformers.models.glm4v.image_processing_glm4v.smart_resize
    limits = {"min_pixels": 112 * 112, "max_pixels": 28 * 28 * 15000}
    near = [size for size in drawn if max(size) <= 100 * min(size)]
    glm4v = [(width, height, np.prod(resize(2, height, width, **limits)) // 28**2) for width, height in near]
    settings = {
        "gemma4": {"patch_size": 16, "kernel": 3, "tokens": 280},
        "glm4v": {"patch_size": 14, "merge_size": 2, "min_pixels": 112 * 56, "max_pixels": 28 * 28 * 7500},
        "idefics3": {"rows": 64, "patch_size": 16, "tile": 512, "longest_edge": 2048, "splits": True},
        "gemma3": {"tokens": 256, "patch_size": 14, "side": 896, "crops_max": 4, "crop_side_min": 256, "crop_ratio_min": 1.2},
        "mistral3": {"patch_size": 14, "merge": 2, "longest_edge": 1540},
        "lfm2_vl": {
            "patch_size": 16, "factor": 2, "tile_size": 512, "min_tiles": 2, "max_tiles": 10, "min_image_tokens": 64,
            "max_image_tokens": 256,
        },
    }
    rows = {
        "idefics3": idefics3, "gemma3": gemma3, "gemma4": gemma4, "glm4v": glm4v, "mistral3": mistral3, "lfm2_vl": lfm2_vl,
    }
    file = {
        name: {"settings": settings[name], "sizes": [[int(number) for number in size] for size in rows[name]]}
        for name in settings
    }
    path.write_text(json.dumps(file) + "\n")


def idefics3_rows(size):
    """By the sizes that the image processor resizes to; its own estimate of them differs."""
    images = transformers.Idefics3ImageProcessorPil()
    images.resize = lambda image, size, **_: (size.height, size.width)
    sides = transformers.models.idefics3.image_processing_pil_idefics3.get_resize_output_image_size
    height, width = sides(np.empty((3, size[1], size[0]), np.uint8), resolution_max_side=2048)
    height, width = images.resize_for_vision_encoder(np.empty((3, height, width), np.uint8), 512)
    tiles = height // 512 * (width // 512)
    return 64 * (tiles + 1 if tiles > 1 else 1)


def lfm2_vl_rows(size):
    """By the image processor's plan; its pixels would take minutes."""
    images, (width, height) = transformers.Lfm2VlImageProcessor(), size
    limits = {"max_image_tokens": 256, "encoder_patch_size": 16, "downsample_factor": 2}
    whole = images.smart_resize(height=height, width=width, min_image_tokens=64, **limits)
    rows = whole[0] // 32 * (whole[1] // 32)
    if images._is_image_too_large(height=height, width=width, max_pixels_tolerance=2.0, **limits):
        tiles = images._get_grid_layout(height, width, min_tiles=2, max_tiles=10, tile_size=512)[4]
        rows += 256 * tiles
    return rows


def make(variant, root):
    """Writes the fixture's folder and returns its report."""
    folder = root / variant.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(variant.seed)
    tokens = tokenizer(variant.specials, variant.named)
    processor = variant.processor(tokens)
    config = variant.config(tokens.get_vocab())
    config._attn_implementation = "eager"
    for part in (config.text_config, config.vision_config):
        part._attn_implementation = "eager"
        part._experts_implementation = "eager"
    model = variant.model(config).eval()
    weights = {name: draw(name, tuple(value.shape), rng, config.model_type) for name, value in model.named_parameters()}
    load(model, weights)
    if variant.buffers:
        variant.buffers(model, rng)
    model.save_pretrained(folder)
    if variant.published:
        stored = load_file(folder / "model.safetensors")
        renamed = {name.replace(*variant.published): value for name, value in stored.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    write_processor(folder, variant, processor, tokens)
    images = [picture(size, rng) for size in variant.sizes]
    slot = tokens.get_vocab()[variant.slot]
    reference = {f"image.{at}": image for at, image in enumerate(images)}
    inputs = [
        processor(text=text, images=[images[at] for at in shown], return_tensors="pt", **variant.asked)
        for text, shown in variant.prompts
    ]
    for at, given in enumerate(inputs):
        reference[f"tokens.{at}"] = given["input_ids"][0].numpy().astype(np.uint32)
        reference[f"logits.{at}"], reference[f"rows.{at}"], taps = outputs(model, given, slot)
        reference.update({f"taps.{at}.{index}": tap for index, tap in enumerate(taps)})
    save_file({name: np.ascontiguousarray(value) for name, value in reference.items()}, folder / "reference.safetensors")
    asked = [{"text": text, "images": shown} for text, shown in variant.prompts]
    (folder / "prompts.json").write_text(json.dumps({"slot": slot, "prompts": asked}, indent=1) + "\n")
    if variant.gguf:
        variant.gguf(folder, config, weights, tokens)
    report = power(model, weights, inputs, reference, slot)
    for path in folder.iterdir():
        path.chmod(0o644)
    return report


def draw(name, shape, rng, kind):
    """Random values such that attention is far from uniform and every tensor shows."""
    normal = rng.standard_normal(shape)
    # The norms of Gemma's text model and projector multiply by one more than their weights.
    is_offset = kind == "gemma3" and "vision_tower" not in name
    is_norm = any(part in name for part in ("norm", "ln_pre"))
    if kind == "gemma4" and ("q_norm" in name or "k_norm" in name):
        return rng.uniform(0.3, 0.9, shape).astype(np.float32)  # Its scores are not scaled.
    if is_norm and name.endswith("weight"):
        return (rng.uniform(0.5, 1.5, shape) - is_offset).astype(np.float32)
    if len(shape) == 1:
        return (0.3 * normal).astype(np.float32)
    if "embed" in name and "patch" not in name:
        return (0.5 * normal).astype(np.float32)
    inputs = shape[0] if name.endswith("mm_input_projection_weight") else int(np.prod(shape[1:]))
    return (1.2 * normal / inputs**0.5).astype(np.float32)


def load(model, weights):
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)
    model.tie_weights()


def picture(size, rng):
    """Rows of pixels, red, green and blue: coarse shapes with noise on them, so that each way of resizing shows."""
    width, height = size
    coarse = rng.uniform(0, 255, (height // 9 + 1, width // 7 + 1, 3)).repeat(9, axis=0).repeat(7, axis=1)[:height, :width]
    return np.clip(coarse + rng.normal(0, 40, coarse.shape), 0, 255).astype(np.uint8)


def write_processor(folder, variant, processor, tokens):
    """Tokenizer, template and the settings of the image processor."""
    tokens.chat_template = processor.chat_template = template(variant.template)
    tokens.save_pretrained(folder)
    images = json.loads(processor.image_processor.to_json_string())
    for name in ("_processor_class", "processor_class"):
        images.pop(name, None)
    whole = json.loads(processor.to_json_string())
    whole.pop("image_processor", None)
    if variant.old_files:
        (folder / "preprocessor_config.json").write_text(json.dumps(images, indent=2, sort_keys=True) + "\n")
    else:
        whole["image_processor"] = images
    (folder / "processor_config.json").write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def outputs(model, given, slot, dtype=torch.float32):
    """The logits of all tokens, what stands in place of the slots' embeddings, and what is added there after the first layers."""
    model = model.to(dtype)
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}
    language = model.get_decoder()
    found = {}

    def look(module, args, kwargs):
        found["embeds"] = kwargs.get("inputs_embeds")
        found["taps"] = kwargs.get("deepstack_visual_embeds") or []

    hook = language.register_forward_pre_hook(look, with_kwargs=True)
    logits = model(**given, use_cache=False).logits[0]
    hook.remove()
    is_slot = given["input_ids"][0] == slot
    rows = found["embeds"][0][is_slot]
    model.to(torch.float32)
    kind = np.float32 if dtype == torch.float32 else np.float64
    return logits.numpy().astype(kind), rows.numpy().astype(kind), [tap.numpy().astype(kind) for tap in found["taps"]]


def power(model, weights, inputs, reference, slot):
    """How far single precision is from the truth, and how much of the least felt tensor shows."""
    report = []
    for at, given in enumerate(inputs):
        logits, rows, taps = outputs(model, given, slot, torch.float64)
        errors = [distance(logits, reference[f"logits.{at}"]), distance(rows, reference[f"rows.{at}"])]
        errors += [distance(tap, reference[f"taps.{at}.{index}"]) for index, tap in enumerate(taps)]
        assert max(errors) <= F32_ERROR_MAX, f"f32 is {errors} from float64"
        spread = [reference[f"{name}.{at}"].std() for name in ("logits", "rows")]
        report.append(
            f"prompt {at}: {len(logits)} tokens, {len(rows)} rows; logits within {errors[0]:.1e} of double precision (std "
            f"{spread[0]:.2f}), rows within {errors[1]:.1e} (std {spread[1]:.2f})"
        )
    felt = {}
    for name, value in weights.items():
        if name.endswith("k_proj.bias") and ("vision" in name):
            continue  # A softmax does not change when all scores of a query grow alike.
        more = value.copy()
        more[::2] *= 1.1
        load(model, {name: more})
        felt[name] = distance(outputs(model, inputs[-1], slot)[0], reference[f"logits.{len(inputs) - 1}"])
        load(model, {name: value})
    least = min(felt, key=felt.get)
    assert felt[least] >= SENSITIVITY_MIN, f"a tenth more of half of {least} moves the logits by {felt[least]:.1e}"
    report.append(f"a tenth more of half of the least felt tensor ({least}): {felt[least]:.2g}")
    return report


if __name__ == "__main__":
    main()
