"""Fixtures of the families that have plugins besides Llama, Mistral and Phi: one small checkpoint for each way in which they
differ, as a folder and as GGUF files.

They are made and held to the same as the zoo's: transformers in double precision says how far f32 is from the truth, and a
mistake is a configuration that says something else. GGUF files have the keys, names and row orders that llama.cpp's converter
gives each architecture. Run it with no arguments to write tests/fixtures/families again; it prints what each fixture can
catch, and leaves that in report.txt.
"""

import functools
from dataclasses import dataclass, field

import gguf
import numpy as np
import transformers
from gguf import GGMLQuantizationType as Type

import rwkv7
import zoo
from byte_tokenizer import BOS
from fixture import run
from gguf_file import Layout, _tokenizer
from zoo import EPS, NORM, rope, sizes

WINDOW = 24  # Shorter than the text.


@dataclass(frozen=True)
class Gguf:
    """How an architecture is written. Keys whose names begin with a dot belong to the architecture."""

    arch: int
    keys: dict = field(default_factory=dict)
    permuted: bool = False  # llama.cpp turns neighbours in queries and keys.
    rename: dict = field(default_factory=dict)  # Parts of names in llama.cpp that gguf's map does not know.
    norm_offset: float = 0.0
    dense: tuple = ("ffn_gate_inp", "conv1d")  # Matrices that stay f32.
    extra: dict = field(default_factory=dict)  # Vectors that no weight is written as.
    codec: object = None  # How it writes layers that differ by more than their names.


@dataclass(frozen=True)
class Variant(zoo.Variant):
    gguf: Gguf | None = None


def moe(experts=6, used=2, inner=32):
    return {".expert_count": experts, ".expert_used_count": used, ".expert_feed_forward_length": inner}


class DeltaNet:
    """How llama.cpp writes Qwen's delta nets: queries, keys and values apart from gates, factors instead of their logarithms, and,
    where `turned`, heads of values that take turns with those of keys."""

    def __init__(self, turned):
        self.turned = turned

    def parts(self, name, value, config):
        """What a tensor is written as; none for those that are written as they are."""
        place, _, part = name.partition(".linear_attn.")
        if not part:
            return [(name, value + np.float32(1))] if name.endswith("norm.weight") else None
        here, keys, width = place + ".linear_attn.", config.linear_num_key_heads, config.linear_value_head_dim
        key_dim = keys * config.linear_key_head_dim
        match part:
            case "in_proj_qkvz.weight":
                q, k, v, z = self._groups(value, config)
                return [(here + "in_proj_qkv.weight", np.concatenate((q, k, v))), (here + "in_proj_z.weight", z)]
            case "A_log":
                return [(name, -np.exp(self._turn(value, keys, 1)))]
            case "dt_bias":
                return [(here + "dt_proj.bias", self._turn(value, keys, 1))]
            case "conv1d.weight":
                value = value.squeeze(1)
                return [(name, np.concatenate((value[: 2 * key_dim], self._turn(value[2 * key_dim :], keys, width))))]
            case "in_proj_qkv.weight":
                return [(name, np.concatenate((value[: 2 * key_dim], self._turn(value[2 * key_dim :], keys, width))))]
            case "in_proj_z.weight":
                return [(name, self._turn(value, keys, width))]
            case "in_proj_a.weight" | "in_proj_b.weight":
                return [(name, self._turn(value, keys, 1))]
            case "out_proj.weight":
                return [(name, np.ascontiguousarray(self._turn(value.T, keys, width).T))]
        return None

    def whole(self, name, parts, config):
        """The way back."""
        part = name.partition(".linear_attn.")[2]
        if not part:
            return parts[0] - np.float32(1)
        keys, width = config.linear_num_key_heads, config.linear_value_head_dim
        per_key = config.linear_num_value_heads // keys
        key_dim = keys * config.linear_key_head_dim
        match part:
            case "in_proj_qkvz.weight":
                qkv, z = parts
                pieces = [*np.split(qkv, [key_dim, 2 * key_dim]), z]
                pieces = [piece.reshape(keys, -1, piece.shape[1]) for piece in pieces]
                return np.concatenate(pieces, axis=1).reshape(-1, qkv.shape[1])
            case "A_log":
                return np.log(-self._turn(parts[0], per_key, 1))
            case "conv1d.weight" | "in_proj_qkv.weight":
                value = parts[0]
                value = np.concatenate((value[: 2 * key_dim], self._turn(value[2 * key_dim :], per_key, width)))
                return value[:, None] if part == "conv1d.weight" else value
            case "out_proj.weight":
                return np.ascontiguousarray(self._turn(parts[0].T, per_key, width).T)
        return self._turn(parts[0], per_key, width if part == "in_proj_z.weight" else 1)

    def _turn(self, value, outer, width):
        if not self.turned:
            return value
        return value.reshape(outer, -1, width, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)

    @staticmethod
    def _groups(value, config):
        keys, dim = config.linear_num_key_heads, config.linear_key_head_dim
        values = config.linear_num_value_heads // keys * config.linear_value_head_dim
        parts = np.split(value.reshape(keys, -1, value.shape[1]), [dim, 2 * dim, 2 * dim + values], axis=1)
        return [np.ascontiguousarray(part.reshape(-1, value.shape[1])) for part in parts]


class Gemma4:
    """How llama.cpp writes Gemma 4: scales beside the layers that they belong to."""

    def parts(self, name, value, config):
        for part, other in (
            ("layer_scalar", "layer_scalar.weight"),
            ("router.scale", "router.proj.scale"),
            ("router.per_expert_scale", "experts.down_proj.scale"),
        ):
            if name.endswith(part):
                return [(name.removesuffix(part) + other, value)]
        return [(name, value)]

    def whole(self, name, parts, config):
        return parts[0]


class StateSpace:
    """How llama.cpp writes Granite's state spaces: factors instead of their logarithms, vectors with another dimension; and the block
    that all tokens share."""

    def parts(self, name, value, config):
        place, _, part = name.partition(".shared_mlp.")
        if part:
            here = place + (".mlp.shared_expert." if config.num_local_experts else ".mlp.")
            if part == "output_linear.weight":
                return [(here + "down_proj.weight", value)]
            gate, up = np.split(value, 2)
            return [(here + "gate_proj.weight", gate), (here + "up_proj.weight", up)]
        match name.partition(".mamba.")[2]:
            case "A_log":
                return [(name, -np.exp(value)[:, None])]
            case "D":
                return [(name, value[:, None])]
            case "dt_bias":
                return [(name.replace("dt_bias", "dt_proj.bias"), value)]
            case "conv1d.weight":
                return [(name, value.squeeze(1))]
            case "norm.weight":
                return [(name, value.reshape(config.mamba_n_groups, -1))]
        return None

    def whole(self, name, parts, config):
        match name.rpartition(".")[2], name:
            case "A_log", _:
                return np.log(-parts[0][:, 0])
            case _, _ if name.endswith("conv1d.weight"):
                return parts[0][:, None]
            case _, _ if len(parts) == 2:
                return np.concatenate(parts)
            case _, _ if name.endswith((".D", "mamba.norm.weight")):
                return parts[0].reshape(-1)
        return parts[0]


