"""Archives of a release: a tar of one folder with the program, its plugins and what is said about them.

All plugins share most of their code. xz sees that if its window spans several of them, which gzip's never does; the small archive
is gzip, which every system opens.
"""

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMAL = ["llama", "lora", "samplers"]
# xz takes as much memory to unpack, which every machine that runs a model has.
WINDOW_BYTES_MAX = 256 << 20


def pack(files, out, origin, bill, time, preset, variant=""):
    """Writes both archives, or the one with CUDA's plugins; returns what is listed about them."""
    name = f"pensieve-{origin['version']}-{origin['target']}"
    minimal = [path for path in files if plugin_name(path) in [None, *MINIMAL]]
    if variant:
        made = [(variant.removeprefix("-"), files, f"{name}{variant}.tar.xz", lambda data: xz(data, preset))]
    else:
        made = both(files, minimal, name, preset)
    listed = []
    for kind, chosen, file, compress in made:
        # The window is as large as its archive, so the order of files costs nothing.
        data, unpacked = tar(chosen, name, {**origin, "kind": kind}, bill, time)
        packed = compress(data)
        (out / file).write_bytes(packed)
        listed.append({"target": origin["target"], "kind": kind, "file": file, "sha256": hashlib.sha256(packed).hexdigest(),
                       "bytes": len(packed), "unpacked_bytes": unpacked})
    return listed


def both(files, minimal, name, preset):
    return [("full", files, f"{name}.tar.xz", lambda data: xz(data, preset)),
            ("minimal", minimal, f"{name}-minimal.tar.gz", lambda data: gzip.compress(data, max(preset, 1), mtime=0))]


def plugin_name(path):
    """`llama` of libpensieve_llama.so; None for the program."""
    return path.stem.removeprefix("libpensieve_") if path.stem.startswith("libpensieve_") else None


def xz(data, preset):
    window = 1 << max(len(data) - 1, 1 << 20).bit_length()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": min(window, WINDOW_BYTES_MAX)}]
    return lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=filters)


def tar(files, folder, origin, bill, time):
    """An uncompressed tar, and how many bytes its files have. The same files make the same archive."""
    buffer, unpacked = io.BytesIO(), 0
    contents = [("origin.json", (json.dumps(origin, indent=2) + "\n").encode(), 0o644)]
    for path in files:
        place, mode = (f"lib/pensieve/{path.name}", 0o644) if plugin_name(path) else (f"bin/{path.name}", 0o755)
        contents.append((place, path.read_bytes(), mode))
    for path in (ROOT / "LICENSE-APACHE", ROOT / "LICENSE-MIT", ROOT / "README.md", bill):
        contents.append((f"share/doc/pensieve/{path.name}", path.read_bytes(), 0o644))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        contents.append((f"share/doc/pensieve/docs/{path.relative_to(ROOT / 'docs')}", path.read_bytes(), 0o644))
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data, mode in contents:
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), mode, time
            archive.addfile(entry, io.BytesIO(data))
            unpacked += len(data)
    return buffer.getvalue(), unpacked
