"""ollama's client: a tool, streamed."""

import ollama

from question import MODEL, QUESTION, URL, check, weather

client = ollama.Client(host=URL)
messages = [{"role": "user", "content": QUESTION}]
pieces = 0
for _ in range(2):
    answer, calls = "", []
    for part in client.chat(MODEL, messages, tools=[weather], stream=True, options={"temperature": 0}):
        pieces += 1
        answer += part.message.content or ""
        calls += part.message.tool_calls or []
    messages.append({"role": "assistant", "content": answer, "tool_calls": calls})
    for call in calls:
        messages.append({"role": "tool", "tool_name": call.function.name, "content": weather(**call.function.arguments)})
check(answer, pieces)