class NemotronH:
    """How llama.cpp writes Nemotron's state spaces, which are Granite's by other names."""

    def parts(self, name, value, config):
        if ".mixer.experts." in name:
            return [(name.replace(".mixer.", ".mlp."), value)]
        name = name.replace("model.", "backbone.")
        match name.partition(".mixer.")[2]:
            case "A_log":
                return [(name, -np.exp(value)[:, None])]
            case "D":
                return [(name, value[:, None])]
            case "dt_bias":
                return [(name.replace("dt_bias", "dt_proj.bias"), value)]
            case "conv1d.weight":
                return [(name, value.squeeze(1))]
            case "norm.weight":
                return [(name, value.reshape(config.n_groups, -1))]
        return [(name, value)]

    def whole(self, name, parts, config):
        match name.partition(".mixer.")[2]:
            case "A_log":
                return np.log(-parts[0][:, 0])
            case "conv1d.weight":
                return parts[0][:, None]
            case "D" | "norm.weight":
                return parts[0].reshape(-1)
        return parts[0]


class FalconH1(StateSpace):
    """The same with multipliers within the weights."""

    def parts(self, name, value, config):
        value = (value.T * self._factor(name, config)).T.astype(np.float32)
        return super().parts(name, value, config) or [(name, value)]

    def whole(self, name, parts, config):
        return (super().whole(name, parts, config).T / self._factor(name, config)).T.astype(np.float32)

    @staticmethod
    def _factor(name, config):
        attention = config.attention_in_multiplier
        match name.split(".")[-2]:
            case "q_proj" | "v_proj":
                return attention
            case "k_proj":
                return attention * config.key_multiplier
            case "o_proj":
                return config.attention_out_multiplier
            case "gate_proj":
                return config.mlp_multipliers[0]
            case "down_proj":
                return config.mlp_multipliers[1]
            case "out_proj":
                return config.ssm_out_multiplier
            case "in_proj":
                inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
                lengths = [inner, inner, shared, shared, config.mamba_n_heads]
                return np.repeat(config.ssm_multipliers, lengths) * config.ssm_in_multiplier
            case "lm_head":
                return config.lm_head_multiplier
            case "embed_tokens":
                return config.embedding_multiplier
        return 1.0


class Selective:
    """How llama.cpp writes Mamba and Jamba: factors instead of their logarithms."""

    def parts(self, name, value, config):
        if name.endswith("A_log"):
            return [(name, -np.exp(value))]
        if name.endswith("conv1d.weight"):
            return [(name, value.squeeze(1))]
        return None

    def whole(self, name, parts, config):
        return np.log(-parts[0]) if name.endswith("A_log") else parts[0][:, None]


class Latents:
    """How llama.cpp writes DeepSeek's attention: what makes keys and values of latents in two, that of keys the other way round."""

    def parts(self, name, value, config):
        if not name.endswith(".kv_b_proj.weight"):
            return None
        keys, values = np.split(self._by_head(value, config), [config.qk_nope_head_dim], axis=1)
        keys = np.ascontiguousarray(keys.swapaxes(1, 2))
        return [(name.replace("kv_b", "k_b"), keys), (name.replace("kv_b", "v_b"), np.ascontiguousarray(values))]

    def whole(self, name, parts, config):
        both = np.concatenate((parts[0].swapaxes(1, 2), parts[1]), axis=1)
        return both.reshape(-1, both.shape[2])

    @staticmethod
    def _by_head(value, config):
        return value.reshape(config.num_attention_heads, -1, value.shape[1])


class Kimi(Latents):
    """How llama.cpp writes Kimi Linear: its delta nets' convolutions apart, and factors instead of their logarithms."""

    def parts(self, name, value, config):
        here, _, part = name.partition(".self_attn.")
        here += ".self_attn."
        match part:
            case "conv1d.weight":
                parts = np.split(value[None, :, 0, None], 3, axis=1)
                return [(f"{here}{of}_conv1d.weight", np.ascontiguousarray(part)) for of, part in zip("qkv", parts)]
            case "forget_gate.A_log":
                return [(here + "A_log", -np.exp(value))]
            case "forget_gate.dt_bias":
                return [(here + "dt_proj.bias", value)]
            case "forget_gate.f_a_proj.weight" | "forget_gate.f_b_proj.weight":
                return [(name.replace("forget_gate.", ""), value)]
        return super().parts(name, value, config)

    def whole(self, name, parts, config):
        if name.endswith("conv1d.weight"):
            return np.concatenate(parts, axis=1)[0, :, 0, None]
        if name.endswith("A_log"):
            return np.log(-parts[0])
        return super().whole(name, parts, config) if name.endswith("kv_b_proj.weight") else parts[0]


class Rwkv7:
    """How llama.cpp writes RWKV-7: the mixes of a layer in one tensor, biases of low-rank layers apart."""

    def joined(self, weights):
        """The mixes of each layer, and the names that they have in transformers."""
        names = [name for name in weights if ".attn.x_" in name]
        layers = sorted({int(name.split(".")[2]) for name in names})
        mixes = {layer: [weights[f"model.layers.{layer}.attn.x_{of}"] for of in "rwkvag"] for layer in layers}
        return {f"blk.{layer}.time_mix_lerp_fused.weight": np.stack(mix) for layer, mix in mixes.items()}, names

    def parts(self, name, value, config):
        other = name.replace(".attn.", ".attention.").replace(".ffn.", ".feed_forward.").replace("attn_norm", "ln1")
        other = other.replace("ffn_norm", "ln2").replace("g_norm", "ln_x")
        other = other.replace("_lora.lora.0.weight", "1.weight").replace("_lora.lora.2.weight", "2.weight")
        other = other.replace("_lora.lora.2.bias", "0.weight")
        if other.endswith("r_k"):
            return [(other, value.reshape(-1))]
        return [(other, value.squeeze())]

    def whole(self, name, parts, config):
        return parts[0].reshape(-1, config.head_dim) if name.endswith("r_k") else parts[0]


GEMMA4_KEYS = {
    ".attention.sliding_window": WINDOW,
    ".rope.freq_base": 10_000.0,
    ".rope.freq_base_swa": 1_000.0,
    ".rope.dimension_count": 16,
    ".rope.dimension_count_swa": 8,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 64,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
    "logits_scaling": 0.5,
}
MAMBA_KEYS = {
    ".ssm.conv_kernel": 4,
    ".ssm.state_size": 12,
    ".ssm.group_count": 2,
    ".ssm.time_step_rank": 4,
    ".ssm.inner_size": 64,
    ".rope.scaling.finetuned": False,
    ".embedding_scale": 12.0,
    ".residual_scale": 0.22,
    ".attention.scale": 0.3,
    ".logit_scale": 0.5,
}
FALCON = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_chunk_size": 16}
FALCON_KEYS = {
    ".ssm.conv_kernel": 4,
    ".ssm.state_size": 12,
    ".ssm.time_step_rank": 4,
    ".ssm.inner_size": 64,
}
FALCON_DENSE = ("conv1d", "ssm_a", "ssm_d", "ssm_norm")
SELECTIVE_KEYS = {
    ".ssm.conv_kernel": 4,
    ".ssm.state_size": 16,
    ".ssm.inner_size": 64,
    ".ssm.time_step_rank": 8,
    ".attention.head_count": 0,
    ".attention.layer_norm_rms_epsilon": EPS,
    ".context_length": 2**20,
}
SELECTIVE_DENSE = ("conv1d", "ssm_dt", "ssm_x", "ssm_a", "ssm_d")
DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
DELTA_KEYS = {
    ".ssm.conv_kernel": 4,
    ".ssm.state_size": 12,
    ".ssm.group_count": 2,
    ".ssm.time_step_rank": 4,
    ".ssm.inner_size": 64,
    ".full_attention_interval": 2,
    ".rope.dimension_count": 8,
}
PARTIAL = {"rope_parameters": rope(1_000.0, partial_rotary_factor=0.25)}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": WINDOW, "rms_norm_eps": EPS}
WINDOWS = {
    "no window": {"sliding_window": 200},
    "a window one token wider": {"sliding_window": WINDOW + 1},
    "a window one token narrower": {"sliding_window": WINDOW - 1},
}
LATENT = {
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
}
LATENT_KEYS = {
    ".attention.head_count_kv": 1,
    ".attention.kv_lora_rank": 24,
    ".attention.key_length": 32,
    ".attention.value_length": 24,
    ".attention.key_length_mla": 20,
    ".attention.value_length_mla": 10,
    ".rope.dimension_count": 8,
    ".leading_dense_block_count": 1,
    ".expert_shared_count": 2,
    ".vocab_size": 128,
}
LATENT_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
# Matrices whose rows are no whole blocks.
LATENT_DENSE = ("ffn_gate_inp", "attn_q_b", "attn_k_b", "attn_v_b", "attn_output")
CORRECTED = {"e_score_correction_bias": "e_score_correction.bias"}
THETA = {"rope_parameters": rope(10_000.0)}
HEADS = {".attention.key_length": 16, ".attention.value_length": 16}

