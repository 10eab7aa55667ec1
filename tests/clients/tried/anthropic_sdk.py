"""Anthropic's SDK: a tool, streamed."""

import anthropic

from question import KEY, MODEL, QUESTION, URL, check, weather

client = anthropic.Anthropic(base_url=URL, api_key=KEY)
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"name": "get_weather", "description": "Get the current weather in a city", "input_schema": schema}]
messages = [{"role": "user", "content": QUESTION}]
pieces = 0
for _ in range(2):
    with client.messages.stream(model=MODEL, max_tokens=500, messages=messages, tools=tools) as stream:
        pieces += sum(1 for _ in stream)
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)} for call in calls]
    messages.append({"role": "user", "content": results})
check(message.content[0].text, pieces)
