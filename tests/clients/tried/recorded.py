"""The calls of programs that cannot run here, as their sources make them: Open WebUI (through Ollama's and OpenAI's API), Zed
and VS Code (Ollama), each from the list of models to an answer after a tool's result."""

import json
import urllib.request

from question import MODEL, QUESTION, URL, weather

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the current weather in a city", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
TOLD = "21 degrees and sunny in Lisbon"


def call(path, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    request = urllib.request.Request(URL + path, data, headers, method="GET" if body is None else "POST")
    with urllib.request.urlopen(request, timeout=120) as reply:
        return reply.read().decode()


def ask(path, body=None, **headers):
    return json.loads(call(path, body, **headers))


def lines(path, body):
    return [json.loads(line) for line in call(path, body).splitlines()]


def events(path, body, **headers):
    data = [line[6:] for line in call(path, body, **headers).splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1:]
    return [json.loads(event) for event in data[:-1]]


def open_webui_with_ollama():
    assert ask("/api/version")["version"] >= "0.1.33"
    tags = ask("/api/tags")["models"]
    assert {"name", "model", "modified_at", "size", "digest", "details"} <= tags[0].keys(), tags
    ask("/api/ps")
    body = {"model": f"{MODEL}:latest", "messages": [{"role": "user", "content": QUESTION}], "options": {}, "stream": True}
    found = lines("/api/chat", {**body, "tools": TOOLS, "keep_alive": "5m", "format": None})
    (called,) = [call for line in found for call in line["message"].get("tool_calls", [])]
    body["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": weather(**called["function"]["arguments"])},
    ]
    found = lines("/api/chat", {**body, "tools": TOOLS})
    assert TOLD in "".join(line["message"]["content"] for line in found) and found[-1]["done"], found
    assert found[-1]["eval_count"] > 0 and found[-1]["total_duration"] > 0


def openai_round_trip(more, **headers):
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": MODEL, "messages": messages, "stream": True, "tools": TOOLS, **more}
    deltas = [event["choices"][0]["delta"] for event in events("/v1/chat/completions", body, **headers) if event["choices"]]
    calls = [piece for delta in deltas for piece in delta.get("tool_calls") or []]
    arguments = "".join(piece["function"].get("arguments") or "" for piece in calls)
    called = {"id": calls[0]["id"], "type": "function", "function": {"name": calls[0]["function"]["name"], "arguments": arguments}}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": called["id"], "content": weather(**json.loads(arguments))},
    ]
    found = [event["choices"][0]["delta"] for event in events("/v1/chat/completions", body, **headers) if event["choices"]]
    assert TOLD in "".join(delta.get("content") or "" for delta in found), found


def open_webui_with_openai():
    assert [model["id"] for model in ask("/v1/models", authorization="Bearer sk-x")["data"]]
    more = {"stream_options": {"include_usage": True}, "metadata": {"chat_id": "x"}}
    openai_round_trip(more, authorization="Bearer sk-x")


def zed_with_ollama():
    names = [model["name"] for model in ask("/api/tags")["models"]]
    shown = ask("/api/show", {"model": names[0]})
    assert "tools" in shown["capabilities"], shown
    assert any(name.endswith(".context_length") for name in shown["model_info"]), shown
    options = {"num_ctx": 16384, "stop": [], "temperature": 0}
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": MODEL, "messages": messages, "keep_alive": -1, "options": options, "think": False, "tools": TOOLS, "stream": True}
    found = lines("/api/chat", body)
    (called,) = [call for line in found for call in line["message"].get("tool_calls", [])]
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [called], "images": None, "thinking": None},
        {"role": "tool", "content": weather(**called["function"]["arguments"]), "tool_name": called["function"]["name"]},
    ]
    assert TOLD in "".join(line["message"]["content"] for line in lines("/api/chat", body))


def vs_code_with_ollama():
    major, minor, _ = (int(part) for part in ask("/api/version")["version"].split("."))
    assert (major, minor) >= (0, 6)
    for model in ask("/api/tags")["models"]:
        about = ask("/api/show", {"model": model["model"]})
        assert about["model_info"]["general.basename"] and "tools" in about["capabilities"]
        assert about["model_info"][f"{about['model_info']['general.architecture']}.context_length"] > 0
    more = {"temperature": 0.1, "top_p": 1, "n": 1, "stream_options": {"include_usage": True}, "max_tokens": 4096}
    openai_round_trip(more)


if __name__ == "__main__":
    for way in (open_webui_with_ollama, open_webui_with_openai, zed_with_ollama, vs_code_with_ollama):
        way()
        print(f"{way.__name__}: called, answered and streamed")
