"""What is said about the archives of a release: `release.json`, `SHA256SUMS`, the installer and the Homebrew formula."""

import hashlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "release"
INSTALLER, FORMULA = ROOT / ".ci/install.sh", ROOT / ".ci/pensieve.rb"


def write(out, version, location, key):
    """Writes the lists; returns the files to sign."""
    facts = sorted(out.glob(f"pensieve-{version}-*-*.json"))
    archives = [archive for path in facts if not path.name.endswith(".cdx.json") for archive in json.loads(path.read_text(encoding="utf-8"))]
    if not archives:
        sys.exit(f"{NAME}: '{out}' has no archives of {version}")
    for archive in archives:
        data = (out / archive["file"]).read_bytes()
        if (len(data), hashlib.sha256(data).hexdigest()) != (archive["bytes"], archive["sha256"]):
            sys.exit(f"{NAME}: '{archive['file']}' has changed since it was packed")
    release = out / "release.json"
    for signature in out.glob("*.minisig"):
        # Of an earlier run, it would be wrong now.
        signature.unlink()
    release.write_text(json.dumps({"release": 1, "version": version, "archives": archives}, indent=2) + "\n", encoding="utf-8")
    installer = out / "install.sh"
    installer.write_text(filled(version, location, key, archives), encoding="utf-8")
    installer.chmod(0o755)
    (out / "pensieve.rb").write_text(formula(version, location, archives), encoding="utf-8")
    sums = out / "SHA256SUMS"
    listed = sorted(path for path in out.iterdir() if path.is_file() and path != sums)
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in listed), encoding="utf-8")
    return [release, sums]


def quoted(text):
    """A word for the shell. What is quoted here has no quotes of its own."""
    if not re.fullmatch(r"[\w:/.+=~@%-]*", text):
        sys.exit(f"{NAME}: '{text}' has characters that an installer should not have")
    return f"'{text}'"


def filled(version, location, key, archives):
    """The installer with the digests of this release."""
    lines = "".join(f"{one['target']} {one['kind']} {one['file']} {one['bytes']} {one['unpacked_bytes']} {one['sha256']} {one['needs']}\n" for one in archives)
    text = INSTALLER.read_text(encoding="utf-8")
    for name, value in (("OWN_VERSION", version), ("LOCATION", location), ("KEY", key)):
        text = replaced(text, f"\n{name}=''\n", f"\n{name}={quoted(value)}\n")
    return replaced(text, "cat <<'END'\nEND\n", f"cat <<'END'\n{lines}END\n")


def replaced(text, old, new):
    if text.count(old) != 1:
        sys.exit(f"{NAME}: {INSTALLER.name} has {old.strip()!r} {text.count(old)} times, instead of once")
    return text.replace(old, new)


def formula(version, location, archives):
    """A Homebrew formula for the whole archives."""
    text = FORMULA.read_text(encoding="utf-8").replace("@VERSION@", version).replace("@LOCATION@", location)
    text = text.replace("@HOMEPAGE@", location.removesuffix("/releases"))
    for target in ("macos-aarch64", "linux-x86_64", "linux-aarch64"):
        found = next((one for one in archives if (one["target"], one["kind"]) == (target, "full")), None)
        text = text.replace(f"@{target}@", found["sha256"] if found else "0" * 64)
    return text
