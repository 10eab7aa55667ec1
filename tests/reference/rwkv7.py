"""RWKV-7 (arXiv 2503.14456), which transformers does not have: written from the paper, one token after the other, for the
fixtures of its family. Weights are named as in the checkpoints that flash-linear-attention publishes, whose configuration it
reads.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class RWKV7Config(PreTrainedConfig):
    model_type = "rwkv7"

    vocab_size: int = 65536
    hidden_size: int = 2048
    intermediate_size: int | None = None
    num_hidden_layers: int = 24
    head_dim: int = 64
    decay_low_rank_dim: int = 64
    gate_low_rank_dim: int = 128
    a_low_rank_dim: int = 64
    v_low_rank_dim: int = 16
    norm_eps: float = 1e-5
    hidden_act: str = "sqrelu"
    tie_word_embeddings: bool = False


class LowRank(nn.Module):
    """Two layers with an activation between them, and a bias."""

    def __init__(self, config, rank, activation, bias=True):
        super().__init__()
        down = nn.Linear(config.hidden_size, rank, bias=False)
        self.lora = nn.Sequential(down, activation, nn.Linear(rank, config.hidden_size, bias=bias))

    def forward(self, x):
        return self.lora(x)


def before(x):
    """Each token's predecessor."""
    return F.pad(x, (0, 0, 1, -1))


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width = config.hidden_size
        self.head_dim, self.layer = config.head_dim, layer
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.empty(1, 1, width)))
        self.k_k, self.k_a = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.r_k = nn.Parameter(torch.empty(width // config.head_dim, config.head_dim))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.w_lora = LowRank(config, config.decay_low_rank_dim, nn.Tanh())
        self.a_lora = LowRank(config, config.a_low_rank_dim, nn.Identity())
        self.g_lora = LowRank(config, config.gate_low_rank_dim, nn.Sigmoid(), bias=False)
        if layer > 0:
            self.v_lora = LowRank(config, config.v_low_rank_dim, nn.Identity())
        self.g_norm = nn.GroupNorm(width // config.head_dim, width, eps=config.head_dim * config.norm_eps)

    def forward(self, x, v_first):
        heads = lambda x: x.unflatten(-1, (-1, self.head_dim))
        delta = before(x) - x
        xr, xw, xk, xv, xa, xg = (x + delta * getattr(self, f"x_{name}") for name in "rwkvag")
        r, k, v = self.r_proj(xr), self.k_proj(xk), self.v_proj(xv)
        if self.layer == 0:
            v_first = v
        else:
            v = v + (v_first - v) * self.v_lora(xv).sigmoid()
        decay = torch.exp(-torch.exp(torch.tensor(-0.5, dtype=x.dtype)) * self.w_lora(xw).sigmoid())
        a, g = self.a_lora(xa).sigmoid(), self.g_lora(xg)
        removed = F.normalize(heads(k * self.k_k), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, v, decay, a = (heads(x) for x in (r, k, v, decay, a))
        state = torch.zeros(*r.shape[:1], *r.shape[2:], self.head_dim, dtype=x.dtype)
        out = []
        for t in range(x.shape[1]):
            taken = torch.einsum("bhvk,bhk->bhv", state, removed[:, t])
            state = state * decay[:, t, :, None] - taken[..., None] * (removed * a)[:, t, :, None]
            state = state + v[:, t, :, :, None] * k[:, t, :, None]
            out.append(torch.einsum("bhvk,bhk->bhv", state, r[:, t]))
        out = torch.stack(out, dim=1).flatten(-2)
        out = self.g_norm(out.flatten(0, 1)).view_as(out)
        out = out + ((r * k * self.r_k).sum(-1, keepdim=True) * v).flatten(-2)
        return self.o_proj(out * g), v_first


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.x_k = nn.Parameter(torch.empty(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.value = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.value(self.key(x + (before(x) - x) * self.x_k).relu().square())


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        norm = lambda: nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        if layer == 0:
            self.pre_norm = norm()
        self.attn_norm, self.ffn_norm = norm(), norm()
        self.attn, self.ffn = Attention(config, layer), FeedForward(config)

    def forward(self, x, v_first):
        if hasattr(self, "pre_norm"):
            x = self.pre_norm(x)
        out, v_first = self.attn(self.attn_norm(x), v_first)
        x = x + out
        return x + self.ffn(self.ffn_norm(x)), v_first


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


class RWKV7ForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = RWKV7Config

    def __init__(self, config):
        super().__init__(config)
        self.model = Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, use_cache=None, **_):
        x, v_first = self.model.embeddings(input_ids), None
        for layer in self.model.layers:
            x, v_first = layer(x, v_first)
        return CausalLMOutput(logits=self.lm_head(self.model.norm(x)))


AutoConfig.register("rwkv7", RWKV7Config)
AutoModelForCausalLM.register(RWKV7Config, RWKV7ForCausalLM)
