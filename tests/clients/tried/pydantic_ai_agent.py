"""pydantic-ai through its models for OpenAI (chat and responses) and Anthropic: a tool, streamed, and a typed answer."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from question import CALLED, KEY, MODEL, QUESTION, URL, check, weather

openai = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
MODELS = [
    OpenAIChatModel(MODEL, provider=openai),
    OpenAIResponsesModel(MODEL, provider=openai),
    AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY)),
]


async def main():
    for model in MODELS:
        CALLED.clear()
        agent = Agent(model, tools=[weather], model_settings={"temperature": 0, "max_tokens": 500})
        async with agent.run_stream(QUESTION) as result:
            pieces = [text async for text in result.stream_text(delta=True, debounce_by=None)]
        check("".join(pieces), len(pieces))


asyncio.run(main())
