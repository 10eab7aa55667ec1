"""Instructions that products with quantized weights take on Arm, ours beside llama.cpp's, counted in emulation.

    .ci/check-arm
    python tests/peers/count_arm.py [path/to/llama.cpp/ggml]

Where there is no Arm to measure time on, this at least compares work. The first command makes the toolchain (PyPI's `ziglang`, `qemu-aarch64`,
Debian's `libc6-arm64-cross`) that the second one uses. qemu logs every instruction of a product with some outputs and of one with
twice as many; the difference counts products alone, without starting the program or rounding activations. The figures are
instructions per block of 256 weights and row of activations.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target/check-arm"
TARGET = "aarch64-unknown-linux-gnu"
FORMATS = ["Q4K", "Q6K", "Q8_0", "Q4_0"]
ROWS = [1, 4, 16, 64]
OUTPUTS, BLOCKS = 64, 2048 // 256


def instructions(command):
    qemu = [shutil.which("qemu-aarch64") or "qemu-aarch64-static", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"]
    # Blocks of one instruction, looked up each time, make one line of each instruction.
    command = [*qemu, "-singlestep", "-d", "exec,nochain", *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        lines = sum(1 for _ in running.stderr)
    if running.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed with {running.returncode}")
    return lines


def per_block(command, rows):
    few, many = (instructions([*command, str(rows), str(outputs)]) for outputs in (OUTPUTS, 2 * OUTPUTS))
    return (many - few) / (OUTPUTS * BLOCKS * rows)


def ours():
    environment = os.environ | {"CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": str(TOOLS / "cc")}
    cargo = ["cargo", "build", "--locked", "--release", "--package", "pensieve-kernels", "--example", "once", "--target", TARGET]
    subprocess.run(cargo, cwd=ROOT, env=environment, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / TARGET / "release/examples/once"


def llama_cpp(ggml, features):
    """llama.cpp's kernels as its build compiles them, without what they do not call."""
    program = TOOLS / f"count_arm-{features}"
    zig = [TOOLS / "bin/python", "-m", "ziglang"]
    flags = ["-target", "aarch64-linux-gnu.2.36", f"-mcpu=generic+fullfp16+{features}", "-O3", "-DNDEBUG", "-w", "-ffunction-sections",
             "-fdata-sections", *(f"-I{ggml / folder}" for folder in ("include", "src", "src/ggml-cpu"))]
    kernels = ggml / "src/ggml-cpu/arch/arm"
    subprocess.run([*zig, "cc", *flags, "-c", kernels / "quants.c", "-o", f"{program}.o"], check=True)
    sources = [kernels / "repack.cpp", ROOT / "tests/peers/count_arm.cpp", f"{program}.o"]
    subprocess.run([*zig, "c++", *flags, "-Wl,--gc-sections", *sources, "-o", program], check=True)
    return program


def main():
    once = ours()
    programs = {f"Pensieve, {level}": lambda of, level=level: [once, level, of] for level in ("neon", "i8mm")}
    if len(sys.argv) > 1:
        for features in ("dotprod", "dotprod+i8mm"):
            program = llama_cpp(pathlib.Path(sys.argv[1]).resolve(), features)
            programs[f"llama.cpp, {features}"] = lambda of, program=program: [program, of]
            programs[f"llama.cpp, {features}, repacked"] = lambda of, program=program: [program, f"{of}-repacked"]
    print(f"| rows: {', '.join(map(str, ROWS))} | {' | '.join(programs)} |")
    print("|---" * (1 + len(programs)) + "|")
    for of in FORMATS:
        counts = [", ".join(f"{per_block(command(of), rows):.0f}" for rows in ROWS) for command in programs.values()]
        print(f"| {of} | {' | '.join(counts)} |", flush=True)


if __name__ == "__main__":
    main()
