"""The network: Llama's, small, under Hugging Face's names, so that its weights load into transformers as they are."""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 6144, "hidden_size": 384, "intermediate_size": 896, "num_hidden_layers": 8, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float32",
}


class Packing:
    """Where documents lie in a row of tokens, and how long the longest may be."""

    def __init__(self, starts, longest):
        self.starts, self.longest = starts, longest


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def attend(q, k, v, packing):
    """Causal attention within each document."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, packing.starts, packing.starts, packing.longest, packing.longest, window_size=(-1, 0))
    bounds = packing.starts.tolist()
    out = []
    for low, high in zip(bounds, bounds[1:]):
        if high > low:
            part = [t[low:high].transpose(0, 1)[None] for t in (q, k, v)]
            out.append(F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(out)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, c["hidden_size"], bias=False)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])

    def before(self, x, cos, sin):
        a, h = self.self_attn, self.input_layernorm(x)
        q = a.q_proj(h).unflatten(-1, (a.heads, a.head_dim))
        k = a.k_proj(h).unflatten(-1, (a.kv_heads, a.head_dim))
        v = a.v_proj(h).unflatten(-1, (a.kv_heads, a.head_dim))
        return rotated(q, cos, sin).to(v.dtype), rotated(k, cos, sin).to(v.dtype), v

    def after(self, x, mixed):
        x = x + self.self_attn.o_proj(mixed.flatten(-2))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Starter(nn.Module):
    """The model over packed documents: (tokens) in, logits at chosen places out."""

    def __init__(self, config=None):
        super().__init__()
        self.config = c = config or CONFIG
        self.model = Body(c)
        depth = (2 * c["num_hidden_layers"]) ** -0.5
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02 * (depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0))
        self.before, self.after = Layer.before, Layer.after
        self.frequencies = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2, dtype=torch.float32) / c["head_dim"])

    def compile(self):
        """Compiles what surrounds attention, once for all lengths."""
        self.before, self.after = torch.compile(Layer.before), torch.compile(Layer.after)

    def forward(self, tokens, positions, packing, wanted):
        angles = positions.float()[:, None] * self.frequencies.to(tokens.device)
        angles = torch.cat((angles, angles), -1)[:, None]
        cos, sin = angles.cos(), angles.sin()
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            q, k, v = self.before(layer, x, cos, sin)
            x = self.after(layer, x, attend(q, k, v, packing))
        return F.linear(self.model.norm(x[wanted]), self.model.embed_tokens.weight)
