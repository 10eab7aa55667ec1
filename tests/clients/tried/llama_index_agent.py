"""LlamaIndex's agent through OpenAILike and Ollama: a tool, streamed."""

import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

from question import CALLED, KEY, MODEL, QUESTION, URL, check, weather

MODELS = [
    OpenAILike(
        model=MODEL, api_base=f"{URL}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True, temperature=0
    ),
    Ollama(model=MODEL, base_url=URL, temperature=0, request_timeout=120),
]


async def main():
    for model in MODELS:
        CALLED.clear()
        handler = FunctionAgent(tools=[weather], llm=model).run(QUESTION)
        pieces = [event async for event in handler.stream_events() if isinstance(event, AgentStream)]
        check(str(await handler), len(pieces))


asyncio.run(main())
