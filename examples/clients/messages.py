"""Anthropic's package for Python: an answer, one that streams, and a tool that is called and whose result is told."""

import os

import anthropic

MODEL = "pensieve-starter"
client = anthropic.Anthropic(base_url=os.environ.get("PENSIEVE_URL", "http://127.0.0.1:8000"), api_key="pensieve-local-key")


def get_weather(city):
    return f"21 degrees and sunny in {city}"


def user(content):
    return {"role": "user", "content": content}


question = [user("list all files in the current directory")]
answer = client.messages.create(model=MODEL, max_tokens=100, messages=question)
print(answer.content[0].text)

with client.messages.stream(model=MODEL, max_tokens=100, messages=[user("What is Pensieve?")]) as stream:
    for piece in stream.text_stream:
        print(piece, end="", flush=True)
print()

tools = [
    {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
turns = [user("What is the weather like in Lisbon?")]
answer = client.messages.create(model=MODEL, max_tokens=100, messages=turns, tools=tools)
calls = [block for block in answer.content if block.type == "tool_use"]
results = [{"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)} for call in calls]
turns += [{"role": "assistant", "content": answer.content}, user(results)]
answer = client.messages.create(model=MODEL, max_tokens=100, messages=turns, tools=tools)
print(answer.content[0].text)
