"""Reads the GGUF file back as a checkpoint, to train on from it: what was trained is in the tree once, not twice.

    python checkpoint.py --out build/model.pt
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from export import NAME
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
    return found


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
