"""GGUF files of encoders and embedding models, with the keys, names and tokenizers that llama.cpp's converter gives them."""

import json

import gguf
import numpy as np

POOLING = {"mean_tokens": 1, "cls_token": 2, "lasttoken": 3}
RANK = 4
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5


def write(path, arch, config, weights, tokenizer, names, pooling):
    """Writes the weights of a folder, under its names, as one file."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _metadata(writer, arch, config, pooling)
    kind = type(tokenizer.model).__name__
    {"WordPiece": _wordpiece, "Unigram": _unigram, "BPE": _byte_level}[kind](writer, tokenizer, names, config)
    map = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, value in weights.items():
        renamed, value = _converted(name, value, arch, config)
        if renamed is not None:
            found = map.get_name(renamed, try_suffixes=(".weight", ".bias"))
            assert found, f"{name} has no name in GGUF files"
            writer.add_tensor(found, np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(writer, arch, config, pooling):
    is_offset = config.model_type == "xlm-roberta"
    writer.add_context_length(config.max_position_embeddings - (config.pad_token_id + 1 if is_offset else 0))
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch in (gguf.MODEL_ARCH.QWEN3, gguf.MODEL_ARCH.GEMMA_EMBEDDING):
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.norm_eps)
    if arch == gguf.MODEL_ARCH.MODERN_BERT:
        writer.add_sliding_window(config.local_attention)
        writer.add_sliding_window_pattern(3)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    elif arch == gguf.MODEL_ARCH.GEMMA_EMBEDDING:
        writer.add_sliding_window(2 * (config.sliding_window - 1))
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    elif arch in (gguf.MODEL_ARCH.QWEN3, gguf.MODEL_ARCH.NOMIC_BERT):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch != gguf.MODEL_ARCH.QWEN3:
        writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))


def _converted(name, value, arch, config):
    """The name that the converter looks up, and the values that it writes; no name for what it leaves out."""
    for prefix in ("bert.", "roberta."):
        name = name.removeprefix(prefix)
    if name.startswith("pooler.") or "position_ids" in name:
        return None, value
    if config.model_type == "xlm-roberta" and name == "embeddings.position_embeddings.weight":
        return name, value[config.pad_token_id + 1 :]
    if arch == gguf.MODEL_ARCH.GEMMA_EMBEDDING:
        value = value + np.float32(1) if name.endswith("norm.weight") else value
        if "_Dense." in name:
            return f"dense_{name[0]}.weight", value
        return "model." + name, value
    if arch == gguf.MODEL_ARCH.QWEN3:
        return "model." + name, value
    return name.removeprefix("model.") if arch == gguf.MODEL_ARCH.MODERN_BERT else name, value


def _specials(writer, tokenizer, names):
    adders = {
        "bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id, "unk": writer.add_unk_token_id,
        "sep": writer.add_sep_token_id, "pad": writer.add_pad_token_id, "mask": writer.add_mask_token_id,
    }
    for name, token in names.items():
        if name in adders:
            adders[name](tokenizer.token_to_id(token))


def _vocabulary(tokenizer, size):
    """Texts by id, and their types; rows that no token has are unused."""
    texts = {id: text for text, id in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = [texts.get(id, f"[PAD{id}]") for id in range(size)]
    kinds = [CONTROL if id in special else NORMAL if id in texts else UNUSED for id in range(size)]
    return tokens, kinds


def _wordpiece(writer, tokenizer, names, config):
    tokens, kinds = _vocabulary(tokenizer, config.vocab_size)
    spelled = [
        token if kind == CONTROL else token[2:] if token.startswith("##") else "▁" + token
        for token, kind in zip(tokens, kinds)
    ]
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(spelled)
    writer.add_token_types(kinds)
    _specials(writer, tokenizer, names)


def _unigram(writer, tokenizer, names, config):
    tokens, kinds = _vocabulary(tokenizer, config.vocab_size)
    listed = json.loads(tokenizer.to_str())["model"]["vocab"]
    scores = [listed[id][1] if id < len(listed) else -10000.0 for id in range(config.vocab_size)]
    kinds[tokenizer.token_to_id(names["unk"])] = UNKNOWN
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    _specials(writer, tokenizer, names)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)


def _byte_level(writer, tokenizer, names, config):
    tokens, kinds = _vocabulary(tokenizer, config.vocab_size)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    _specials(writer, tokenizer, names)
    opens = tokenizer.encode("a").ids[0] == tokenizer.token_to_id(names["bos"])
    writer.add_add_bos_token(opens)
    writer.add_add_eos_token(True)
    if opens:
        writer.add_add_sep_token(True)
