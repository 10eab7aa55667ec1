"""The Mac's compiler on Linux, for .ci/check-mac and .ci/link-mac.

rustc brings a linker for every target and the standard library for arm64 macOS, and PyPI's `ziglang` a C compiler with the
system's headers and its list of symbols. Both are installed where they are missing: the library beside the toolchain, the
compiler in the target folder.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = "aarch64-apple-darwin"
# What they say of the libraries they link is held by .ci/link-mac, so they are of one version.
PACKAGES = ["ziglang==0.17.1", "lief==1.0.0"]

# Nothing of it runs, so nothing is optimised; one profile for both scripts, so that they share what runs here.
QUICK = [part for setting in ('profile.dev.package."*".opt-level = 0', "profile.dev.opt-level = 0",
                              "profile.dev.package.pensieve-kernels.opt-level = 0", "profile.dev.debug = false")
         for part in ("--config", setting)]

# What rustc's `cc` passes on for Apple's compiler is what the target says already.
WRAPPER = """#!/usr/bin/env bash
arguments=()
skips=
for argument in "$@"; do
    if [[ $skips ]]; then skips=; continue; fi
    case $argument in
        --target=* | -mmacosx-version-min=*) ;;
        -arch | -target) skips=yes ;;
        *) arguments+=("$argument") ;;
    esac
done
exec {zig} {tool} -target aarch64-macos.{minimum} "${{arguments[@]}}"
"""


def minimum():
    """The oldest system that the program runs on, as .cargo/config.toml has it for every build."""
    text = (ROOT / ".cargo/config.toml").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("MACOSX_DEPLOYMENT_TARGET"))


def give_up(name, why):
    """Ends the script: a failure where CI asks for it, else a line that cannot be overlooked."""
    if os.environ.get("PENSIEVE_REQUIRE_MAC") == "1":
        sys.exit(f"{name}: {why}")
    print(f"{name}: SKIPPED, nothing was looked at: {why}", flush=True)
    sys.exit(0)


def tried(command, **options):
    """A command's output, or why there is none."""
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    except OSError as error:
        return None, str(error)
    return (done.stdout, None) if done.returncode == 0 else (None, f"{' '.join(map(str, command))}: {done.stdout.strip()}")


def target_folder():
    command = [CARGO, "metadata", "--locked", "--no-deps", "--format-version", "1"]
    return Path(json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["target_directory"])


def sysroot():
    return Path(subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                               text=True).stdout.strip())


def standard_library(name):
    """Installs the standard library for the target unless it is there."""
    if any((sysroot() / f"lib/rustlib/{TARGET}/lib").glob("libstd-*.rlib")):
        return
    _, why = tried(["rustup", "target", "add", TARGET])
    if why:
        give_up(name, f"no standard library for {TARGET}: {why}")


class Tools:
    """Python packages and wrappers in the target folder."""

    def __init__(self, name):
        self.folder = target_folder() / "mac"
        self.python = self.folder / "venv/bin/python"
        stamp = self.folder / "installed"
        expected = "\n".join(PACKAGES)
        if not stamp.exists() or stamp.read_text() != expected:
            _, why = tried([sys.executable, "-m", "venv", "--clear", str(self.folder / "venv")])
            if not why:
                _, why = tried([str(self.python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
                                "--only-binary", ":all:", "--retries", "2", "--timeout", "20", *PACKAGES])
            if why:
                give_up(name, f"no C compiler for {TARGET}: {why}")
            stamp.write_text(expected)
        found = [str(self.python), "-c", "import ziglang; print(ziglang.__path__[0])"]
        self.zig = Path(subprocess.run(found, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
        (self.folder / "bin").mkdir(exist_ok=True)
        for tool in ("cc", "c++"):
            self.script(tool, WRAPPER.format(zig=self.zig / "zig", tool=tool, minimum=minimum()))
        self.script("ar", f"#!/usr/bin/env bash\nexec {self.zig / 'zig'} ar \"$@\"\n")

    def script(self, name, text):
        """A program for the build. One that is as it should be keeps its time, by which cargo knows it again."""
        path = self.folder / "bin" / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o755)
        return path

    def environment(self):
        """Variables by which build scripts find the compiler."""
        name, folder = TARGET.replace("-", "_"), self.folder / "bin"
        # zig's own default checks arithmetic by a library that no Mac has.
        flags = {f"{kind}_{name}": "-fno-sanitize=undefined" for kind in ("CFLAGS", "CXXFLAGS")}
        return {**os.environ, **flags, f"CC_{name}": str(folder / "cc"), f"CXX_{name}": str(folder / "c++"), f"AR_{name}": str(folder / "ar"),
                "ZIG_GLOBAL_CACHE_DIR": str(self.folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(self.folder / "zig")}
