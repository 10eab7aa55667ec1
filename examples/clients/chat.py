"""OpenAI's package for Python: an answer, one that streams, and a tool that is called and whose result is told."""

import json
import os

import openai

MODEL = "pensieve-starter"
client = openai.OpenAI(base_url=os.environ.get("PENSIEVE_URL", "http://127.0.0.1:8000") + "/v1", api_key="pensieve-local-key")


def get_weather(city):
    return f"21 degrees and sunny in {city}"


def ask(messages, **more):
    return client.chat.completions.create(model=MODEL, temperature=0, messages=messages, **more)


def user(content):
    return {"role": "user", "content": content}


print(ask([user("list all files in the current directory")]).choices[0].message.content)

for chunk in ask([user("What is Pensieve?")], stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
turns = [user("What is the weather like in Lisbon?")]
message = ask(turns, tools=tools).choices[0].message
turns.append(message)
for call in message.tool_calls:
    result = get_weather(**json.loads(call.function.arguments))
    turns.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(ask(turns, tools=tools).choices[0].message.content)