VARIANTS = [
    Variant(
        "gemma2",
        81,
        transformers.Gemma2Config(
            **sizes(**GEMMA), final_logit_softcapping=8.0, attn_logit_softcapping=6.0, rope_parameters=rope(1_000.0)
        ),
        {
            "rope theta": THETA,
            "norm epsilon": NORM,
            "final softcap": {"final_logit_softcapping": None},
            "attention softcap": {"attn_logit_softcapping": None},
            "attention scale": {"query_pre_attn_scalar": 16},
            **WINDOWS,
        },
        distinct=2,
    ),
    # As published: the scale of scores follows from the heads.
    Variant(
        "gemma2_plain",
        82,
        transformers.Gemma2Config(**sizes(**GEMMA | {"query_pre_attn_scalar": 16}), rope_parameters=rope(1_000.0)),
        WINDOWS,
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.GEMMA2,
            HEADS
            | {
                ".attention.sliding_window": WINDOW,
                ".attn_logit_softcapping": 50.0,
                ".final_logit_softcapping": 30.0,
            },
            norm_offset=1.0,
        ),
    ),
    # The rotation of the whole context is stretched, that of windows is not.
    Variant(
        "gemma3",
        83,
        transformers.Gemma3TextConfig(
            **sizes(layers=3, **GEMMA | {"query_pre_attn_scalar": 16}),
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": rope(1_000.0),
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100_000.0},
            },
        ),
        WINDOWS,
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.GEMMA3,
            HEADS
            | {
                ".attention.sliding_window": WINDOW,
                ".attention.sliding_window_pattern": [True, True, False],
                ".rope.freq_base_swa": 1_000.0,
                ".rope.scaling.type": "linear",
                ".rope.scaling.factor": 8.0,
            },
            norm_offset=1.0,
        ),
    ),
    # Windows and wide heads, layers that read what others remember, and vectors of a token's own.
    Variant(
        "gemma4",
        327,
        transformers.Gemma4TextConfig(
            **sizes(layers=4, head_dim=8, sliding_window=WINDOW, rms_norm_eps=EPS) | {"intermediate_size": 32},
            global_head_dim=16,
            vocab_size_per_layer_input=128,
            hidden_size_per_layer_input=32,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            final_logit_softcapping=8.0,
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters={
                "sliding_attention": rope(1_000.0),
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 10_000.0},
            },
        ),
        WINDOWS | {"norm epsilon": NORM, "final softcap": {"final_logit_softcapping": None}},
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.GEMMA4,
            GEMMA4_KEYS
            | {
                ".attention.key_length": 16,
                ".attention.key_length_swa": 8,
                ".attention.shared_kv_layers": 2,
                ".embedding_length_per_layer_input": 32,
                ".feed_forward_length": [32, 32, 64, 64],
                ".attention.sliding_window_pattern": [True, False, True, False],
                ".final_logit_softcapping": 8.0,
            },
            codec=Gemma4(),
            extra={"rope_freqs.weight": [1.0] * 4 + [1e30] * 4},
        ),
    ),
    # Keys that are values too, and experts beside the block that all tokens share.
    Variant(
        "gemma4_moe",
        321,
        transformers.Gemma4TextConfig(
            **sizes(head_dim=8, sliding_window=WINDOW, rms_norm_eps=EPS),
            global_head_dim=16,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=6,
            top_k_experts=2,
            moe_intermediate_size=32,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": rope(1_000.0),
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10_000.0},
            },
        ),
        WINDOWS | {"three experts": {"top_k_experts": 3}},
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.GEMMA4,
            GEMMA4_KEYS
            | moe()
            | {
                ".attention.key_length": 16,
                ".attention.key_length_swa": 8,
                ".attention.head_count_kv": [2, 1],
                ".attention.sliding_window_pattern": [True, False],
                ".embedding_length_per_layer_input": 0,
            },
            codec=Gemma4(),
            extra={"rope_freqs.weight": [1.0] * 2 + [1e30] * 6},
        ),
    ),
    Variant(
        "qwen3",
        84,
        transformers.Qwen3Config(**sizes(head_dim=16, rms_norm_eps=EPS), rope_parameters=rope(1_000.0)),
        {"rope theta": THETA, "norm epsilon": NORM},
        gguf=Gguf(gguf.MODEL_ARCH.QWEN3, HEADS),
    ),
    # Shared experts behind a gate of their own, weights that do not add up to one, and a dense layer.
    Variant(
        "qwen2_moe",
        85,
        transformers.Qwen2MoeConfig(
            **sizes(rms_norm_eps=EPS, moe_intermediate_size=32, shared_expert_intermediate_size=64),
            num_experts=6,
            num_experts_per_tok=2,
            rope_parameters=rope(1_000.0),
        ),
        {"renormalised": {"norm_topk_prob": True}, "three experts": {"num_experts_per_tok": 3}},
        gguf=Gguf(gguf.MODEL_ARCH.QWEN2MOE, moe() | {".expert_shared_feed_forward_length": 64}),
    ),
    Variant(
        "qwen2_moe_mixed",
        86,
        transformers.Qwen2MoeConfig(
            **sizes(rms_norm_eps=EPS, moe_intermediate_size=32, shared_expert_intermediate_size=32, layers=3),
            num_experts=4,
            num_experts_per_tok=2,
            mlp_only_layers=[1],
            rope_parameters=rope(1_000.0),
        ),
        {"renormalised": {"norm_topk_prob": True}},
    ),
    Variant(
        "qwen3_moe",
        87,
        transformers.Qwen3MoeConfig(
            **sizes(rms_norm_eps=EPS, moe_intermediate_size=32, head_dim=16),
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            rope_parameters=rope(1_000.0),
        ),
        {"not renormalised": {"norm_topk_prob": False}, "three experts": {"num_experts_per_tok": 3}},
        gguf=Gguf(gguf.MODEL_ARCH.QWEN3MOE, moe() | HEADS),
    ),
    # Gated delta nets beside gated attention, all with experts.
    Variant(
        "qwen3_next",
        303,
        transformers.Qwen3NextConfig(
            **sizes(layers=2, head_dim=16, rms_norm_eps=EPS),
            **DELTA,
            layer_types=["linear_attention", "full_attention"],
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            rope_parameters=rope(1_000.0, partial_rotary_factor=0.5),
        ),
        {"a quarter of the head rotated": PARTIAL, "norm epsilon": NORM, "not renormalised": {"norm_topk_prob": False}},
        gguf=Gguf(
            gguf.MODEL_ARCH.QWEN3NEXT,
            moe() | HEADS | DELTA_KEYS | {".expert_shared_feed_forward_length": 32},
            codec=DeltaNet(turned=False),
        ),
    ),
    # Dense, and its projections apart.
    Variant(
        "qwen3_5",
        302,
        transformers.Qwen3_5TextConfig(
            **sizes(layers=3, head_dim=16, rms_norm_eps=EPS),
            **DELTA,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            rope_parameters=rope(1_000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True),
        ),
        {"a quarter of the head rotated": PARTIAL, "norm epsilon": NORM},
        gguf=Gguf(gguf.MODEL_ARCH.QWEN35, HEADS | DELTA_KEYS, codec=DeltaNet(turned=True)),
    ),
    Variant(
        "qwen3_5_moe",
        303,
        transformers.Qwen3_5MoeTextConfig(
            **{key: value for key, value in sizes(layers=2, head_dim=16, rms_norm_eps=EPS).items() if key != "intermediate_size"},
            **DELTA,
            layer_types=["linear_attention", "full_attention"],
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            rope_parameters=rope(1_000.0, partial_rotary_factor=0.5),
        ),
        {"a quarter of the head rotated": PARTIAL, "three experts": {"num_experts_per_tok": 3}},
        gguf=Gguf(
            gguf.MODEL_ARCH.QWEN35MOE,
            moe() | HEADS | DELTA_KEYS | {".expert_shared_feed_forward_length": 32},
            codec=DeltaNet(turned=True),
        ),
    ),
    # llama.cpp calls it `llama`.
    Variant(
        "mixtral",
        88,
        transformers.MixtralConfig(
            **sizes(rms_norm_eps=EPS, head_dim=8, sliding_window=None),
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters=rope(1_000.0),
        ),
        {"three experts": {"num_experts_per_tok": 3}},
        gguf=Gguf(gguf.MODEL_ARCH.LLAMA, {".expert_count": 4, ".expert_used_count": 2}, permuted=True),
    ),
    Variant(
        "olmoe",
        89,
        transformers.OlmoeConfig(
            **sizes(rms_norm_eps=EPS) | {"intermediate_size": 32},
            num_experts=6,
            num_experts_per_tok=2,
            clip_qkv=1.5,
            rope_parameters=rope(1_000.0),
        ),
        {"renormalised": {"norm_topk_prob": True}, "unclipped": {"clip_qkv": None}},
        gguf=Gguf(gguf.MODEL_ARCH.OLMOE, moe() | {".attention.clamp_kqv": 1.5}),
    ),
    Variant(
        "phimoe",
        90,
        transformers.PhimoeConfig(
            **sizes(rms_norm_eps=EPS) | {"intermediate_size": 32},
            num_local_experts=6,
            num_experts_per_tok=2,
            router_jitter_noise=0.3,
            sliding_window=None,
            attention_bias=True,
            lm_head_bias=True,
            rope_parameters=rope(1_000.0),
        ),
        {"jitter": {"router_jitter_noise": 0.01}},
    ),
    # Sinks, windows in every other layer, biases, a clamped gate.
    Variant(
        "gpt_oss",
        91,
        transformers.GptOssConfig(
            **sizes(rms_norm_eps=EPS, head_dim=16, sliding_window=WINDOW) | {"intermediate_size": 32},
            num_local_experts=6,
            num_experts_per_tok=2,
            swiglu_limit=1.0,
            rope_parameters=rope(
                10_000.0,
                rope_type="yarn",
                factor=8.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=32,
            ),
        ),
        WINDOWS | {"another limit": {"swiglu_limit": 7.0}},
    ),
    # The values of published models, as GGUF files do not say them.
    Variant(
        "gpt_oss_plain",
        97,
        transformers.GptOssConfig(
            **sizes(rms_norm_eps=EPS, head_dim=32, sliding_window=WINDOW) | {"intermediate_size": 32},
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters=rope(
                10_000.0,
                rope_type="yarn",
                factor=8.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=64,
            ),
        ),
        WINDOWS,
        gguf=Gguf(
            gguf.MODEL_ARCH.GPT_OSS,
            moe(4)
            | {
                ".attention.key_length": 32,
                ".attention.value_length": 32,
                ".attention.sliding_window": WINDOW,
                ".rope.scaling.type": "yarn",
                ".rope.scaling.factor": 8.0,
                ".rope.scaling.original_context_length": 64,
            },
            rename={"mlp.experts.gate_proj_bias": "mlp.experts.gate_proj.bias", "mlp.experts.up_proj_bias": "mlp.experts.up_proj.bias"}
            | {"mlp.experts.down_proj_bias": "mlp.experts.down_proj.bias"},
        ),
    ),
    # A quarter of each head rotated in neighbouring pairs, norms before and after.
    Variant(
        "glm4",
        92,
        transformers.Glm4Config(
            **sizes(head_dim=16, rms_norm_eps=EPS),
            attention_bias=True,
            rope_parameters=rope(1_000.0, partial_rotary_factor=0.5),
        ),
        {"the whole head rotated": {"rope_parameters": rope(1_000.0, partial_rotary_factor=1.0)}, "norm epsilon": NORM},
        gguf=Gguf(gguf.MODEL_ARCH.GLM4, HEADS | {".rope.dimension_count": 8}),
    ),
    # Sigmoid scores that are corrected for the choice, two of three groups of experts, a shared expert, one dense layer.
    Variant(
        "glm4_moe",
        198,
        transformers.Glm4MoeConfig(
            **sizes(rms_norm_eps=EPS, head_dim=16, moe_intermediate_size=32, layers=3),
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.5,
            use_qk_norm=True,
            attention_bias=True,
            rope_parameters=rope(1_000.0, partial_rotary_factor=0.5),
        ),
        {
            "not renormalised": {"norm_topk_prob": False},
            "all groups": {"topk_group": 3},
            "no factor": {"routed_scaling_factor": 1.0},
            "the whole head rotated": {"rope_parameters": rope(1_000.0, partial_rotary_factor=1.0)},
        },
        gguf=Gguf(
            gguf.MODEL_ARCH.GLM4_MOE,
            HEADS
            | moe()
            | {
                ".rope.dimension_count": 8,
                ".expert_shared_count": 1,
                ".expert_group_count": 3,
                ".expert_group_used_count": 2,
                ".expert_weights_scale": 1.5,
                ".expert_weights_norm": True,
                ".leading_dense_block_count": 1,
            },
            rename={"e_score_correction_bias": "e_score_correction.bias"},
        ),
    ),
    Variant(
        "granite",
        93,
        transformers.GraniteConfig(
            **sizes(rms_norm_eps=EPS),
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.3,
            logits_scaling=0.5,
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA},
        gguf=Gguf(
            gguf.MODEL_ARCH.GRANITE,
            {".embedding_scale": 12.0, ".residual_scale": 0.22, ".attention.scale": 0.3, ".logit_scale": 0.5},
            permuted=True,
        ),
    ),
    Variant(
        "granitemoe",
        94,
        transformers.GraniteMoeConfig(
            **sizes(rms_norm_eps=EPS) | {"intermediate_size": 32},
            num_local_experts=6,
            num_experts_per_tok=2,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.3,
            logits_scaling=0.5,
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA},
        gguf=Gguf(
            gguf.MODEL_ARCH.GRANITE_MOE,
            {".embedding_scale": 12.0, ".residual_scale": 0.22, ".attention.scale": 0.3, ".logit_scale": 0.5}
            | {".expert_count": 6, ".expert_used_count": 2},
            permuted=True,
            rename={"block_sparse_moe.experts": "mlp.experts", "block_sparse_moe.router": "mlp.gate"},
        ),
    ),
    # State spaces beside attention that knows no positions, and experts beside a block that all tokens share.
    Variant(
        "granite_hybrid",
        310,
        transformers.GraniteMoeHybridConfig(
            **sizes(layers=2, rms_norm_eps=EPS) | {"intermediate_size": 32},
            **MAMBA,
            layer_types=["linear_attention", "full_attention"],
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters=rope(1_000.0),
        ),
        {"norm epsilon": NORM},
        gguf=Gguf(
            gguf.MODEL_ARCH.GRANITE_HYBRID,
            MAMBA_KEYS
            | {".attention.head_count_kv": [0, 2], ".expert_count": 4, ".expert_used_count": 2}
            | {".expert_shared_feed_forward_length": 64},
            permuted=True,
            rename={"block_sparse_moe.experts": "mlp.experts", "block_sparse_moe.router": "mlp.gate"},
            dense=("ffn_gate_inp", "conv1d", "ssm_a", "ssm_d", "ssm_norm"),
            codec=StateSpace(),
        ),
    ),
    # Without experts.
    Variant(
        "granite_hybrid_dense",
        311,
        transformers.GraniteMoeHybridConfig(
            **sizes(layers=3, rms_norm_eps=EPS),
            **MAMBA | {"shared_intermediate_size": 32},
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_local_experts=0,
            time_step_limit=[0.1, 0.2],
            rope_parameters=rope(1_000.0),
        ),
        {"norm epsilon": NORM, "steps of any length": {"time_step_limit": (0.0, float("inf"))}},
    ),
    # Without state spaces, and with positions.
    Variant(
        "granite_hybrid_rotated",
        312,
        transformers.GraniteMoeHybridConfig(
            **sizes(layers=2, rms_norm_eps=EPS),
            **MAMBA,
            layer_types=["full_attention", "full_attention"],
            num_local_experts=0,
            position_embedding_type="rope",
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA, "no positions": {"position_embedding_type": None}},
    ),
    # Layers that each do one thing; experts without gates.
    Variant(
        "nemotron_h",
        341,
        transformers.NemotronHConfig(
            **{key: value for key, value in sizes(head_dim=16).items() if key not in ("num_hidden_layers", "num_experts")},
            layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
            layer_norm_epsilon=EPS,
            ssm_state_size=12,
            mamba_num_heads=4,
            mamba_head_dim=16,
            n_groups=2,
            chunk_size=16,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=64,
            routed_scaling_factor=1.5,
        ),
        {
            "norm epsilon": {"layer_norm_epsilon": 1e-5},
            "no factor": {"routed_scaling_factor": 1.0},
            "no shortest step": {"time_step_min": 1e-12},
        },
        gguf=Gguf(
            gguf.MODEL_ARCH.NEMOTRON_H_MOE,
            {key: value for key, value in MAMBA_KEYS.items() if "scal" not in key}
            | moe()
            | HEADS
            | {
                ".attention.head_count_kv": [0, 0, 2, 0],
                ".feed_forward_length": [0, 0, 0, 64],
                ".expert_shared_feed_forward_length": 64,
                ".expert_shared_count": 1,
                ".expert_weights_norm": True,
                ".expert_weights_scale": 1.5,
                ".attention.layer_norm_rms_epsilon": EPS,
            },
            rename={"e_score_correction_bias": "e_score_correction.bias"},
            dense=("ffn_gate_inp", "conv1d", "ssm_a", "ssm_d", "ssm_norm"),
            codec=NemotronH(),
        ),
    ),
    # State spaces and attention side by side, without a norm as published, and multipliers everywhere.
    Variant(
        "falcon_h1",
        350,
        transformers.FalconH1Config(
            **sizes(rms_norm_eps=EPS, head_dim=16),
            **FALCON,
            mamba_n_groups=1,
            embedding_multiplier=5.0,
            lm_head_multiplier=1.4,
            key_multiplier=1.3,
            attention_in_multiplier=0.9,
            attention_out_multiplier=0.8,
            ssm_in_multiplier=1.25,
            ssm_out_multiplier=0.7,
            ssm_multipliers=[1.3, 0.8, 1.4, 0.7, 1.2],
            mlp_multipliers=[1.2, 0.9],
            rope_parameters=rope(1_000.0),
        ),
        {
            "rope theta": THETA,
            "norm epsilon": NORM,
            "keys as they are": {"key_multiplier": 1.0},
            "embeddings as they are": {"embedding_multiplier": 1.0},
            "logits as they are": {"lm_head_multiplier": 1.0},
            "attention of the norm itself": {"attention_in_multiplier": 1.0},
            "attention as it is": {"attention_out_multiplier": 1.0},
            "states of the norm itself": {"ssm_in_multiplier": 1.0},
            "states as they are": {"ssm_out_multiplier": 1.0},
            "parts of states exchanged": {"ssm_multipliers": [0.8, 1.3, 0.7, 1.4, 1.2]},
            "steps as they are": {"ssm_multipliers": [1.3, 0.8, 1.4, 0.7, 1.0]},
            "blocks exchanged": {"mlp_multipliers": [0.9, 1.2]},
        },
        gguf=Gguf(gguf.MODEL_ARCH.FALCON_H1, HEADS | FALCON_KEYS | {".ssm.group_count": 1}, dense=FALCON_DENSE, codec=FalconH1()),
    ),
    # With a norm of what was gated.
    Variant(
        "falcon_h1_normed",
        351,
        transformers.FalconH1Config(
            **sizes(rms_norm_eps=EPS),
            **FALCON,
            mamba_n_groups=2,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            rope_parameters=rope(1_000.0),
        ),
        {"norm epsilon": NORM, "norm before the gate": {"mamba_norm_before_gate": True}},
        gguf=Gguf(gguf.MODEL_ARCH.FALCON_H1, FALCON_KEYS | {".ssm.group_count": 2}, dense=FALCON_DENSE, codec=FalconH1()),
    ),
    # With a norm of what is gated, and biases.
    Variant(
        "falcon_h1_biased",
        352,
        transformers.FalconH1Config(
            **sizes(rms_norm_eps=EPS),
            **FALCON,
            mamba_n_groups=2,
            mamba_rms_norm=True,
            mamba_norm_before_gate=True,
            mamba_proj_bias=True,
            projectors_bias=True,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=rope(1_000.0),
        ),
        {"norm epsilon": NORM, "norm after the gate": {"mamba_norm_before_gate": False}},
    ),
    # Nothing but state spaces.
    Variant(
        "mamba2",
        353,
        transformers.Mamba2Config(
            vocab_size=128,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=16,
            state_size=12,
            n_groups=2,
            chunk_size=16,
            layer_norm_epsilon=EPS,
            bos_token_id=BOS,
            eos_token_id=1,
            pad_token_id=None,
        ),
        {"norm epsilon": {"layer_norm_epsilon": 1e-5}, "steps within limits": {"time_step_limit": (0.1, 0.2)}},
        gguf=Gguf(
            gguf.MODEL_ARCH.MAMBA2,
            {key: value for key, value in MAMBA_KEYS.items() if key.startswith(".ssm")}
            | {".attention.head_count": 0, ".attention.layer_norm_rms_epsilon": EPS, ".context_length": 2**20},
            dense=("conv1d", "ssm_a", "ssm_d", "ssm_norm"),
            codec=NemotronH(),
        ),
    ),
    # Tied, with biases, and steps within limits.
    Variant(
        "mamba2_tied",
        354,
        transformers.Mamba2Config(
            vocab_size=128,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=16,
            state_size=12,
            n_groups=1,
            chunk_size=16,
            use_bias=True,
            time_step_limit=[0.05, 0.2],
            layer_norm_epsilon=EPS,
            bos_token_id=BOS,
            eos_token_id=1,
            pad_token_id=None,
            tie_word_embeddings=True,
        ),
        {"steps of any length": {"time_step_limit": (0.0, float("inf"))}},
        distinct=2,
    ),
    # Other sizes than published ones.
    Variant(
        "mamba",
        361,
        transformers.MambaConfig(
            vocab_size=128,
            hidden_size=32,
            num_hidden_layers=2,
            state_size=12,
            conv_kernel=3,
            expand=3,
            time_step_rank=8,
            layer_norm_epsilon=EPS,
            bos_token_id=BOS,
            eos_token_id=1,
            pad_token_id=None,
        ),
        {"norm epsilon": {"layer_norm_epsilon": 1e-5}},
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.MAMBA,
            SELECTIVE_KEYS | {".ssm.conv_kernel": 3, ".ssm.inner_size": 96, ".ssm.state_size": 12},
            dense=SELECTIVE_DENSE,
            codec=Selective(),
        ),
    ),
    # What is selected is normalized first, and the output has weights of its own.
    Variant(
        "falcon_mamba",
        362,
        transformers.FalconMambaConfig(
            vocab_size=128,
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=64,
            time_step_rank=8,
            layer_norm_epsilon=EPS,
            mixer_rms_eps=EPS,
            tie_word_embeddings=False,
            bos_token_id=BOS,
            eos_token_id=1,
            pad_token_id=None,
        ),
        {"norm epsilon": {"mixer_rms_eps": 1e-6}},
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.MAMBA,
            SELECTIVE_KEYS | {".ssm.dt_b_c_rms": True},
            dense=SELECTIVE_DENSE,
            codec=Selective(),
        ),
    ),
    # Few layers attend, without positions, and every second one has experts.
    Variant(
        "jamba",
        369,
        transformers.JambaConfig(
            **sizes(layers=4, rms_norm_eps=EPS),
            attn_layer_period=4,
            attn_layer_offset=2,
            num_experts=6,
            num_experts_per_tok=2,
            mamba_dt_rank=8,
        ),
        {"norm epsilon": NORM, "three experts": {"num_experts_per_tok": 3}},
        gguf=Gguf(
            gguf.MODEL_ARCH.JAMBA,
            SELECTIVE_KEYS
            | {
                ".expert_count": 6,
                ".expert_used_count": 2,
                ".attention.head_count": 4,
                ".attention.head_count_kv": [0, 0, 2, 0],
            },
            dense=("ffn_gate_inp", *SELECTIVE_DENSE),
            codec=Selective(),
        ),
    ),
    # Dense, tied, and with biases.
    Variant(
        "jamba_dense",
        364,
        transformers.JambaConfig(
            **sizes(layers=2, rms_norm_eps=EPS, tie_word_embeddings=True),
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=1,
            num_experts_per_tok=1,
            mamba_dt_rank=8,
            mamba_d_state=8,
            mamba_proj_bias=True,
        ),
        {"norm epsilon": NORM},
        distinct=2,
    ),
    # Delta nets whose keys fade channel by channel, and latent attention without positions.
    Variant(
        "kimi_linear",
        400,
        transformers.KimiLinearConfig(
            **sizes(layers=3, kv_heads=4, rms_norm_eps=EPS),
            **LATENT,
            num_local_experts=6,
            routed_scaling_factor=1.5,
            linear_head_dim=32,
            linear_num_heads=4,
            layer_types=["linear_attention", "linear_attention", "full_attention"],
            mlp_layer_types=["dense", "sparse", "sparse"],
        ),
        {
            "norm epsilon": NORM,
            "not renormalised": {"norm_topk_prob": False},
            "three experts": {"num_experts_per_tok": 3},
            "no factor": {"routed_scaling_factor": 1.0},
        },
        gguf=Gguf(
            gguf.MODEL_ARCH.KIMI_LINEAR,
            LATENT_KEYS
            | moe()
            | {
                ".attention.head_count_kv": [0, 0, 1],
                ".kda.head_dim": 32,
                ".ssm.conv_kernel": 4,
                ".expert_gating_func": 2,
                ".expert_weights_scale": 1.5,
            },
            rename=CORRECTED,
            dense=("conv1d", "ssm_a", *LATENT_DENSE),
            codec=Kimi(),
        ),
    ),
    # Matrices that change by the generalized delta rule.
    Variant(
        "rwkv7",
        378,
        rwkv7.RWKV7Config(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=96,
            num_hidden_layers=3,
            head_dim=16,
            decay_low_rank_dim=32,
            gate_low_rank_dim=64,
            a_low_rank_dim=32,
            v_low_rank_dim=32,
            norm_eps=EPS,
            bos_token_id=BOS,
            eos_token_id=1,
            pad_token_id=None,
        ),
        {"norm epsilon": {"norm_eps": 1e-5}},
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.RWKV7,
            {
                ".wkv.head_size": 16,
                ".attention.head_count": 0,
                ".attention.layer_norm_epsilon": EPS,
                ".feed_forward_length": 96,
                ".context_length": 2**20,
            },
            dense=("lerp", "time_mix_k_k", "time_mix_r_k", "time_mix_k_a"),
            codec=Rwkv7(),
        ),
    ),
    # Every second layer knows no positions.
    Variant(
        "smollm3",
        95,
        transformers.SmolLM3Config(
            **sizes(rms_norm_eps=EPS, layers=3), no_rope_layer_interval=2, rope_parameters=rope(1_000.0)
        ),
        {"rope theta": THETA},
    ),
    # Short convolutions but for one layer, whose inner width is cut and rounded.
    Variant(
        "lfm2",
        199,
        transformers.Lfm2Config(
            **sizes(layers=4),
            norm_eps=EPS,
            conv_L_cache=4,
            conv_bias=True,
            block_multiple_of=16,
            layer_types=["conv", "conv", "full_attention", "conv"],
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA, "norm epsilon": {"norm_eps": 1e-5}},
    ),
    # As published.
    Variant(
        "lfm2_plain",
        200,
        transformers.Lfm2Config(
            **sizes(layers=4) | {"intermediate_size": 96},
            norm_eps=EPS,
            block_multiple_of=16,
            layer_types=["conv", "full_attention", "conv", "conv"],
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA},
        gguf=Gguf(
            gguf.MODEL_ARCH.LFM2,
            {
                ".attention.head_count_kv": [0, 2, 0, 0],
                ".feed_forward_length": 64,
                ".shortconv.l_cache": 3,
                ".attention.layer_norm_rms_epsilon": EPS,
            },
            dense=("ffn_gate_inp", "conv1d", "shortconv.conv"),
        ),
    ),
    # Sigmoids that are corrected for the choice, but for the first layer.
    Variant(
        "lfm2_moe",
        355,
        transformers.Lfm2MoeConfig(
            **sizes(layers=4),
            norm_eps=EPS,
            moe_intermediate_size=32,
            num_experts=6,
            num_experts_per_tok=2,
            num_dense_layers=1,
            routed_scaling_factor=1.5,
            layer_types=["conv", "full_attention", "conv", "conv"],
            rope_parameters=rope(1_000.0),
        ),
        {
            "rope theta": THETA,
            "not renormalised": {"norm_topk_prob": False},
            "no factor": {"routed_scaling_factor": 1.0},
            "three experts": {"num_experts_per_tok": 3},
        },
        gguf=Gguf(
            gguf.MODEL_ARCH.LFM2MOE,
            moe()
            | {
                ".attention.head_count_kv": [0, 2, 0, 0],
                ".shortconv.l_cache": 3,
                ".leading_dense_block_count": 1,
                ".expert_gating_func": 2,
                ".expert_weights_scale": 1.5,
                ".attention.layer_norm_rms_epsilon": EPS,
            },
            rename={"expert_bias": "expert_bias.bias"},
            dense=("ffn_gate_inp", "conv1d", "shortconv.conv"),
        ),
    ),
    # Latent keys and values, from a latent of queries; groups of experts; YaRN that stretches scores too.
    Variant(
        "deepseek_v3",
        201,
        transformers.DeepseekV3Config(
            **sizes(rms_norm_eps=EPS, layers=3, kv_heads=4),
            **LATENT,
            q_lora_rank=24,
            first_k_dense_replace=1,
            n_routed_experts=6,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.5,
            rope_parameters=rope(1_000.0, mscale=1.0, mscale_all_dim=0.7, **LATENT_YARN),
        ),
        {
            "not renormalised": {"norm_topk_prob": False},
            "all groups": {"topk_group": 3},
            "no factor": {"routed_scaling_factor": 1.0},
            "halves rotated": {"rope_interleave": False},
        },
    ),
    # An indexer chooses the tokens that each one attends to: a third of the text.
    Variant(
        "deepseek_v32",
        208,
        transformers.DeepseekV32Config(
            **sizes(rms_norm_eps=EPS, layers=3, kv_heads=4),
            **LATENT,
            q_lora_rank=24,
            first_k_dense_replace=1,
            n_routed_experts=6,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.5,
            index_topk=24,
            index_n_heads=24,
            index_head_dim=12,
            rope_parameters=rope(1_000.0, mscale=1.0, mscale_all_dim=0.7, **LATENT_YARN),
        ),
        {
            "attends to all": {"index_topk": 72},
            "one token fewer": {"index_topk": 23},
            "all groups": {"topk_group": 3},
            "no factor": {"routed_scaling_factor": 1.0},
        },
    ),
    # As published: files in GGUF have one number for both scales.
    Variant(
        "deepseek_v3_plain",
        204,
        transformers.DeepseekV3Config(
            **sizes(rms_norm_eps=EPS, layers=2, kv_heads=4),
            **LATENT,
            q_lora_rank=24,
            first_k_dense_replace=1,
            n_routed_experts=6,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=2.5,
            rope_parameters=rope(1_000.0, mscale=0.8, mscale_all_dim=0.8, **LATENT_YARN),
        ),
        {"all groups": {"topk_group": 3}, "no factor": {"routed_scaling_factor": 1.0}},
        gguf=Gguf(
            gguf.MODEL_ARCH.DEEPSEEK2,
            LATENT_KEYS
            | moe()
            | {
                ".attention.q_lora_rank": 24,
                ".expert_gating_func": 2,
                ".expert_weights_norm": True,
                ".expert_weights_scale": 2.5,
                ".expert_group_count": 3,
                ".expert_group_used_count": 2,
                ".rope.scaling.type": "yarn",
                ".rope.scaling.factor": 4.0,
                ".rope.scaling.original_context_length": 64,
                ".rope.scaling.yarn_log_multiplier": 0.08,
            },
            rename=CORRECTED,
            dense=LATENT_DENSE,
            codec=Latents(),
        ),
    ),
    # Queries of their own, experts by softmax.
    Variant(
        "deepseek_v2",
        202,
        transformers.DeepseekV2Config(
            **sizes(rms_norm_eps=EPS, layers=3, kv_heads=4),
            **LATENT,
            q_lora_rank=None,
            first_k_dense_replace=1,
            n_routed_experts=6,
            n_group=3,
            topk_group=1,
            topk_method="group_limited_greedy",
            routed_scaling_factor=1.5,
            rope_parameters=rope(1_000.0),
        ),
        {"all experts": {"topk_method": "greedy"}, "no factor": {"routed_scaling_factor": 1.0}, "rope theta": THETA},
        gguf=Gguf(
            gguf.MODEL_ARCH.DEEPSEEK2,
            LATENT_KEYS
            | moe()
            | {".expert_weights_scale": 1.5, ".expert_group_count": 3, ".expert_group_used_count": 1},
            dense=LATENT_DENSE,
            codec=Latents(),
        ),
    ),
    Variant(
        "glm4_moe_lite",
        203,
        transformers.Glm4MoeLiteConfig(
            **sizes(rms_norm_eps=EPS, layers=2, kv_heads=4),
            **LATENT,
            q_lora_rank=24,
            n_routed_experts=6,
            rope_parameters=rope(1_000.0),
        ),
        {"no factor": {"routed_scaling_factor": 1.0}, "rope theta": THETA},
        gguf=Gguf(
            gguf.MODEL_ARCH.DEEPSEEK2,
            LATENT_KEYS
            | moe()
            | {".attention.q_lora_rank": 24, ".expert_weights_norm": True, ".expert_weights_scale": 1.8},
            rename=CORRECTED,
            dense=LATENT_DENSE,
            codec=Latents(),
        ),
    ),
    # Llama with biases.
    Variant(
        "seed_oss",
        330,
        transformers.SeedOssConfig(**sizes(head_dim=16, rms_norm_eps=EPS), rope_parameters=rope(1_000.0)),
        {"rope theta": THETA, "norm epsilon": NORM},
        gguf=Gguf(gguf.MODEL_ARCH.SEED_OSS, HEADS),
    ),
    # Windows with rotations and without either.
    Variant(
        "exaone4",
        331,
        transformers.Exaone4Config(
            **sizes(layers=3, rms_norm_eps=EPS, sliding_window=WINDOW),
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=rope(1_000.0),
        ),
        WINDOWS | {"rope theta": THETA, "norm epsilon": NORM},
        gguf=Gguf(
            gguf.MODEL_ARCH.EXAONE4,
            {
                ".attention.sliding_window": WINDOW,
                ".attention.sliding_window_pattern": [True, False, True],
            },
        ),
    ),
    # Without windows all layers rotate.
    Variant(
        "exaone4_full",
        332,
        transformers.Exaone4Config(
            **sizes(rms_norm_eps=EPS, sliding_window=None),
            layer_types=["full_attention"] * 2,
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA},
    ),
    Variant(
        "cohere2",
        333,
        transformers.Cohere2Config(
            **sizes(layers=4, sliding_window=WINDOW), layer_norm_eps=EPS, logit_scale=0.25, rope_parameters=rope(1_000.0)
        ),
        WINDOWS | {"rope theta": THETA, "norm epsilon": {"layer_norm_eps": 1e-5}, "no scale": {"logit_scale": 1.0}},
        distinct=2,
        gguf=Gguf(
            gguf.MODEL_ARCH.COHERE2,
            {".attention.sliding_window": WINDOW, ".logit_scale": 0.25, ".attention.layer_norm_epsilon": EPS},
        ),
    ),
    # Neighbours rotated.
    Variant(
        "ernie4_5",
        334,
        transformers.Ernie4_5Config(**sizes(head_dim=16, rms_norm_eps=EPS), rope_parameters=rope(1_000.0)),
        {"rope theta": THETA, "norm epsilon": NORM},
        gguf=Gguf(gguf.MODEL_ARCH.ERNIE4_5, HEADS),
    ),
    # With biases, also of an output layer that is the embedding.
    Variant(
        "ernie4_5_biased",
        356,
        transformers.Ernie4_5Config(
            **sizes(rms_norm_eps=EPS), use_bias=True, tie_word_embeddings=True, rope_parameters=rope(1_000.0)
        ),
        {"rope theta": THETA},
        distinct=2,
    ),
    # Scores that are corrected for the choice, shared experts, a dense layer.
    Variant(
        "ernie4_5_moe",
        335,
        transformers.Ernie4_5_MoeConfig(
            **sizes(rms_norm_eps=EPS),
            moe_intermediate_size=32,
            moe_k=2,
            moe_num_experts=6,
            moe_num_shared_experts=2,
            rope_parameters=rope(1_000.0),
        ),
        {"rope theta": THETA, "three experts": {"moe_k": 3}},
        gguf=Gguf(
            gguf.MODEL_ARCH.ERNIE4_5_MOE,
            moe() | {".leading_dense_block_count": 1, ".expert_shared_count": 2},
            rename={"mlp.gate.moe_statics.e_score_correction_bias": "mlp.moe_statics.e_score_correction.bias"},
        ),
    ),
    # Sigmoids that are corrected for the choice, half of each head rotated.
    Variant(
        "minimax_m2",
        338,
        transformers.MiniMaxM2Config(
            **sizes(head_dim=16, rms_norm_eps=EPS) | {"intermediate_size": 32},
            num_local_experts=6,
            num_experts_per_tok=2,
            rope_parameters=rope(1_000.0, partial_rotary_factor=0.5),
        ),
        {"the whole head rotated": {"rope_parameters": rope(1_000.0, partial_rotary_factor=1.0)}, "norm epsilon": NORM},
        gguf=Gguf(
            gguf.MODEL_ARCH.MINIMAXM2,
            moe() | HEADS | {".rope.dimension_count": 8},
            rename={"mlp.e_score_correction_bias": "block_sparse_moe.e_score_correction.bias"},
        ),
    ),
    Variant(
        "olmo2",
        96,
        transformers.Olmo2Config(**sizes(rms_norm_eps=EPS), rope_parameters=rope(1_000.0)),
        {"rope theta": THETA, "norm epsilon": NORM},
        gguf=Gguf(gguf.MODEL_ARCH.OLMO2),
    ),
]


