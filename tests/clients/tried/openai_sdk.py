"""OpenAI's SDK: a tool through chat completions and through responses, streamed."""

import json

import openai

from question import CALLED, KEY, MODEL, QUESTION, URL, check, weather

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the current weather in a city", "parameters": PARAMETERS}


def chat():
    messages = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": FUNCTION}]
    pieces = 0
    for _ in range(2):
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools, temperature=0) as stream:
            pieces += sum(1 for _ in stream)
            message = stream.get_final_completion().choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            content = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return message.content, pieces


def responses():
    tools = [{"type": "function", **FUNCTION}]
    given, previous, pieces = QUESTION, None, 0
    for _ in range(2):
        with client.responses.stream(
            model=MODEL, input=given, tools=tools, temperature=0, **({"previous_response_id": previous} if previous else {})
        ) as stream:
            pieces += sum(1 for _ in stream)
            response = stream.get_final_response()
        previous = response.id
        calls = [item for item in response.output if item.type == "function_call"]
        outputs = [(call.call_id, weather(**json.loads(call.arguments))) for call in calls]
        given = [{"type": "function_call_output", "call_id": call, "output": output} for call, output in outputs]
    return response.output_text, pieces


for way in (chat, responses):
    CALLED.clear()
    check(*way())
