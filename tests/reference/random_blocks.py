"""Random but valid quantized blocks, for formats that the gguf package can read and cannot write.

Every bit of a block means something, so random bytes with sane scales exercise a decoder harder than quantized
weights would: all quants, all sub-block scales and both signs of the block scale occur.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# Where the f16 scale lies in a block, where the f16 minimum lies, and the minimum (as a multiple of the scale) that
# puts the mean of random quants near zero.
_SCALES = {
    Type.Q4_0: (0, None, None),
    Type.Q4_1: (0, 2, -7.5),
    Type.Q5_0: (0, None, None),
    Type.Q5_1: (0, 2, -15.5),
    Type.Q8_0: (0, None, None),
    Type.Q2_K: (80, 82, 1.5),
    Type.Q3_K: (108, None, None),
    Type.Q4_K: (0, 2, 7.5),
    Type.Q5_K: (0, 2, 15.5),
    Type.Q6_K: (208, None, None),
    Type.IQ4_NL: (0, None, None),
    Type.IQ4_XS: (0, None, None),
    Type.IQ3_XXS: (0, None, None),
    Type.IQ3_S: (0, None, None),
    Type.IQ2_XXS: (0, None, None),
    Type.IQ2_XS: (0, None, None),
    Type.IQ2_S: (0, None, None),
    Type.IQ1_S: (0, None, None),
    Type.TQ1_0: (52, None, None),
    Type.TQ2_0: (64, None, None),
}


def random_blocks(kind, rows, cols, std, rng):
    """Bytes [rows, row bytes] that decode to values with about this standard deviation."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, size=(rows * cols // block_len, block_bytes), dtype=np.uint8)
    scales = rng.uniform(0.7, 1.3, len(blocks)) * rng.choice([-1.0, 1.0], len(blocks))
    _set_scales(blocks, kind, scales / 64)
    # Of a large matrix some blocks tell what all are like.
    found = gguf.quants.dequantize(blocks[:65536], kind).std()
    _set_scales(blocks, kind, scales / 64 * std / found)
    return blocks.reshape(rows, -1)


def _set_scales(blocks, kind, scales):
    if kind == Type.MXFP4:
        # A power of two, without a sign.
        blocks[:, 0] = np.round(np.log2(np.abs(scales))) + 127
        return
    if kind == Type.IQ1_M:
        # A quarter of the scale on top of each of the last four words.
        half = scales.astype("<f2").view("<u2")
        for part in range(4):
            nibble = (half >> (4 * part) & 15).astype(np.uint8)
            blocks[:, 49 + 2 * part] = blocks[:, 49 + 2 * part] & 15 | nibble << 4
        return
    scale_at, min_at, ratio = _SCALES[kind]
    blocks[:, scale_at : scale_at + 2] = _f16_bytes(scales)
    if min_at is not None:
        blocks[:, min_at : min_at + 2] = _f16_bytes(scales * ratio)


def _f16_bytes(values):
    return values.astype(np.float16)[:, None].view(np.uint8)
