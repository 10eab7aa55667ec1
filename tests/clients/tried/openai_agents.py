"""OpenAI's Agents SDK, which speaks the Responses API unless it is told otherwise: a tool, streamed."""

import asyncio

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

from question import KEY, MODEL, QUESTION, URL, check, weather

set_default_openai_client(AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY))
set_tracing_disabled(True)
agent = Agent(name="Weather", model=MODEL, tools=[function_tool(weather)])


async def main():
    result = Runner.run_streamed(agent, QUESTION)
    deltas = [event async for event in result.stream_events() if event.type == "raw_response_event"]
    check(result.final_output, len(deltas))


asyncio.run(main())
