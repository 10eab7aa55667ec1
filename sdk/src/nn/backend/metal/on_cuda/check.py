#!/usr/bin/env python3
"""Runs the Metal kernels on an NVIDIA GPU: sdk/src/nn/backend/metal/on_cuda/check.py

The emulation that the tests use runs one thread at a time, so it cannot show what memory order does. This rewrites the
sources for nvcc (a few words; `shim.cuh` has SIMD-group operations, barriers and matrices). Attention is compared with numpy
over the shapes of all families, and timed for prompts and decodes against the scalar kernel, which takes any size of head. The
other libraries are compared by the SDK's own tests, which compile kernels by `$CXX`: this script takes the compiler's place.
compute-sanitizer's four tools run over all of them, and have to find barriers that are left out. It needs nvcc,
compute-sanitizer, numpy and a GPU; where they are missing, it says so and ends with status 0, or 1 with
PENSIEVE_REQUIRE_CUDA=1. Times say what an algorithm gives, nothing about a Mac.

    check.py                     all of it
    check.py compare libraries   some steps; --help lists them
    check.py --tests PROGRAM     the SDK's tests, already compiled (`cargo test -p pensieve-sdk --lib --no-run`)
    check.py --emulate c++       attention's comparison by the emulation instead, without a GPU
    check.py --rewrite FOLDER    only writes what nvcc would compile, a folder for each library
"""

import argparse
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
METAL = HERE.parent
BLOCK = 16
THREADS = 128

# Query rows and slices of heads for many rows, and for few: (R, C) of `flash` in flash.metal.
SIZES = {64: ((4, 1), (1, 4)), 80: ((4, 1), (2, 2)), 96: ((4, 1), (1, 4)), 128: ((4, 1), (1, 4)), 192: ((2, 2), (1, 4)),
         256: ((2, 2), (1, 4)), 512: ((1, 4), (1, 4))}
SCRATCH = 44


def missing(what):
    print(f"NOT RUN: {what}", flush=True)
    sys.exit(1 if os.environ.get("PENSIEVE_REQUIRE_CUDA") == "1" else 0)


try:
    import numpy as np
except ImportError:
    missing("python3 has no numpy")


class Library:
    """A library as libraries.rs has it."""

    def __init__(self, text):
        files, kernels = text.split("=>")
        name, *others = re.findall(r'"(\w+)"', files)
        # `after` puts parts in front of the library's own file; more files of its own come behind it.
        self.name, self.files = name, ["common", *others, name] if "after" in files else ["common", name, *others]
        self.kernels = re.findall(r'"(\w+)"', kernels)
        self.is_safe = text.startswith("Library {") and "Math::Safe" in text

    def source(self):
        return "".join((METAL / f"{name}.metal").read_text(encoding="utf-8") for name in self.files)


def libraries():
    text = (METAL / "libraries.rs").read_text(encoding="utf-8")
    # `library!(…)`, or a `Library { …, ..library!(…) }` that is not compiled as the rest.
    found = re.findall(r'= ((?:Library \{[^;{}]*?\.\.)?library!\(\s*"[^;]*?"\s*,?\s*\)(?: \})?);',
                       re.sub(r"=\s+", "= ", text), re.DOTALL)
    count = int(re.search(r"static LIBRARIES: \[&Library; (\d+)\]", text)[1])
    assert len(found) == count, f"libraries.rs has {count} libraries, and {len(found)} were found"
    return [Library(text) for text in found]


def attention_library():
    return next(library for library in libraries() if library.name == "attention")