def main():
    run(__doc__, "families", {variant.name: functools.partial(make, variant) for variant in VARIANTS})


def make(variant, root):
    """Writes the fixture's folder and returns its report, one line per finding."""
    variant.config._attn_implementation = "eager"
    variant.config._experts_implementation = "eager"

    def gguf_files(made):
        write_gguf(made.folder / "f32.gguf", variant, made.weights, Type.F32, made.vocabulary)
        yield "q8_0", write_gguf(made.folder / "q8_0.gguf", variant, made.weights, Type.Q8_0, made.vocabulary)

    return zoo.make_folder(variant, root, gguf_files if variant.gguf is not None else None)


def write_gguf(path, variant, weights, kind, vocabulary):
    """Writes the file, and returns the weights as it stores them, in transformers' terms."""
    how, config = variant.gguf, variant.config
    layout = Layout(how.arch, config, how.permuted)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[how.arch])
    writer.add_type("model")
    for key, value in (_common(config) | how.keys).items():
        _add(writer, key, value)
    _tokenizer(writer, vocabulary)
    for name, vector in how.extra.items():
        writer.add_tensor(name, np.array(vector, dtype=np.float32))
    stored = {}
    joined, names = how.codec.joined(weights) if hasattr(how.codec, "joined") else ({}, [])
    for name, value in joined.items():
        writer.add_tensor(name, value)
    for name, value in weights.items():
        if name in names:
            stored[name] = value
            continue
        turned = how.arch == gguf.MODEL_ARCH.GPT_OSS
        coded = how.codec and how.codec.parts(name, value, config)
        parts = coded or _parts(name, value, turned)
        written = []
        for part_name, part in parts:
            to = _gguf_name(layout, how, part_name)
            dense = part.ndim == 1 or to.endswith(".bias") or any(word in to for word in how.dense)
            part_kind = Type.F32 if dense else kind
            shift = how.norm_offset if part_name.endswith("norm.weight") else 0.0
            data = gguf.quants.quantize(layout.to_gguf(part_name, part + np.float32(shift)), part_kind)
            writer.add_tensor(to, np.ascontiguousarray(data), raw_dtype=part_kind)
            back = layout.to_hf(part_name, gguf.quants.dequantize(data, part_kind)).astype(np.float32)
            written.append(back.reshape(part.shape) - np.float32(shift))
        stored[name] = how.codec.whole(name, written, config) if coded else _whole(name, written, turned)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _common(config):
    parameters = getattr(config, "rope_parameters", None) or rope(10_000.0)
    parameters = parameters.get("full_attention", parameters)
    if not hasattr(config, "num_attention_heads"):
        return {
            ".embedding_length": config.hidden_size,
            ".block_count": config.num_hidden_layers,
            ".feed_forward_length": 0,
        }
    return {
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".block_count": config.num_hidden_layers,
        ".feed_forward_length": getattr(config, "intermediate_size", None) or config.moe_intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".attention.head_count_kv": config.to_dict()["num_key_value_heads"],
        ".attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", EPS),
        ".rope.freq_base": parameters["rope_theta"],
    }


