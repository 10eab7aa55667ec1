"""The bill of materials of a release, in CycloneDX 1.6: every crate that the program and its plugins link, as Cargo.lock pins it.

Build scripts and macros run on the builder's machine and are left out, as what only tests use.
"""

import json
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    # Python 3.10, which the image with CUDA's compiler has.
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")


def metadata(triple, features):
    command = [CARGO, "metadata", "--locked", "--format-version", "1", "--filter-platform", triple]
    if features:
        command += ["--features", ",".join(features)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def bill_of_materials(version, triple, time, features=()):
    """The document as text."""
    found = metadata(triple, features)
    packages = {package["id"]: package for package in found["packages"]}
    linked = {node["id"]: sorted(dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
                                 and not is_macro(packages[dep["pkg"]]))
              for node in found["resolve"]["nodes"]}
    roots = found["workspace_default_members"]
    seen, open_ids = set(), list(roots)
    while open_ids:
        package = open_ids.pop()
        if package not in seen:
            seen.add(package)
            open_ids += linked[package]
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    sums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    components = sorted((component(packages[package], sums) for package in seen), key=lambda one: one["bom-ref"])
    own = {"type": "application", "name": "pensieve-release", "version": version, "bom-ref": "release"}
    depends = [{"ref": "release", "dependsOn": sorted(reference(packages[package]) for package in roots)}]
    depends += [{"ref": reference(packages[package]), "dependsOn": sorted(reference(packages[dep]) for dep in linked[package])}
                for package in sorted(seen, key=lambda one: reference(packages[one]))]
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": own,
                     "properties": [{"name": "target", "value": triple}]},
        "components": components, "dependencies": depends,
    }
    return json.dumps(document, indent=1) + "\n"


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    """One crate."""
    made = {"type": "library", "bom-ref": reference(package), "name": package["name"], "version": package["version"],
            "purl": reference(package), "scope": "required"}
    if package["description"]:
        made["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Older manifests write a slash where SPDX has a word.
        made["licenses"] = [{"expression": " OR ".join(part.strip() for part in package["license"].split("/"))}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made
