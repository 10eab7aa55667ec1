"""Weights as the tools of Hugging Face folders pack them, with the values that they mean.

Each case draws codes, scales and zero points, computes the values by the definition of the format, and packs the codes as the tool
does: no tool's own code takes part. A case is a folder with `config.json` (which names the tool) and one file of tensors; the
values stand beside it in `expected.safetensors`.

    python tests/reference/packed.py
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/packed"
ROWS, COLS, GROUP = 16, 128, 32
GROUPS = COLS // GROUP
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
LAYER = "model.layers.0.mlp.up_proj"


def words(codes, bits, axis, order=None):
    """Packs codes into words of 32 bits along an axis, the first in the lowest bits."""
    count = 32 // bits
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, count)
    if order:
        codes = codes[..., order]
    packed = (codes << (bits * np.arange(count, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis)).view(np.int32)


def draw(rng, bits, zeros=None, scale=np.float16):
    """Codes [rows, cols], scales and zero points [rows, groups], and the values."""
    codes = rng.integers(0, 2**bits, size=(ROWS, COLS))
    scales = rng.uniform(0.001, 0.02, size=(ROWS, GROUPS)).astype(scale)
    if zeros is None:
        zeros = rng.integers(0, 2**bits, size=(ROWS, GROUPS))
    else:
        zeros = np.full((ROWS, GROUPS), zeros)
    group = np.arange(COLS) // GROUP
    return codes, scales, zeros, dequantized(codes, scales, zeros, group)


def dequantized(codes, scales, zeros, group):
    return scales.astype(np.float32)[:, group] * (codes - zeros[:, group]).astype(np.float32)


def bf16(values):
    """Rounded toward zero to what bfloat16 holds, still as float32."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def e4m3(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float64)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return (sign * size).astype(np.float32)


def e4m3_codes(rng, shape):
    codes = rng.integers(0, 256, size=shape, dtype=np.uint8)
    return np.where(codes & 0x7F == 0x7F, 0x3A, codes).astype(np.uint8)


def write(name, quantization, tensors, expected):
    folder = ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": COLS, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    norm = {"model.norm.weight": np.ones(4, dtype=np.float32)}
    save(folder / "model.safetensors", tensors | norm)
    save_file({key: np.ascontiguousarray(value) for key, value in expected.items()}, folder / "expected.safetensors")


def save(path, tensors):
    """Like safetensors' own, and with types that numpy does not know: `(bytes, type)`."""
    header, data = {}, b""
    names = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8"}
    for name, value in tensors.items():
        value, dtype = value if isinstance(value, tuple) else (value, names[str(value.dtype)])
        stored = np.ascontiguousarray(value).tobytes()
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def as_bf16(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16), "BF16"


def awq(rng):
    codes, scales, zeros, values = draw(rng, 4)
    tensors = {
        "qweight": words(codes.T, 4, 1, AWQ_ORDER),
        "qzeros": words(zeros.T, 4, 1, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    return config, tensors, values


def gptq(rng, bits=4, version="gptq", act_order=False):
    codes, scales, zeros, values = draw(rng, bits, None if bits == 4 else 128)
    group = np.arange(COLS) // GROUP
    if act_order:
        group = rng.permutation(group)
        values = dequantized(codes, scales, zeros, group).astype(np.float16).astype(np.float32)
    stored = (zeros - 1) % 2**bits if version == "gptq" else zeros
    tensors = {
        "qweight": words(codes.T, bits, 0),
        "qzeros": words(stored.T, bits, 1),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": group.astype(np.int32),
    }
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act_order, "checkpoint_format": version}
    return config, tensors, values


def compressed(format):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed"}


def pack_quantized(rng, bits, symmetric):
    middle = 2 ** (bits - 1)
    codes, scales, zeros, _ = draw(rng, bits, middle if symmetric else None, np.float32)
    scales = bf16(scales)
    values = dequantized(codes, scales, zeros, np.arange(COLS) // GROUP)
    tensors = {
        "weight_packed": words(codes, bits, 1),
        "weight_scale": as_bf16(scales),
        "weight_shape": np.array([ROWS, COLS], dtype=np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros, bits, 0)
    return compressed("pack-quantized"), tensors, values


def int_quantized(rng):
    codes = rng.integers(-128, 128, size=(ROWS, COLS)).astype(np.int8)
    scales = rng.uniform(1e-6, 1e-3, size=(ROWS, 1)).astype(np.float32)
    tensors = {"weight": codes, "weight_scale": scales, "input_scale": np.ones(1, dtype=np.float32)}
    return compressed("int-quantized"), tensors, scales * codes.astype(np.float32)


def float_quantized(rng, scales):
    codes = e4m3_codes(rng, (ROWS, COLS))
    scales = rng.uniform(1e-4, 1e-2, size=scales).astype(np.float32)
    return compressed("float-quantized"), {"weight": (codes, "F8_E4M3"), "weight_scale": scales}, e4m3(codes) * scales


def fp8_blocks(rng):
    rows, cols, block = 20, 160, (8, 64)
    codes = e4m3_codes(rng, (rows, cols))
    scales = rng.uniform(1e-4, 1e-2, size=(3, 3)).astype(np.float32)
    spread = scales.repeat(block[0], 0)[:rows].repeat(block[1], 1)[:, :cols]
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block), "activation_scheme": "dynamic"}
    return config, {"weight": (codes, "F8_E4M3"), "weight_scale_inv": scales}, e4m3(codes) * spread


LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def mxfp4(rng):
    experts, rows, blocks = 3, 5, 2
    codes = rng.integers(0, 16, size=(experts, rows, blocks, 32)).astype(np.uint8)
    scales = rng.integers(110, 130, size=(experts, rows, blocks)).astype(np.uint8)
    values = LEVELS[codes] * np.float32(2) ** (scales.astype(np.float32) - 127)[..., None]
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{stack}_blocks": codes[..., ::2] | codes[..., 1::2] << 4, f"{stack}_scales": scales}
    expected = {f"{stack}.weight": values.reshape(experts, rows, -1).astype(np.float32)}
    write("mxfp4", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, tensors, expected)


CASES = {
    "awq": awq,
    "gptq": gptq,
    "gptq_v2": lambda rng: gptq(rng, version="gptq_v2"),
    "gptq_8_bits": lambda rng: gptq(rng, bits=8),
    "gptq_act_order": lambda rng: gptq(rng, act_order=True),
    "compressed_int4": lambda rng: pack_quantized(rng, 4, True),
    "compressed_int4_zero_points": lambda rng: pack_quantized(rng, 4, False),
    "compressed_int8_packed": lambda rng: pack_quantized(rng, 8, True),
    "compressed_int8": int_quantized,
    "compressed_fp8": lambda rng: float_quantized(rng, (ROWS, 1)),
    "compressed_fp8_tensor": lambda rng: float_quantized(rng, (1,)),
    "fp8_blocks": fp8_blocks,
}


def main():
    for seed, (name, case) in enumerate(CASES.items()):
        config, tensors, values = case(np.random.default_rng(seed))
        assert np.isfinite(values).all(), name
        tensors = {f"{LAYER}.{part}": value for part, value in tensors.items()}
        write(name, config, tensors, {f"{LAYER}.weight": values.astype(np.float32)})
    mxfp4(np.random.default_rng(99))


main()