def rewritten(source, is_safe=False):
    """The source in nvcc's words."""
    source = re.sub(r"\[\[[^\]]*\]\]", "", source)
    source = re.sub(r"\b(u?(?:char|short|int|long)|float)([234])\(", r"make_\1\2(", source)
    source = source.replace("make_ulong2(0)", "make_ulong2(0, 0)")
    source = source.replace('_Pragma("clang loop unroll(full)")', '_Pragma("unroll")')
    source = re.sub(r"\bconstant constexpr(?= \w+ \w+\[)", "static __device__ constexpr", source)
    source = re.sub(r"\bconstant constexpr\b", "constexpr", source)
    source = re.sub(r"\bconstant\b", "const", source)
    source = re.sub(r"\b(static inline|inline|kernel)(?= \w)", "static __device__ __forceinline__", source)
    source = re.sub(r"\b(device|threadgroup|thread)\b(?= )", "", source)
    if not is_safe:
        # Fast math, as Metal compiles.
        source = re.sub(r"(?<!::)\bexp\(", "__expf(", source)
    source = source.replace("#include <metal_stdlib>", '#include "shim.cuh"')
    return f"#define SHARED __shared__\n#define SHARED_AT(index)\n{source}"


def write_inputs(folder, source, kernels, name):
    (folder / name).write_text(source, encoding="utf-8")
    (folder / "kernels.inc").write_text("".join(f"KERNEL({kernel})\n" for kernel in kernels), encoding="utf-8")


class Program:
    """The kernels, compiled, and how they are run."""

    def __init__(self, command, is_emulated):
        self.command, self.is_emulated, self.prefix = command, is_emulated, []

    def run(self, launch, buffers, repeats=0):
        kernel, groups, threads, shared_bytes = launch
        given = b"".join(struct.pack("<Q", buffer.nbytes) + buffer.tobytes() for buffer in buffers)
        words = [kernel, *groups, threads, shared_bytes] + ([] if self.is_emulated else [repeats])
        done = subprocess.run([*self.prefix, self.command, *map(str, words)], input=given, capture_output=True)
        clean = rb"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)"
        if done.returncode != 0 or (self.prefix and not re.search(clean, done.stderr + done.stdout)):
            raise RuntimeError(f"{kernel} {groups}: status {done.returncode}: {done.stderr.decode()[-4000:]}"
                               f"{done.stdout[-4000:] if self.prefix else ''}")
        out, at = [], 0
        for buffer in buffers:
            length = buffer.nbytes
            if not self.prefix:
                assert struct.unpack_from("<Q", done.stdout, at)[0] == length
                out.append(np.frombuffer(done.stdout, buffer.dtype, buffer.size, at + 8).reshape(buffer.shape).copy())
                at += 8 + length
        return out, float(done.stderr.split()[-1]) if repeats else None


def constant(name, file="attention.rs"):
    """A number in the backend's sources."""
    text = (METAL / file).read_text(encoding="utf-8")
    return int(re.search(rf"const {name}: usize = (\d+);", text)[1])


def words(*values):
    return np.frombuffer(b"".join(struct.pack("<f" if isinstance(v, float) else "<I", v) for v in values), np.uint32)


