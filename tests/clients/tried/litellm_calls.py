"""LiteLLM as a client of OpenAI's, Anthropic's and Ollama's APIs: a tool, streamed."""

import json

import litellm

from question import CALLED, KEY, MODEL, QUESTION, URL, check, weather

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the current weather in a city", "parameters": PARAMETERS}

for model, base in [
    (f"openai/{MODEL}", f"{URL}/v1"),
    (f"anthropic/{MODEL}", URL),
    (f"ollama_chat/{MODEL}", URL),
    (f"hosted_vllm/{MODEL}", f"{URL}/v1"),
]:
    CALLED.clear()
    messages = [{"role": "user", "content": QUESTION}]
    pieces = 0
    for _ in range(2):
        tools = [{"type": "function", "function": FUNCTION}]
        stream = litellm.completion(
            model=model, api_base=base, api_key=KEY, messages=messages, tools=tools, stream=True, temperature=0, max_tokens=500
        )
        chunks = list(stream)
        pieces += len(chunks)
        message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            content = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": content})
    check(message.content, pieces)
