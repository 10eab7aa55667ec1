"""Builds of the program and its plugins for .ci/release, and the C library that they need."""

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import mac_toolchain

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
NAME = "release"
TRIPLES = {"linux-x86_64": "x86_64-unknown-linux-gnu", "linux-aarch64": "aarch64-unknown-linux-gnu", "macos-aarch64": "aarch64-apple-darwin"}
# cargo-zigbuild has zig link for one version of glibc; ziglang is the version that .ci/link-mac knows, too.
# Compute capabilities that CUDA's kernels are compiled for: the first of each generation, whose code the others run. PTX of the last one
# is for later generations.
CAPABILITIES = [80, 90, 100, 120]
PACKAGES = ["cargo-zigbuild==0.24.1", mac_toolchain.PACKAGES[0]]


def target_folder():
    return mac_toolchain.target_folder()


def plugin_packages():
    """The packages that are built: what `cargo build` makes for users."""
    return ["pensieve", *sorted(f"pensieve-{folder.name}" for folder in (ROOT / "plugins").iterdir() if (folder / "Cargo.toml").is_file())]


def built(target, glibc, features, only):
    """The program and the plugins, or only some of them, built for a target."""
    triple, packages = TRIPLES[target], plugin_packages()
    unknown = [name for name in only if f"pensieve-{name}" not in packages]
    if unknown:
        sys.exit(f"{NAME}: there is no plugin '{unknown[0]}'")
    packages = packages if not only else ["pensieve", *(f"pensieve-{name}" for name in only)]
    if target == "macos-aarch64" and sys.platform != "darwin":
        return mac_files(packages)
    environment = {**os.environ, **remapped(target)}
    if target.startswith("linux"):
        command = [CARGO, "zigbuild", "--target", f"{triple}.{glibc}"]
        environment.update(zig_environment())
        target_library(triple)
    else:
        command = [CARGO, "build", "--target", triple]
    if "cuda" in features.split(","):
        environment.update(cuda_environment())
    command += ["--locked", "--release", "--target-dir", str(target_folder() / "dist"), "--message-format", "json-render-diagnostics"]
    for package in packages:
        command += ["--package", package]
    if features:
        command += ["--features", ",".join(features_of(features, packages[1:]))]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{NAME}: the build for {target} failed")
    return of_messages(done.stdout)


def features_of(features, packages=None):
    """Features of the plugins, each with its package: those that have it."""
    packages = plugin_packages()[1:] if packages is None else packages

    def has(package, feature):
        text = (ROOT / "plugins" / package.removeprefix("pensieve-") / "Cargo.toml").read_text(encoding="utf-8")
        return re.search(rf"^{re.escape(feature)} = ", text, re.MULTILINE) is not None
    return [f"{package}/{feature}" for feature in features.split(",") if feature for package in packages if has(package, feature)]


def of_messages(text):
    """Programs and shared libraries of cargo's messages."""
    files = []
    for line in text.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["package_id"].startswith("path+"):
            continue
        kinds = message["target"]["kind"]
        files += [message["executable"]] if "bin" in kinds else []
        files += [path for path in message["filenames"] if "cdylib" in kinds and path.endswith((".so", ".dylib"))]
    return [Path(file) for file in files]


def remapped(target):
    """No folder of this machine is part of what is built."""
    return {f"CARGO_TARGET_{TRIPLES[target].upper().replace('-', '_')}_RUSTFLAGS": remap_flags()}


def remap_flags():
    folders = {str(ROOT): "/pensieve", str(Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))): "/cargo"}
    return " ".join(f"--remap-path-prefix={folder}={shown}" for folder, shown in folders.items())


