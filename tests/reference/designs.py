"""Fixtures of `examples/new-designs`: python tests/reference/designs.py [--out FOLDER]

Llama's layers and the hyper-connections are transformers' own modules. The n-gram memory is written here from the paper
(arXiv 2601.07372, section 2), without its short convolution, as transformers has no model with one.
"""
import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import DeepseekV4Config, LlamaConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection, DeepseekV4HyperHead
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

FIXTURES = Path(__file__).parent.parent / "fixtures"
TOKENS = 72
GREEDY = 16
# A top-two margin below this would make greedy generation depend on rounding.
MARGIN = 0.02
FACTORS = [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F]

LLAMA = LlamaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, rms_norm_eps=1e-3, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, attn_implementation="eager",
)


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.self_attn = LlamaAttention(LLAMA, layer)
        self.mlp = LlamaMLP(LLAMA)
        self.input_layernorm = LlamaRMSNorm(LLAMA.hidden_size, LLAMA.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(LLAMA.hidden_size, LLAMA.rms_norm_eps)

    def attend(self, x, angles, mask):
        return self.self_attn(self.input_layernorm(x), position_embeddings=angles, attention_mask=mask)[0]

    def feed_forward(self, x):
        return self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Embedding, blocks, norm and head, named as in checkpoints."""

    def __init__(self, blocks, **others):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(LLAMA.vocab_size, LLAMA.hidden_size)
        self.model.layers = nn.ModuleList(blocks)
        self.model.norm = LlamaRMSNorm(LLAMA.hidden_size, LLAMA.rms_norm_eps)
        for name, module in others.items():
            setattr(self.model, name, module)
        self.lm_head = nn.Linear(LLAMA.hidden_size, LLAMA.vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(LLAMA)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)[None]
        positions = torch.arange(len(tokens))[None]
        mask = torch.full((len(tokens), len(tokens)), -math.inf, dtype=x.dtype).triu(1)[None, None]
        x = self.hidden(x, self.rotary(x, positions), mask, tokens)
        return self.lm_head(self.model.norm(x))[0]


class Streams(Model):
    CONFIG = {"hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6}

    def __init__(self):
        config = DeepseekV4Config(hidden_size=LLAMA.hidden_size, rms_norm_eps=LLAMA.rms_norm_eps, **self.CONFIG)
        blocks = []
        for layer in range(LLAMA.num_hidden_layers):
            block = Block(layer)
            block.attn_hc = DeepseekV4HyperConnection(config)
            block.ffn_hc = DeepseekV4HyperConnection(config)
            blocks.append(block)
        super().__init__(blocks, hc_head=DeepseekV4HyperHead(config))

    def hidden(self, x, angles, mask, _):
        streams = x.unsqueeze(2).expand(-1, -1, self.CONFIG["hc_mult"], -1).contiguous()
        for block in self.model.layers:
            for connections, half in [
                (block.attn_hc, lambda x: block.attend(x, angles, mask)),
                (block.ffn_hc, block.feed_forward),
            ]:
                post, comb, x = connections(streams)
                streams = post.unsqueeze(-1) * half(x).unsqueeze(-2) + comb.transpose(-1, -2) @ streams
        return self.model.hc_head(streams)


class Memory(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        width = LLAMA.hidden_size
        self.tables = nn.ModuleList(nn.Embedding(count, dim) for count in rows)
        self.key_proj = nn.Linear(len(rows) * dim, width, bias=False)
        self.value_proj = nn.Linear(len(rows) * dim, width, bias=False)
        self.query_norm = LlamaRMSNorm(width, LLAMA.rms_norm_eps)
        self.key_norm = LlamaRMSNorm(width, LLAMA.rms_norm_eps)

    def forward(self, x, tokens, ngram):
        text = [0] * (ngram - 1) + [int(token) + 1 for token in tokens]
        found, per_length = [], len(self.tables) // (ngram - 1)
        for index, table in enumerate(self.tables):
            length = index // per_length + 2
            ids = []
            for end in range(ngram - 1, len(text)):
                mixed = 0
                for back in range(length):
                    mixed ^= text[end - back] * FACTORS[back] % 2**64
                ids.append(mixed % table.num_embeddings)
            found.append(table(torch.tensor(ids)))
        found = torch.cat(found, dim=-1)[None]
        score = (self.query_norm(x) * self.key_norm(self.key_proj(found))).sum(-1, keepdim=True)
        return x + torch.sigmoid(score / math.sqrt(x.shape[-1])) * self.value_proj(found)


class Engram(Model):
    # Two hashes of each length.
    CONFIG = {"engram_layers": [1], "engram_ngram": 3, "engram_rows": [53, 59, 97, 101], "engram_dim": 8}

    def __init__(self):
        blocks = [Block(layer) for layer in range(LLAMA.num_hidden_layers)]
        for layer in self.CONFIG["engram_layers"]:
            blocks[layer].engram = Memory(self.CONFIG["engram_rows"], self.CONFIG["engram_dim"])
        super().__init__(blocks)

    def hidden(self, x, angles, mask, tokens):
        for block in self.model.layers:
            if hasattr(block, "engram"):
                x = block.engram(x, tokens, self.CONFIG["engram_ngram"])
            x = x + block.attend(x, angles, mask)
            x = x + block.feed_forward(x)
        return x


def randomize(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_((0.0 if name.endswith("base") else 1.0) + 0.4 * torch.randn_like(parameter))
            else:
                parameter.copy_(1.5 * torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
        model.model.embed_tokens.weight.mul_(4)


def write(name, model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    like = FIXTURES / "families" / "qwen3"
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
        shutil.copy(like / file, folder / file)
    config = LLAMA.to_dict() | model.CONFIG | {"architectures": [f"{type(model).__name__}ForCausalLM"], "model_type": name}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if not name.startswith("rotary.")}
    save_file(tensors, folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    tokens = torch.cat([torch.tensor([0]), torch.randint(2, LLAMA.vocab_size, (TOKENS - 1,), generator=generator)])
    with torch.no_grad():
        logits = model(tokens)
        greedy, text, margins = [], tokens[:8], []
        for _ in range(GREEDY):
            best = model(text)[-1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            greedy.append(int(best.indices[0]))
            text = torch.cat([text, best.indices[:1]])
        double = type(model)().double()
        double.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
        exact = (double(tokens) - logits.double()).abs().max()
    print(f"{name}: logits std {logits.std():.2f}, greedy margin {min(margins):.3f}, f32 within {exact:.1e} of double")
    if min(margins) < MARGIN or set(greedy) & {0, 1}:
        raise SystemExit(f"{name}: greedy generation is a near tie or ends: take another seed")
    save_file(
        {"tokens": tokens.to(torch.uint32), "logits": logits, "greedy": torch.tensor(greedy).to(torch.uint32)},
        folder / "reference.safetensors",
    )


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=FIXTURES / "designs")
    out = arguments.parse_args().out
    for name, kind, seed in [("engram", Engram, 11), ("streams", Streams, 12)]:
        model = kind().eval()
        randomize(model, seed)
        write(name, model, out / name)


if __name__ == "__main__":
    main()
