"""Reads the GGUF file back as a checkpoint, to train on from it: what was trained is in the tree once, not twice.

    python checkpoint.py --out build/model.pt

Where tokenizer.json has other pieces than the file, a new piece begins as the mean of the old ones that spell it.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import models

from export import NAME, TOKENIZER
from model import CONFIG


def halves(value, heads):
    """Hugging Face's order of the rows of q and k, out of GGUF's."""
    return value.reshape(heads, -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)


def weights(path, sharpness):
    """The tensors as training knows them, under Hugging Face's names."""
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, CONFIG["num_hidden_layers"])
    wanted = {names.get_name(name, try_suffixes=(".weight",)): name for name in _names()}
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = wanted[tensor.name]
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if ".q_proj." in name or ".k_proj." in name:
            value = halves(value, CONFIG["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"])
        found[name] = torch.from_numpy(np.array(value, np.float32))
    found["model.norm.weight"] /= sharpness
    found["model.embed_tokens.weight"] = moved(found["model.embed_tokens.weight"], path)
    return found


def moved(rows, path):
    """The embeddings of the file's tokenizer, for the pieces of tokenizer.json."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    old = {token: at for at, token in enumerate(fields["tokenizer.ggml.tokens"].contents())}
    new = json.loads(TOKENIZER.read_text())["model"]["vocab"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    spelling = models.BPE(vocab=old, merges=merges)
    out = torch.empty(len(new), rows.shape[1])
    for token, at in new.items():
        out[at] = rows[old[token]] if token in old else rows[[piece.id for piece in spelling.tokenize(token)]].mean(0)
    return out


def _names():
    from model import Starter

    with torch.device("meta"):
        return list(Starter(CONFIG).state_dict())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, default=Path(__file__).parent / f"{NAME}.gguf")
    parser.add_argument("--out", type=Path, default=Path("build/model.pt"))
    parser.add_argument("--sharpness", type=float, default=2.0, help="as it was exported")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights(args.gguf, args.sharpness), args.out)


if __name__ == "__main__":
    main()