def zig_environment():
    """Variables by which cargo finds zig, which PyPI has; installed in the target folder."""
    venv = target_folder() / "zig/venv"
    stamp = venv.parent / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
                        "--only-binary", ":all:", *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    find = [str(venv / "bin/python"), "-c", "import ziglang; print(ziglang.__path__[0])"]
    zig = Path(subprocess.run(find, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()) / "zig"
    return {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "CARGO_ZIGBUILD_ZIG_PATH": str(zig)}


# candle builds machine code for one compute capability: the others are added to its commands. Its PTX serves all of them.
NVCC = """#!/usr/bin/env bash
own=-gencode=arch=compute_{first},code=sm_{first}
arguments=()
for argument in "$@"; do
    arguments+=("$argument")
    if [[ $argument == "$own" && " $* " == *" -c "* ]]; then arguments+=({others}); fi
done
exec {nvcc} "${{arguments[@]}}"
"""


def cuda_environment():
    """Variables by which CUDA's kernels are compiled for all generations of cards."""
    homes = [f"{os.environ[name]}/bin/nvcc" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or next(filter(os.path.exists, homes), None)
    if nvcc is None:
        sys.exit(f"{NAME}: there is no nvcc: set CUDA_HOME, NVCC or PATH")
    first, *others = CAPABILITIES
    added = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in others]
    added.append(f"-gencode=arch=compute_{others[-1]},code=compute_{others[-1]}")
    script = target_folder() / "dist/cuda/bin/nvcc"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(NVCC.format(first=first, others=" ".join(added), nvcc=nvcc), encoding="utf-8")
    script.chmod(0o755)
    return {"NVCC": str(script), "CUDA_COMPUTE_CAP": str(first), "PENSIEVE_CUDA_CAPABILITIES": ",".join(map(str, CAPABILITIES))}


def target_library(triple):
    """Rust's standard library for another processor."""
    if not any((mac_toolchain.sysroot() / f"lib/rustlib/{triple}/lib").glob("libstd-*.rlib")):
        subprocess.run(["rustup", "target", "add", triple], cwd=ROOT, check=True)


def mac_files(packages):
    """Linked and looked at as .ci/link-mac does. A release without them is none, so a missing tool is a failure."""
    os.environ["PENSIEVE_REQUIRE_MAC"] = "1"
    loader = importlib.machinery.SourceFileLoader("link_mac", str(ROOT / ".ci/link-mac"))
    link_mac = importlib.util.module_from_spec(importlib.util.spec_from_loader("link_mac", loader))
    loader.exec_module(link_mac)
    mac_toolchain.standard_library(NAME)
    tools = mac_toolchain.Tools(NAME)
    files = [Path(file) for file in link_mac.build(tools, packages, True, False, remap_flags())]
    for path in files:
        wrong = link_mac.complaints(tools, path)
        if wrong:
            sys.exit(f"{NAME}: {path.name}: {'; '.join(wrong[:5])}")
    return files


def collected(folder, target):
    """The program and the plugins of a folder."""
    suffix = ".dylib" if target.startswith("macos") else ".so"
    files = [folder / "pensieve", *sorted(folder.glob(f"libpensieve_*{suffix}"))]
    if not files[0].is_file() or len(files) < 2:
        sys.exit(f"{NAME}: '{folder}' has no program 'pensieve', or no plugins")
    return files


def needs(files, target, glibc):
    """The oldest system that the files run on. A build that needs a newer one than it was told is an error."""
    if target.startswith("macos"):
        return f"macOS {mac_toolchain.minimum().split('.')[0]}"
    found = max((glibc_of(path), path.name) for path in files)
    if glibc and found[0] > version(glibc):
        sys.exit(f"{NAME}: {found[1]} needs glibc {shown(found[0])}, and is to run with {glibc}")
    return f"glibc {glibc or shown(found[0])}"


def version(text):
    return tuple(int(part) for part in text.split("."))


def shown(version):
    return ".".join(map(str, version))


def glibc_of(path):
    """The newest version of glibc that an ELF file asks for, from its table of needed versions."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        sys.exit(f"{NAME}: '{path}' is no program of 64 bits")
    table, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + index * size) for index in range(count)]
    newest = (2, 0)
    for section in sections:
        # SHT_GNU_verneed; its strings are in the section that it links to.
        if section[1] != 0x6FFFFFFE:
            continue
        strings, place = sections[section[6]][4], section[4]
        for _ in range(section[7]):
            _, auxiliaries, _, first, following = struct.unpack_from("<HHIII", data, place)
            entry = place + first
            for _ in range(auxiliaries):
                _, _, _, name, after = struct.unpack_from("<IHHII", data, entry)
                text = data[strings + name:data.index(b"\0", strings + name)].decode()
                if re.fullmatch(r"GLIBC_\d+(\.\d+)+", text):
                    newest = max(newest, version(text.removeprefix("GLIBC_")))
                entry += after
            place += following
    return newest
