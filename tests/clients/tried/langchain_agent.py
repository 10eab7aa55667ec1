"""LangChain's agents through its packages for OpenAI (chat and responses), Anthropic and Ollama: a tool, streamed."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

from question import CALLED, KEY, MODEL, QUESTION, URL, check, weather

openai = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": KEY, "temperature": 0}
for model in [
    ChatOpenAI(**openai),
    ChatOpenAI(**openai, use_responses_api=True),
    ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, temperature=0, max_tokens=500),
    ChatOllama(model=MODEL, base_url=URL, temperature=0),
]:
    CALLED.clear()
    agent = create_agent(model, tools=[weather])
    parts = [part for part, _ in agent.stream({"messages": [("user", QUESTION)]}, stream_mode="messages")]
    check("".join(part.text for part in parts if part.type == "AIMessageChunk"), len(parts))
