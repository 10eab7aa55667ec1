"""GGUF files as llama.cpp's converter lays them out, and the way back.

What differs from a Hugging Face folder is exactly what goes wrong silently: names, the row order of q and k (llama.cpp
turns neighbours, so each head's halves are interleaved), norms and biases that stay f32, frequencies as a tensor.
Reading the file back into Hugging Face's order gives the weights that a block format really stored, from which the
reference logits of that format are computed.
"""

import math

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from byte_tokenizer import BOS, CHAT_TEMPLATE, EOS, EOT
from forward import Shape, apart, llama3_divisors

FORMATS = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0, "fused": Type.F32}
_ROPE_DIVISORS = "rope_freqs.weight"
_LONGROPE = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}


class Layout:
    """Names and row orders of one architecture."""

    def __init__(self, arch, config, permuted):
        self.arch = arch
        self.config = config
        self.permuted = permuted
        self.map = gguf.get_tensor_name_map(arch, config.num_hidden_layers)

    def name(self, hf_name):
        return self.map.get_name(hf_name, try_suffixes=(".weight", ".bias"))

    def to_gguf(self, hf_name, value):
        heads = self._permuted_heads(hf_name)
        if heads is None:
            return value
        return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    def to_hf(self, hf_name, value):
        heads = self._permuted_heads(hf_name)
        if heads is None:
            return value
        return value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    def _permuted_heads(self, hf_name):
        if not self.permuted:
            return None
        if ".q_proj." in hf_name:
            return self.config.num_attention_heads
        return self.config.num_key_value_heads if ".k_proj." in hf_name else None


def write(path, layout, weights, format, vocabulary, explicit_head_dim, encoded=None):
    """Writes Hugging Face weights as GGUF; `encoded` maps tensors to blocks that are already in the file's order."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[layout.arch])
    _metadata(writer, layout, format, explicit_head_dim)
    _tokenizer(writer, vocabulary)
    rope = layout.config.rope_parameters
    if rope["rope_type"] == "longrope":
        for key, name in _LONGROPE.items():
            writer.add_tensor(name, np.array(rope[key], dtype=np.float32))
    if rope["rope_type"] == "llama3":
        divisors = llama3_divisors(layout.config.head_dim, rope["rope_theta"], rope)
        writer.add_tensor(_ROPE_DIVISORS, divisors.astype(np.float32))
    for name, value in (fused(weights) if format == "fused" else weights).items():
        if encoded and name in encoded:
            data, kind = encoded[name]
        else:
            kind = FORMATS[format] if value.ndim > 1 else Type.F32
            data = gguf.quants.quantize(layout.to_gguf(name, value), kind)
        writer.add_tensor(layout.name(name), np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fused(weights):
    """Queries, keys and values in one tensor each, as early converters of Phi-2 wrote them."""
    found = {}
    for name, value in weights.items():
        if ".q_proj." in name:
            parts = [weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            found[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            found[name] = value
    return found


def read(path, layout, hf_names):
    """The stored weights under Hugging Face's names in the file's own row order, and the file's shape."""
    reader = gguf.GGUFReader(path)
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    divisors = stored.pop(_ROPE_DIVISORS, None)
    lists = {key: stored.pop(name, None) for key, name in _LONGROPE.items()}
    wanted = {layout.name(name): name for name in hf_names}
    assert stored.keys() == wanted.keys(), "the file holds other tensors than the model"
    weights = {wanted[name]: np.array(value, dtype=np.float32) for name, value in stored.items()}

    def key(name, default=None):
        full = f"{gguf.MODEL_ARCH_NAMES[layout.arch]}.{name}"
        return reader.fields[full].contents() if full in reader.fields else default

    rope = {"rope_type": key("rope.scaling.type", "default"), "factor": key("rope.scaling.factor")}
    rope["original_max_position_embeddings"] = key("rope.scaling.original_context_length")
    rope["mscale_all_dim"] = key("rope.scaling.yarn_log_multiplier")
    if lists["short_factor"] is not None:
        rope = rope | lists | {"rope_type": "longrope", "amplitude": key("rope.scaling.attn_factor")}
        rope["factor"] = key("context_length") / rope["original_max_position_embeddings"]
    heads, layers = key("attention.head_count"), key("block_count")
    head_dim = key("attention.key_length", key("embedding_length") // heads)
    growth = key("attention.temperature_scale")
    shape = Shape(
        layers=layers,
        heads=heads,
        kv_heads=key("attention.head_count_kv", heads),
        head_dim=head_dim,
        eps=key("attention.layer_norm_rms_epsilon", key("attention.layer_norm_epsilon")),
        theta=key("rope.freq_base", 10_000.0),
        rope=rope,
        divisors=divisors,
        rotary_dim=key("rope.dimension_count", head_dim),
        windows=(key("attention.sliding_window"),) * layers,
        parallel=layout.arch == gguf.MODEL_ARCH.PHI2,
        growth=(growth, rope["original_max_position_embeddings"]) if growth else (),
        interleaved=layout.permuted,
    )
    return apart(weights, shape) if "fused" in path.name else weights, shape


def _metadata(writer, layout, format, explicit_head_dim):
    """The keys that llama.cpp's converter writes for the architecture, and no others."""
    config, rope, arch = layout.config, layout.config.rope_parameters, layout.arch
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotary_dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_type("model")
    writer.add_name("fixture")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if arch == gguf.MODEL_ARCH.PHI2:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(rope["rope_theta"])
    if arch != gguf.MODEL_ARCH.QWEN2:
        writer.add_rope_dimension_count(rotary_dim)
    if explicit_head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch == gguf.MODEL_ARCH.MISTRAL3:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if arch == gguf.MODEL_ARCH.PHI3:
        original = rope.get("original_max_position_embeddings", config.original_max_position_embeddings)
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_sliding_window(config.sliding_window or 0)
        if rope["rope_type"] == "longrope":
            scale = config.max_position_embeddings / original
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    elif arch == gguf.MODEL_ARCH.LLAMA and getattr(config, "sliding_window", None):
        # Only some converters of Mistral write this key; a reader that finds it has to obey it.
        writer.add_sliding_window(config.sliding_window)
    if arch in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.MISTRAL3):
        writer.add_vocab_size(config.vocab_size)
    kinds = {"f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "mixed": "MOSTLY_Q4_K_M"}
    writer.add_file_type(gguf.LlamaFileType[kinds.get(format, "ALL_F32")])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _tokenizer(writer, vocabulary):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(vocabulary.tokens)
    kinds = (gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL for special in vocabulary.special)
    writer.add_token_types(list(kinds))
    writer.add_token_merges(vocabulary.merges())
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(EOT)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