class Case:
    """A model's attention over sequences of (past, new) tokens."""

    def __init__(self, name, heads, kv_heads, dim, sequences, window=0, softcap=0.0, sinks=False, kind=np.float16, seed=1):
        self.name, self.heads, self.kv_heads, self.dim, self.sequences = name, heads, kv_heads, dim, sequences
        self.window, self.softcap, self.has_sinks, self.kind = window, float(softcap), sinks, kind
        random = np.random.default_rng(seed)
        tokens = sum(new for _, new in sequences)
        sizes = [-(-(past + new) // BLOCK) for past, new in sequences]
        self.blocks = sum(sizes)
        order = random.permutation(self.blocks).astype(np.uint32)
        self.tables = np.split(order, np.cumsum(sizes)[:-1])
        self.slots = self.blocks * BLOCK
        self.scale = 1.0 / math.sqrt(dim)
        self.q = random.standard_normal((tokens, heads, dim), np.float32)
        self.keys = random.standard_normal((kv_heads, self.slots, dim), np.float32).astype(kind)
        self.values = random.standard_normal((kv_heads, self.slots, dim), np.float32).astype(kind)
        self.sinks = random.standard_normal(heads).astype(np.float32)
        self.random = random
        # What has been written nowhere is no number, and must not matter.
        for (past, new), table in zip(sequences, self.tables):
            at = np.arange(past + new, len(table) * BLOCK)
            slots = table[at // BLOCK] * BLOCK + at % BLOCK
            self.keys[:, slots] = self.values[:, slots] = np.nan

    def expected(self):
        out, start, group = np.empty_like(self.q), 0, self.heads // self.kv_heads
        for (past, new), table in zip(self.sequences, self.tables):
            at = np.arange(past + new)
            slots = table[at // BLOCK] * BLOCK + at % BLOCK
            positions = past + np.arange(new)[:, None]
            seen = at[None] <= positions
            if self.window:
                seen &= positions - at[None] < self.window
            for head in range(self.heads):
                keys = self.keys[head // group, slots].astype(np.float64)
                values = self.values[head // group, slots].astype(np.float64)
                scores = self.q[start:start + new, head].astype(np.float64) @ keys.T * self.scale
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                scores = np.where(seen, scores, -np.inf)
                top = scores.max(1, keepdims=True)
                if self.has_sinks:
                    top = np.maximum(top, self.sinks[head])
                weights = np.exp(scores - top)
                total = weights.sum(1, keepdims=True) + (np.exp(self.sinks[head] - top) if self.has_sinks else 0)
                out[start:start + new, head] = weights @ values / total
            start += new
        return out

    def tiles(self, tokens):
        tiles, start, table_start = [], 0, 0
        for (past, new), table in zip(self.sequences, self.tables):
            for first in range(0, new, tokens):
                tiles.append((start + first, min(tokens, new - first), past + first, table_start))
            start += new
            table_start += len(table)
        return np.array(tiles, np.uint32)

    def suffix(self):
        return "f16" if self.kind == np.float16 else "f32"

    def buffers(self, tiles, shape, out):
        table = np.concatenate(self.tables)
        return [self.q, self.keys, self.values, tiles, table, self.sinks, shape, out]

    def store(self, program, rotated, is_interleaved):
        """Largest error of rotated queries, and of what a step writes into the cache."""
        tokens, half = len(self.q), rotated // 2
        k, v = (self.random.standard_normal((tokens, self.kv_heads, self.dim), np.float32) for _ in range(2))
        cos, sin = (self.random.standard_normal((tokens, half), np.float32) for _ in range(2))
        slots, start = np.empty(tokens, np.uint32), 0
        for (past, new), table in zip(self.sequences, self.tables):
            at = past + np.arange(new)
            slots[start:start + new] = table[at // BLOCK] * BLOCK + at % BLOCK
            start += new

        def turn(x):
            first = np.arange(half) * (2 if is_interleaved else 1)
            second = first + (1 if is_interleaved else half)
            turned, c, s = x.copy(), cos[:, None], sin[:, None]
            turned[..., first] = x[..., first] * c - x[..., second] * s
            turned[..., second] = x[..., first] * s + x[..., second] * c
            return turned

        keys, values = self.keys.copy(), self.values.copy()
        keys[:, slots], values[:, slots] = (x.swapaxes(0, 1).astype(self.kind) for x in (turn(k), v))
        shape = words(self.heads, self.kv_heads, self.dim, half, int(is_interleaved), 1, tokens, self.slots)
        width = (self.heads + 2 * self.kv_heads) * self.dim
        launch = (f"store_{self.suffix()}", (-(-width // 256), tokens, 1), 256, 0)
        buffers = [self.q, k, v, cos, sin, slots, shape, np.full_like(self.q, np.nan), self.keys, self.values]
        out, _ = program.run(launch, buffers)
        if not out:
            return 0.0
        # A rounded key may fall to the other side.
        tolerance = 2e-3 if self.kind == np.float16 else 0.0
        worst = np.abs(out[7] - turn(self.q)).max()
        for ours, right in ((out[8], keys), (out[9], values)):
            assert (np.isnan(ours) == np.isnan(right)).all(), "what was not to be written is"
            difference = np.nan_to_num(ours.astype(np.float32)) - np.nan_to_num(right.astype(np.float32))
            relative = np.abs(difference) / np.maximum(1.0, np.abs(np.nan_to_num(right.astype(np.float32))))
            worst = max(worst, relative.max() - tolerance)
        return worst

    def scalar(self, program, repeats=0):
        tiles = self.tiles(64)
        shape = words(self.heads, self.kv_heads, self.dim, self.slots, len(tiles), self.window, int(self.has_sinks), self.scale,
                      self.softcap)
        rows = int(tiles[:, 1].max()) * (self.heads // self.kv_heads)
        launch = (f"attend_{self.suffix()}", (-(-rows // 8), self.kv_heads, len(tiles)), THREADS, 2 * 8 * self.dim * 4)
        out, time = program.run(launch, self.buffers(tiles, shape, np.full_like(self.q, np.nan)), repeats)
        return out[-1] if out else None, time

    def tile_keys(self):
        row_bytes = self.dim * np.dtype(self.kind).itemsize
        return 32 if row_bytes <= 512 else 16 if row_bytes <= 1024 else 8

    def backend_parts(self, is_few):
        """How many parts the backend divides decodes into on a GPU of a base or Pro chip, and the keys of a part: see `split` in attention.rs."""
        tile = self.tile_keys()
        keys = max(past + new for past, new in self.sequences) + tile
        rows = max(new for _, new in self.sequences) * (self.heads // self.kv_heads)
        groups = -(-rows // (8 * SIZES[self.dim][is_few][0])) * self.kv_heads * len(self.sequences)
        wanted = -(-constant("GROUPS_PER_CORE") * constant("CORES", "figures.rs") // groups)
        splits = max(1, min(wanted, keys // constant("PART_KEYS_MIN"), constant("SPLITS_MAX")))
        part_keys = -(-keys // splits // tile) * tile
        return -(-keys // part_keys), part_keys

    def flash(self, program, is_few, splits=1, repeats=0, part_keys=None):
        """All sequences by the kernels of matrices: for many rows or for few, over one part of a context or several."""
        rows_at_once, slices = SIZES[self.dim][is_few]
        tiles = self.tiles(64)
        # Those that see most first, as inputs.rs has them now; the scalar kernel is timed as it was.
        tiles = tiles[np.argsort(-tiles[:, 2].astype(np.int64), kind="stable")]
        rows = int(tiles[:, 1].max()) * (self.heads // self.kv_heads)
        row_bytes, keys = self.dim * np.dtype(self.kind).itemsize, self.tile_keys()
        most = max(past + new for past, new in self.sequences) + keys
        part_keys = part_keys or (most // splits // keys + 1) * keys
        name = f"flash_{self.suffix()}_{self.dim}" + ("_few" if is_few and self.dim != 512 else "")
        groups = (-(-rows // (8 * rows_at_once)) * splits, self.kv_heads, len(tiles))
        shared_bytes = rows_at_once * slices * 8 * SCRATCH * 4 + keys * (row_bytes + 16)
        assert shared_bytes <= 32768
        longest = int(tiles[:, 1].max())
        shape = words(self.heads, self.kv_heads, self.slots, 0, self.window, int(self.has_sinks), splits, part_keys, longest,
                      0, 0, splits, 0, self.scale, self.softcap)
        empty = np.full_like(self.q, np.nan)
        parts = empty
        if splits > 1:
            parts = np.full(len(tiles) * self.kv_heads * rows * splits * (self.dim + 2), np.nan, np.float32)
        out, time = program.run((name, groups, THREADS, shared_bytes), self.buffers(tiles, shape, parts), repeats)
        if splits == 1:
            return out[-1] if out else None, time
        shape = words(self.heads, self.kv_heads, self.dim, 0, splits, longest, int(self.has_sinks))
        launch = ("combine_parts", (rows, self.kv_heads, len(tiles)), THREADS, 0)
        parts = out[-1] if out else np.zeros_like(parts)
        out, combined = program.run(launch, [parts, tiles, self.sinks, shape, empty], repeats)
        return out[-1] if out else None, time + combined if repeats else None


# A decode, the chunk of a prompt after a past, a whole prompt, and a decode over a longer past.
MIXED = [(37, 1), (20, 9), (0, 70), (300, 1)]
CASES = [
    Case("llama", 8, 2, 64, MIXED),
    Case("llama, f32", 8, 2, 64, MIXED, kind=np.float32),
    Case("mistral", 4, 1, 128, MIXED, window=24),
    Case("mistral, wide window", 4, 1, 128, [(200, 30), (150, 1)], window=100),
    Case("phi", 3, 3, 80, MIXED),
    Case("phi-3", 3, 3, 96, MIXED, window=47, kind=np.float32),
    Case("qwen, odd group", 7, 1, 128, MIXED),
    Case("glm", 32, 2, 96, MIXED),
    Case("head of 192", 4, 2, 192, MIXED, kind=np.float32),
    Case("head of 192, f16", 4, 2, 192, MIXED),
    Case("gemma", 2, 1, 256, MIXED, softcap=5.0),
    Case("gemma, f32", 2, 1, 256, MIXED, softcap=5.0, kind=np.float32),
    Case("gemma 4", 4, 1, 512, MIXED),
    Case("gemma 4, f32", 4, 1, 512, [(37, 1), (0, 33)], kind=np.float32),
    Case("gpt-oss", 16, 2, 64, MIXED, window=20, sinks=True),
    Case("head of 128, f32", 4, 2, 128, MIXED, kind=np.float32),
]


def compare(program, tolerance=1e-5):
    worst = 0.0
    # The emulation would take minutes.
    long = [] if program.is_emulated else [Case("18,000 tokens", 8, 2, 128, [(17999, 1), (4000, 100)])]
    for case in CASES + long:
        expected = case.expected()
        ways = {"many": (False, 1), "few": (True, 1), "many, in parts": (False, 3), "few, in parts": (True, 5 if case not in long else 64)}
        results = {way: case.flash(program, *how)[0] for way, how in ways.items()}
        if case.dim <= 256:
            results["scalar"] = case.scalar(program)[0]
        for way, result in results.items():
            error = np.abs(result - expected).max()
            # What is no number is not close to any.
            if not error <= tolerance:
                place = np.unravel_index(np.argmax(~(np.abs(result - expected) <= tolerance)), result.shape)
                sys.exit(f"FAILED: {case.name}, {way}: error {error} at {place}: {result[place]}, not {expected[place]}")
            worst = max(worst, float(error))
        for rotated, is_interleaved in ((case.dim, False), (case.dim // 2, True)):
            error = case.store(program, rotated, is_interleaved)
            if not error <= tolerance:
                sys.exit(f"FAILED: {case.name}: error {error} of what is stored, {rotated} values rotated")
        print(f"{case.name}: ok, in {len(results)} ways", flush=True)
    print(f"all shapes agree with numpy, largest error {worst:.2g}", flush=True)


def emulated(folder, compiler):
    library = attention_library()
    write_inputs(folder, library.source(), library.kernels, "kernels.metal")
    program, emulation = folder / "run", METAL / "emulation"
    command = [*shlex.split(compiler), "-std=c++20", "-O2", "-w", "-fno-strict-aliasing", "-x", "c++", "-I", emulation, "-I", folder,
               emulation / "run.cpp", "-o", program]
    subprocess.run(command, check=True)
    return Program(program, True)


def write_rewritten(folder, source, kernels, is_safe=False):
    write_inputs(folder, rewritten(source, is_safe), kernels, "kernels.cuh")
    for name in ("shim.cuh", "run.cu"):
        shutil.copy(HERE / name, folder)


def nvcc(folder, program):
    source = (folder / "kernels.cuh").read_text(encoding="utf-8")
    # The fewer threads, the more registers each may have.
    threads = max([256, *map(int, re.findall(r"\buint \w*THREADS = (\d+)", source))])
    command = ["nvcc", f"-DTHREADS_MAX={threads}", "-std=c++17", "-O3", "-arch=native", "-lineinfo", "-diag-suppress", "177,186",
               "--expt-relaxed-constexpr", "-split-compile=0", "-I", folder, folder / "run.cu", "-o", program]
    subprocess.run(command, check=True)


def require_tools():
    for tool in ("nvcc", "compute-sanitizer"):
        if not shutil.which(tool):
            missing(f"there is no {tool} on PATH")
    if not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        missing("there is no NVIDIA GPU")


def compiled(folder):
    library = attention_library()
    write_rewritten(folder, library.source(), library.kernels)
    print("compiling attention with nvcc", flush=True)
    nvcc(folder, folder / "run")
    return Program(folder / "run", False)


# Where a compiled library is kept for the next run of the tests, and what runs it: see `Tests`.
CACHE, TOOL, LEFT_OUT = "PENSIEVE_ON_CUDA_CACHE", "PENSIEVE_ON_CUDA_TOOL", "PENSIEVE_ON_CUDA_LEFT_OUT"

# The tests' program of a library: with a tool of compute-sanitizer in front, what that finds is a failure. The tests' mistakes
# and buffers are passed on as they are.
RUNNER = """#!/bin/sh
if [ -z "${TOOL}" ]; then exec "{program}" "$@" 0; fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compute-sanitizer --tool "${TOOL}" --error-exitcode 9 --log-file "$log" "{program}" "$@" 0
status=$?
grep -Eq 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log" && exit $status
cat "$log" >&2
exit 9
""".replace("TOOL", TOOL)

BARRIER = re.compile(r"threadgroup_barrier\(mem_flags::mem_threadgroup\);")


def compile_for_tests(arguments):
    """What the tests ask of `c++`: the sources lie in the folder of the program that is wanted."""
    program = Path(arguments[arguments.index("-o") + 1])
    folder = program.parent
    kernels = re.findall(r"KERNEL\((\w+)\)", (folder / "kernels.inc").read_text(encoding="utf-8"))
    library = next(library for library in libraries() if library.kernels == kernels)
    source = (folder / "kernels.metal").read_text(encoding="utf-8")
    left_out = os.environ.get(LEFT_OUT, "").removeprefix(f"{library.name} ")
    if left_out.isdecimal():
        before, after = list(BARRIER.finditer(source))[int(left_out)].span()
        source = source[:before] + source[after:]
    key = hashlib.sha256(rewritten(source, library.is_safe).encode()).hexdigest()
    kept = Path(os.environ[CACHE]) / f"{library.name}-{key[:16]}"
    if not kept.exists():
        write_rewritten(folder, source, kernels, library.is_safe)
        nvcc(folder, folder / "compiled")
        os.replace(folder / "compiled", kept)
    program.write_text(RUNNER.replace("{program}", str(kept)), encoding="utf-8")
    program.chmod(0o755)


# The tests that run a library's kernels over cases, by parts of their names.
CASES_OF = {
    "norms": ["elementwise_tests::norms_on_metal_are"],
    "elementwise": ["elementwise_tests::activations", "elementwise_tests::columns", "elementwise_tests::gates"],
    "logits": ["elementwise_tests::candidates", "elementwise_tests::the_best"],
    "products": ["product_tests::products_on_metal_are", "product_tests::products_on_metal_read", "product_tests::widths",
                 "product_tests::embeddings"],
    "experts": ["experts_tests::a_router", "experts_tests::choices", "experts_tests::mixtures"],
    "recurrence": ["recurrence_tests::recurrences_on_metal_are", "recurrence_tests::short_convolutions"],
}
ALL_CASES = [case for cases in CASES_OF.values() for case in cases]


class Tests:
    """The SDK's tests of the kernels, which this script compiles."""

    def __init__(self, folder, program):
        self.program = program or self.build()
        self.compiler = folder / "c++"
        self.compiler.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" --as-compiler "$@"\n',
                                 encoding="utf-8")
        self.compiler.chmod(0o755)
        self.cache = folder / "libraries"
        self.cache.mkdir()

    @staticmethod
    def build():
        if not shutil.which("cargo"):
            missing("there is no cargo on PATH, and no --tests")
        command = ["cargo", "test", "--locked", "--package", "pensieve-sdk", "--lib", "--no-run", "--message-format", "json"]
        built = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
        messages = [json.loads(line) for line in built.stdout.splitlines()]
        return next(message["executable"] for message in messages if message.get("executable"))

    def run(self, names, tool="", left_out=""):
        """How many tests pass, 0 if one does not, and what they say."""
        environment = {**os.environ, "CXX": str(self.compiler), CACHE: str(self.cache), TOOL: tool, LEFT_OUT: left_out}
        done = subprocess.run([self.program, *names], env=environment, capture_output=True, text=True)
        passed = re.search(r"test result: ok\. (\d+) passed", done.stdout)
        return int(passed[1]) if passed and done.returncode == 0 else 0, done.stdout + done.stderr

    def check(self, tool=""):
        passed, said = self.run(ALL_CASES, tool)
        if passed != len(ALL_CASES):
            sys.exit(f"FAILED: the SDK's tests{f' under {tool}' if tool else ''}: {said[-8000:]}")
        print(f"{f'compute-sanitizer {tool}' if tool else 'the other libraries'}: {passed} of the SDK's tests pass", flush=True)

    def leave_out_barriers(self):
        """racecheck has to say so: a barrier whose absence no tool sees is one that no tool has proved."""
        jobs = [(library.name, place) for library in libraries() if library.name in CASES_OF
                for place in range(len(BARRIER.findall(library.source())))]

        def is_found(job):
            name, place = job
            passed, said = self.run(CASES_OF[name], "racecheck", f"{name} {place}")
            return passed == 0 and "hazard" in said

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(is_found, jobs))
        missed = ", ".join(f"{name} {place}" for (name, place), is_seen in zip(jobs, found) if not is_seen)
        print(f"barriers left out: {sum(found)} of {len(jobs)} found by racecheck{f'; not {missed}' if missed else ''}", flush=True)
        for name in dict(jobs):
            if not any(is_seen for (other, _), is_seen in zip(jobs, found) if other == name):
                sys.exit(f"FAILED: racecheck finds no barrier that is left out of {name}")


    def misses_no_barrier_of(self, library):
        """The shortest proof that racecheck runs at all: it finds the first barrier of a library that is left out."""
        passed, said = self.run(CASES_OF[library], "racecheck", f"{library} 0")
        if passed or "hazard" not in said:
            sys.exit(f"FAILED: racecheck does not find the first barrier that is left out of {library}: {said[-4000:]}")
        print(f"racecheck finds the first barrier that is left out of {library}", flush=True)


TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def sanitize(program, tool):
    # Small, as the tools take their time: each kernel's barriers and places are the same in longer contexts.
    small = [(37, 1), (20, 9), (0, 40)]
    cases = [Case("llama", 4, 2, 64, small), Case("mistral", 4, 1, 128, small, window=24), Case("phi", 2, 2, 80, small),
             Case("gemma, f32", 2, 1, 256, small, softcap=5.0, kind=np.float32), Case("gemma 4", 4, 1, 512, small),
             Case("gpt-oss", 8, 1, 64, small, window=20, sinks=True)]
    checked = Program(program.command, False)
    checked.prefix = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    if tool == "racecheck":
        checked.prefix += ["--racecheck-report", "all"]
    jobs = [lambda case=case: case.flash(checked, False) for case in cases]
    jobs += [lambda case=case: case.flash(checked, True, 3) for case in cases]
    jobs += [lambda case=case: case.scalar(checked) for case in cases if case.dim <= 256]
    jobs += [lambda case=case: case.store(checked, case.dim, False) for case in cases]
    with ThreadPoolExecutor(6) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()
    print(f"compute-sanitizer {tool}: clean, {len(jobs)} runs of attention", flush=True)


def time_all(program):
    """Heads as in Llama 8B, 32 of 128 over 8 of keys, and others."""
    def gain(before, after, operations, goal):
        ratio = before / after
        short = "" if ratio >= goal else f": SHORT OF {goal} x"
        return f"{after:.0f} us, {ratio:.1f} x ({operations / after / 1e6:.1f} TFLOPS){short}"

    for heads, kv_heads, dim in ((32, 8, 128), (24, 8, 64), (32, 32, 96), (8, 4, 256)):
        for past in (0, 16384):
            case = Case("prompt", heads, kv_heads, dim, [(past, 2048 if past == 0 else 512)])
            new = case.sequences[0][1]
            operations = 4.0 * heads * dim * new * (past + new / 2)
            before, after = case.scalar(program, 5)[1], case.flash(program, False, repeats=5)[1]
            print(f"prompt of {new} after {past}, {heads} heads of {dim} over {kv_heads}: {before:.0f} us -> "
                  f"{gain(before, after, operations, 5)}", flush=True)
        for context, streams in ((18000, 1), (2000, 20)):
            case = Case("decode", heads, kv_heads, dim, [(context - 1, 1)] * streams)
            operations = 4.0 * heads * dim * context * streams
            goal = 4 if context == 18000 else 1
            before = case.scalar(program, 5)[1]
            # What the backend launches on a Mac, and the best that a GPU with many more cores makes of the same kernels.
            parts, part_keys = case.backend_parts(True)
            own = case.flash(program, True, parts, 5, part_keys)[1]
            best, best_parts = min((case.flash(program, True, parts, 5)[1], parts) for parts in (4, 16, 32, 64))
            print(f"{streams} decodes at {context}, {heads} heads of {dim} over {kv_heads}: {before:.0f} us -> "
                  f"the backend's {parts} parts {gain(before, own, operations, goal)}; "
                  f"the best, {best_parts} parts {gain(before, best, operations, goal)}", flush=True)
        # One read of what 20 streams share, as a chunk of 20 tokens over it, and each one's own last keys; their sum leaves out the
        # addition of the two. Beside it, decodes that each read everything.
        decodes, shared, own = (Case("decode", heads, kv_heads, dim, sequences)
                                for sequences in ([(1999, 1)] * 20, [(1864, 20)], [(115, 1)] * 20))
        before, prefix, rest = (case.flash(program, is_few, parts, 5, part_keys)[1]
                                for case, is_few in ((decodes, True), (shared, False), (own, True))
                                for parts, part_keys in [case.backend_parts(is_few)])
        print(f"20 decodes at 2000 that share 1884, {heads} heads of {dim} over {kv_heads}: {before:.0f} us -> {prefix:.0f} + "
              f"{rest:.0f} us, {before / (prefix + rest):.1f} x", flush=True)


def main():
    if sys.argv[1:2] == ["--as-compiler"]:
        compile_for_tests(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of attention compare, racecheck, sanitize and time, of the "
                        "others libraries, sanitize-libraries and barriers; all of them without any")
    parser.add_argument("--tests", metavar="PROGRAM", type=Path)
    parser.add_argument("--emulate", metavar="COMPILER")
    parser.add_argument("--rewrite", metavar="FOLDER", type=Path)
    arguments = parser.parse_args()
    unknown = set(arguments.steps) - {"compare", "racecheck", "sanitize", "time", "libraries", "sanitize-libraries", "barriers"}
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}")
    if arguments.rewrite:
        for library in libraries():
            folder = arguments.rewrite / library.name
            folder.mkdir(parents=True, exist_ok=True)
            write_rewritten(folder, library.source(), library.kernels, library.is_safe)
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if arguments.emulate:
            compare(emulated(folder, arguments.emulate))
            return
        require_tools()
        wanted = lambda *steps: not arguments.steps or any(step in arguments.steps for step in steps)
        if wanted("compare", "racecheck", "sanitize", "time"):
            attention = compiled(folder)
        if wanted("racecheck", "libraries", "sanitize-libraries", "barriers"):
            tests = Tests(folder, arguments.tests and arguments.tests.resolve())
        if wanted("compare"):
            compare(attention)
        # What `sanitize` and `barriers` do, as far as an ordinary run of the tests has the time.
        if "racecheck" in arguments.steps:
            sanitize(attention, "racecheck")
            tests.misses_no_barrier_of("norms")
        if wanted("sanitize"):
            for tool in TOOLS:
                sanitize(attention, tool)
        if wanted("time"):
            time_all(attention)
        if wanted("libraries"):
            tests.check()
        if wanted("sanitize-libraries"):
            with ThreadPoolExecutor(len(TOOLS)) as pool:
                list(pool.map(tests.check, TOOLS))
        if wanted("barriers"):
            tests.leave_out_barriers()


main()
