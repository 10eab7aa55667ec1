"""Writes a trained model as a Hugging Face folder and as GGUF.

The final norm is scaled by --sharpness: logits grow by it, which makes sampling at temperature 1 as careful as at a lower
one. Clients such as Claude Code name no temperature, and a model of this size has no business being adventurous.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from model import CONFIG
from text.rendering import TEMPLATE
from tokenizer import CONTROL, SPECIAL

TOKENIZER = Path(__file__).parent / "tokenizer.json"
NAME = "pensieve-starter"


def load(paths, sharpness):
    """The mean of checkpoints: of a training and one that went on from it, it makes fewer mistakes than either."""
    found = [torch.load(path, map_location="cpu") for path in paths]
    weights = {name: sum(one[name].float() for one in found) / len(found) for name in found[0]}
    weights["model.norm.weight"] = weights["model.norm.weight"] * sharpness
    return weights


def folder(path, weights):
    """The model for transformers."""
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (path / "tokenizer.json").write_text(TOKENIZER.read_text())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": CONFIG["max_position_embeddings"], "clean_up_tokenization_spaces": False}
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (path / "chat_template.jinja").write_text(TEMPLATE.read_text())
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False}, indent=2) + "\n")


def interleaved(value, heads):
    """GGUF's Llama turns neighbours, Hugging Face's turns halves: the rows of q and k change places."""
    return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)


def write_gguf(path, weights):
    import gguf
    from gguf import GGMLQuantizationType as Type

    c = CONFIG
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("model")
    writer.add_name(NAME)
    writer.add_description("The small model that comes with Pensieve, trained from scratch on generated text")
    writer.add_license("mit or apache-2.0")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_rope_dimension_count(c["head_dim"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _tokenizer(writer, gguf.TokenType)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c["num_hidden_layers"])
    for name, value in weights.items():
        value = value.numpy()
        if ".q_proj." in name or ".k_proj." in name:
            value = interleaved(value, c["num_attention_heads"] if ".q_proj." in name else c["num_key_value_heads"])
        kind = Type.Q8_0 if value.ndim > 1 else Type.F32
        data = gguf.quants.quantize(np.ascontiguousarray(value), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tokenizer(writer, types):
    document = json.loads(TOKENIZER.read_text())
    vocabulary = sorted(document["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    assert tokens[: len(SPECIAL)] == list(SPECIAL) and len(tokens) == CONFIG["vocab_size"]
    kinds = [types.CONTROL if i < CONTROL else types.USER_DEFINED if i < len(SPECIAL) else types.NORMAL for i in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in document["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="+", help="a checkpoint, or several, whose mean is taken")
    parser.add_argument("--folder", type=Path, default=Path("build/hf"))
    parser.add_argument("--gguf", type=Path, default=Path(__file__).parent / f"{NAME}.gguf")
    parser.add_argument("--no-gguf", action="store_true", help="only the folder, for a machine without the gguf package")
    parser.add_argument("--sharpness", type=float, default=2.0)
    args = parser.parse_args()
    weights = load(args.model, args.sharpness)
    folder(args.folder, weights)
    if args.no_gguf:
        return
    write_gguf(args.gguf, weights)
    print(f"{args.gguf}: {args.gguf.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