def _add(writer, key, value):
    key = writer.arch + key if key.startswith(".") else key
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _parts(name, value, layout_is_transposed):
    """The tensors of llama.cpp that one of transformers' in memory is written as."""
    if layout_is_transposed:
        return _parts_of_gpt_oss(name, value)
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(value, 2, axis=1)
        return [(name.replace("gate_up_proj", "gate_proj"), gate), (name.replace("gate_up_proj", "up_proj"), up)]
    return [(name, value)]


def _parts_of_gpt_oss(name, value):
    """Its weights multiply from the other side, and gates and values take turns."""
    if "experts" not in name:
        return [(name, value)]
    value = value.swapaxes(1, 2) if value.ndim == 3 else value
    if "gate_up_proj" not in name:
        return [(name, value)]
    return [(name.replace("gate_up", part), value[:, start::2]) for start, part in enumerate(("gate", "up"))]


def _whole(name, parts, layout_is_transposed):
    if layout_is_transposed and "experts" in name:
        whole = np.stack(parts, axis=2).reshape(parts[0].shape[0], -1, *parts[0].shape[2:]) if len(parts) > 1 else parts[0]
        return np.ascontiguousarray(whole.swapaxes(1, 2)) if whole.ndim == 3 else whole
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def _gguf_name(layout, how, name):
    for part, other in how.rename.items():
        name = name.replace(part, other)
    if name.endswith(".scale"):
        return layout.map.get_name(name.removesuffix(".scale"), try_suffixes=()) + ".scale"
    found = layout.name(name) or layout.name(name + ".weight")
    assert found, f"{name} has no name in llama.cpp"
    if how.arch == gguf.MODEL_ARCH.FALCON_H1 and name.endswith("pre_ff_layernorm.weight"):
        return found.removesuffix(".weight")  # As its converter does.
    return found if found.endswith((".weight", ".bias", ".scale", ".ssm_a", ".ssm_d")) else found + ".weight"


if __name__ == "__main__":
    main()
