"""Tables and expected values of GGUF's quantized formats, out of the Python package `gguf`.

Two things are written. The grids of the IQ formats are facts that follow from no formula: each is a list of points, a point has
four or eight coordinates, and a coordinate is one of a few levels. They are stored as numbers of 16 bits, the levels' indices with
the first coordinate in the lowest bits, in `sdk/kernels/src/quant/grids.bin`. The second file has random blocks of every format, and
what the package makes of them.

    python tests/reference/quantized.py            # writes both
    python tests/reference/quantized.py --check    # fails if the package says anything else than the tree
"""

import argparse
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRIDS = ROOT / "sdk/kernels/src/quant/grids.bin"
BLOCKS = ROOT / "tests/fixtures/quantized/blocks.safetensors"

# In the order of the file.
GRID_TYPES = [Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S, Type.IQ1_S]

# Where blocks hold half-precision numbers. IQ1_M has its own in four parts, MXFP4 an exponent.
HALVES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
    Type.IQ3_XXS: [0],
    Type.IQ3_S: [0],
    Type.IQ2_XXS: [0],
    Type.IQ2_XS: [0],
    Type.IQ2_S: [0],
    Type.IQ1_S: [0],
    Type.IQ1_M: [],
    Type.TQ1_0: [52],
    Type.TQ2_0: [64],
    Type.MXFP4: [],
}
VALUES = 1024


def grids():
    parts = []
    for kind in GRID_TYPES:
        quant = gguf.quants._type_traits[kind]
        quant.init_grid()
        levels = np.array(quant.grid_map, dtype=np.float32)
        grid = quant.grid.reshape(quant.grid_shape)
        index = (grid[..., None] == levels).argmax(-1)
        assert (levels[index] == grid).all()
        bits = (len(levels) - 1).bit_length()
        packed = (index << (bits * np.arange(quant.grid_shape[1]))).sum(-1)
        parts.append(packed.astype("<u2"))
    return np.concatenate(parts).tobytes()


def random_blocks(kind, rng):
    """Every bit at random, but for the scales: those are numbers of moderate size."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, size=(VALUES // block_len, block_bytes), dtype=np.uint8)
    scales = lambda: rng.uniform(0.01, 0.1, len(blocks)) * rng.choice([-1.0, 1.0], len(blocks))
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = scales().astype("<f2")[:, None].view(np.uint8)
    if kind == Type.IQ1_M:
        half = scales().astype("<f2").view("<u2")
        for part in range(4):
            nibble = (half >> (4 * part) & 15).astype(np.uint8)
            blocks[:, 49 + 2 * part] = blocks[:, 49 + 2 * part] & 15 | nibble << 4
    if kind == Type.MXFP4:
        blocks[:, 0] = rng.integers(118, 128, len(blocks))
        # The ends of the scale: the smallest two are no normal numbers.
        blocks[:4, 0] = [0, 1, 2, 250]
    if kind == Type.TQ1_0:
        # Bytes are five digits of base three, scaled so that multiplication brings them to the top.
        digits = rng.integers(0, 3**5, size=(len(blocks), 48))
        blocks[:, :48] = (digits * 256 + 242) // 243
        digits = rng.integers(0, 3**4, size=(len(blocks), 4)) * 3
        blocks[:, 48:52] = (digits * 256 + 242) // 243
    if kind == Type.TQ2_0:
        pairs = rng.integers(0, 3, size=(len(blocks), 64, 4), dtype=np.uint8)
        blocks[:, :64] = (pairs << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(-1)
    return blocks


def blocks():
    tensors = {}
    for kind in HALVES:
        rng = np.random.default_rng(int(kind))
        stored = random_blocks(kind, rng)
        values = gguf.quants.dequantize(stored, kind).astype(np.float32).reshape(-1)
        assert np.isfinite(values).all(), kind.name
        tensors[f"{kind.name}.blocks"] = stored.reshape(-1)
        tensors[f"{kind.name}.values"] = values
    return save(tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    for path, content in ((GRIDS, grids()), (BLOCKS, blocks())):
        if arguments.check:
            assert path.read_bytes() == content, f"{path} differs"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        print(path.relative_to(ROOT), len(content), "bytes")


main()
