#!/usr/bin/env python3
"""Runs clients that people use, as PyPI and npm have them today, against a server of its own, and prints the table of docs/clients.md.

    python3 tests/clients/try_clients.py target/release/pensieve [--folder DIR] [NAME…]

Each is asked something that needs a tool, streamed; the model is the starter, the key that of another service. Packages are
installed into DIR (a temporary folder unless it is named) by uv or pip, and by npm; what cannot be had is told and is no failure.
Nothing of the user's own settings is seen.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent / "tried"
SHELL = "Run the command: echo tangerine-42"
SECONDS_MAX = 300

# Name in the table, packages (the first one's version is shown), program or command, what is tried.
PYTHON = {
    "openai-sdk": ("OpenAI's SDK, Python", ["openai"], "openai_sdk.py", "chat and responses"),
    "anthropic-sdk": ("Anthropic's SDK, Python", ["anthropic"], "anthropic_sdk.py", "messages"),
    "ollama": ("ollama, Python", ["ollama"], "ollama_client.py", "chat"),
    "agents": ("OpenAI's Agents SDK, Python", ["openai-agents"], "openai_agents.py", "responses"),
    "langchain": (
        "LangChain, Python",
        ["langchain", "langchain-openai", "langchain-anthropic", "langchain-ollama"],
        "langchain_agent.py",
        "an agent through chat, responses, messages and Ollama's chat",
    ),
    "llama-index": (
        "LlamaIndex",
        ["llama-index-core", "llama-index-llms-openai-like", "llama-index-llms-ollama"],
        "llama_index_agent.py",
        "an agent through chat and Ollama's chat",
    ),
    "pydantic-ai": (
        "pydantic-ai",
        # It does not run with the second version of Anthropic's SDK yet.
        ["pydantic-ai-slim[openai,anthropic]", "anthropic<2"],
        "pydantic_ai_agent.py",
        "an agent through chat, responses and messages",
    ),
    "instructor": ("instructor", ["instructor"], "instructor_model.py", "typed answers by tools and by schema, whole and partial"),
    # LiteLLM imports mcp without naming it among what it needs.
    "litellm": ("LiteLLM", ["litellm", "mcp"], "litellm_calls.py", "chat (as openai/ and hosted_vllm/), messages, Ollama's chat"),
    "recorded": (
        "Open WebUI, Zed, VS Code",
        [],
        "recorded.py",
        "their calls, as their sources make them: list, model card, chat",
    ),
}
NODE = {
    "openai-npm": ("OpenAI's SDK, npm", ["openai"], "openai_sdk.mjs", "chat (runTools) and responses"),
    "anthropic-npm": ("Anthropic's SDK, npm", ["@anthropic-ai/sdk"], "anthropic_sdk.mjs", "messages"),
    "ollama-npm": ("ollama, npm", ["ollama"], "ollama_client.mjs", "chat"),
    "agents-npm": ("OpenAI's Agents SDK, npm", ["@openai/agents", "openai", "zod"], "openai_agents.mjs", "responses and chat"),
    "vercel": (
        "Vercel's AI SDK",
        ["ai", "@ai-sdk/openai", "@ai-sdk/anthropic", "@ai-sdk/openai-compatible"],
        "vercel_ai.mjs",
        "openai() (responses), openai.chat(), anthropic(), openai-compatible",
    ),
    "langchain-npm": ("LangChain, npm", ["@langchain/openai", "@langchain/core"], "langchain_agent.mjs", "chat and responses"),
}
# Programs: a command that finds the packages' own.
PROGRAMS = {
    "opencode": ("opencode", ["opencode-ai"], "its shell tool, through openai-compatible and through Anthropic's API"),
    "qwen": ("Qwen Code", ["@qwen-code/qwen-code"], "its shell tool"),
    "aider": ("aider", ["aider-chat"], "an answer to /ask (it has no tools)"),
    "llm": ("llm", ["llm"], "a Python function as a tool"),
}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def environment(home, **more):
    """What a client sees: the paths of this machine and an empty home."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **more}


