"""GGUF files as llama.cpp's converter lays them out, and the way back.

What differs from a Hugging Face folder is exactly what goes wrong silently: names, the row order of q and k (llama.cpp
turns neighbours, so each head's halves are interleaved), norms and biases that stay f32, frequencies as a tensor.
Reading the file back into Hugging Face's order gives the weights that a block format really stored, from which the
reference logits of that format are computed.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from byte_tokenizer import BOS, CHAT_TEMPLATE, EOS, EOT
from forward import Shape, llama3_divisors

FORMATS = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0}
_ROPE_DIVISORS = "rope_freqs.weight"


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
    if rope["rope_type"] == "llama3":
        divisors = llama3_divisors(layout.config.head_dim, rope["rope_theta"], rope)
        writer.add_tensor(_ROPE_DIVISORS, divisors.astype(np.float32))
    for name, value in weights.items():
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


def read(path, layout, hf_names):
    """The stored weights under Hugging Face's names in the file's own row order, and the file's shape."""
    reader = gguf.GGUFReader(path)
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    divisors = stored.pop(_ROPE_DIVISORS, None)
    wanted = {layout.name(name): name for name in hf_names}
    assert stored.keys() == wanted.keys(), "the file holds other tensors than the model"
    weights = {wanted[name]: np.array(value, dtype=np.float32) for name, value in stored.items()}

    def key(name, default=None):
        full = f"{gguf.MODEL_ARCH_NAMES[layout.arch]}.{name}"
        return reader.fields[full].contents() if full in reader.fields else default

    rope = {"rope_type": key("rope.scaling.type", "default"), "factor": key("rope.scaling.factor")}
    rope["original_max_position_embeddings"] = key("rope.scaling.original_context_length")
    heads = key("attention.head_count")
    shape = Shape(
        layers=key("block_count"),
        heads=heads,
        kv_heads=key("attention.head_count_kv", heads),
        head_dim=key("attention.key_length", key("embedding_length") // heads),
        eps=key("attention.layer_norm_rms_epsilon"),
        theta=key("rope.freq_base"),
        rope=rope,
        divisors=divisors,
        interleaved=layout.permuted,
    )
    return weights, shape


def _metadata(writer, layout, format, explicit_head_dim):
    config, rope = layout.config, layout.config.rope_parameters
    writer.add_type("model")
    writer.add_name("fixture")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    if explicit_head_dim:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_vocab_size(config.vocab_size)
    kinds = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "mixed": "MOSTLY_Q4_K_M"}
    writer.add_file_type(gguf.LlamaFileType[kinds[format]])
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