def finish(command, **more):
    """What a command prints; an error if it fails."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, **more
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-3000:]}")
    return done.stdout


class Installer:
    def __init__(self, folder):
        self.folder = folder

    def python(self, name, packages):
        venv = self.folder / f"python-{name}"
        interpreter = venv / "bin/python"
        uv = shutil.which("uv")
        if not interpreter.exists():
            finish([uv, "venv", "-q", str(venv)] if uv else [sys.executable, "-m", "venv", str(venv)])
        if packages:
            pip = [uv, "pip", "install", "-q", "--python", str(interpreter)] if uv else [str(interpreter), "-m", "pip", "install", "-q"]
            finish([*pip, *packages])
        return venv

    def node(self, name, packages):
        root = self.folder / f"node-{name}"
        root.mkdir(parents=True, exist_ok=True)
        (root / "package.json").write_text('{"private": true, "type": "module"}')
        finish(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", *packages], cwd=root)
        return root


def python_version(venv, package):
    code = f"import importlib.metadata as m; print(m.version({package.split('[')[0]!r}))"
    return finish([str(venv / "bin/python"), "-c", code]).strip()


def node_version(root, package):
    return json.loads((root / "node_modules" / package / "package.json").read_text())["version"]


def opencode(root, url, home):
    """Once through the API of OpenAI's chat, once through Anthropic's."""
    program = next(root.glob("node_modules/opencode-linux-*/bin/opencode"), root / "node_modules/.bin/opencode")
    for npm, key in [("@ai-sdk/openai-compatible", "apiKey"), ("@ai-sdk/anthropic", "apiKey")]:
        options = {"baseURL": f"{url}/v1", key: "sk-of-another-service"}
        limit = {"context": 32768, "output": 4096}
        provider = {"npm": npm, "name": "Pensieve", "options": options, "models": {"pensieve-starter": {"limit": limit}}}
        name = "pensieve/pensieve-starter"
        config = {"model": name, "small_model": name, "provider": {"pensieve": provider}, "permission": {"bash": "allow"}}
        project = pathlib.Path(tempfile.mkdtemp(dir=home))
        (project / "opencode.json").write_text(json.dumps(config))
        said = finish(
            [str(program), "run", "--format", "json", SHELL],
            cwd=project,
            env=environment(home, OPENCODE_DISABLE_AUTOUPDATE="1", OPENCODE_DISABLE_MODELS_FETCH="1"),
        )
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        outputs = [event["part"]["state"].get("output", "") for event in events if event["type"] == "tool_use"]
        assert any("tangerine-42" in output for output in outputs), said
        texts = [event["part"]["text"] for event in events if event["type"] == "text"]
        assert texts and "tangerine-42" in texts[-1], said


def qwen(root, url, home):
    variables = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-of-another-service", "OPENAI_MODEL": "pensieve-starter"}
    arguments = ["--yolo", "--auth-type", "openai", "--output-format", "stream-json", "--include-partial-messages", "-p", SHELL]
    said = finish([str(root / "node_modules/.bin/qwen"), *arguments], cwd=tempfile.mkdtemp(dir=home), env=environment(home, **variables))
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert any("tangerine-42" in json.dumps(line) and "tool_result" in json.dumps(line) for line in lines), said
    assert "tangerine-42" in lines[-1].get("result", ""), said


def aider(venv, url, home):
    arguments = ["--model", "openai/pensieve-starter", "--message", "/ask What is Pensieve?", "--no-git", "--yes-always", "--no-check-update"]
    arguments += ["--no-show-model-warnings", "--no-analytics", "--no-fancy-input", "--map-tokens", "0"]
    variables = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "sk-of-another-service"}
    said = finish([str(venv / "bin/aider"), *arguments], cwd=tempfile.mkdtemp(dir=home), env=environment(home, **variables))
    assert "Tokens:" in said and "received" in said, said


def llm(venv, url, home):
    models = [{"model_id": "local", "model_name": "pensieve-starter", "api_base": f"{url}/v1", "supports_tools": True}]
    (home / "extra-openai-models.yaml").write_text(json.dumps(models))
    function = 'def get_weather(city: str) -> str:\n    "Get the current weather in a city"\n    return f"21 degrees and sunny in {city}"\n'
    arguments = ["-m", "local", "--functions", function, "--td", "What is the weather like in Lisbon?"]
    said = finish([str(venv / "bin/llm"), *arguments], env=environment(home, LLM_USER_PATH=str(home), OPENAI_API_KEY="sk-other"))
    assert said.count("21 degrees and sunny in Lisbon") >= 2, said


def attempt(name, installer, url, home):
    """The row of the table."""
    if name in PYTHON:
        title, packages, program, tried = PYTHON[name]
        venv = installer.python(name, packages)
        version = python_version(venv, packages[0]) if packages else "-"
        said = finish([str(venv / "bin/python"), str(HERE / program)], env=environment(home, PENSIEVE_URL=url, PYTHONPATH=str(HERE)))
    elif name in NODE:
        title, packages, program, tried = NODE[name]
        root = installer.node(name, packages)
        version = node_version(root, packages[0])
        said = finish(["node", str(HERE / program)], env=environment(home, PENSIEVE_URL=url, PENSIEVE_PACKAGES=str(root)))
    else:
        title, packages, tried = PROGRAMS[name]
        is_python = name in ("aider", "llm")
        root = installer.python(name, packages) if is_python else installer.node(name, packages)
        version = python_version(root, packages[0]) if is_python else node_version(root, packages[0])
        {"opencode": opencode, "qwen": qwen, "aider": aider, "llm": llm}[name](root, url, home)
        said = "answered"
    say(f"ok      {name}: {said.strip().splitlines()[-1]}")
    return f"| {title} | {version} | {tried} | yes |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built pensieve, beside its plugins")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which [all of {', '.join([*PYTHON, *NODE, *PROGRAMS])}]")
    parser.add_argument("--folder", type=pathlib.Path, help="where packages are installed")
    asked = parser.parse_intermixed_args()
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = (asked.folder or scratch / "packages").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(pathlib.Path(asked.program).resolve()), "serve", "--listen", "127.0.0.1:0"]
        with (scratch / "log").open("w") as log:
            server = subprocess.Popen(
                command, env=environment(scratch, PENSIEVE_HOME=str(scratch / "home")), stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            url = server.stdout.readline().split()[-1]
            for name in asked.names or [*PYTHON, *NODE, *PROGRAMS]:
                home = pathlib.Path(tempfile.mkdtemp(dir=scratch))
                try:
                    rows.append(attempt(name, Installer(folder), url, home))
                except Exception as error:  # whatever a client fails with is what is to be told
                    failed += 1
                    say(f"FAILED  {name}: {error}")
        finally:
            server.terminate()
            server.wait()
        if failed:
            say((scratch / "log").read_text()[-4000:])
    print("| client | version | tested | works |\n|---|---|---|---|", *rows, sep="\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
