"""Images through the clients that people use, OpenAI's SDK, Ollama's, Anthropic's and Google's, to a real vision model with random
weights: what it says is noise, so usage, caches and the absence of errors count.
"""

import base64
import pathlib

import anthropic
import ollama
import openai
from google import genai
from google.genai import types

from calls import KEY, URL, call, equal, main

MODEL = "eyes"
PICTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "pictures"
PICTURE = (PICTURES / "rgb.png").read_bytes()
DATA = base64.b64encode(PICTURE).decode()
DATA_URL = f"data:image/png;base64,{DATA}"
# Long enough for one turn to be a small part of it.
STORY = "This is a long story about a picture that nobody has seen. " * 30
openais = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60)
anthropics = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)


def cached(prompt, read):
    assert read >= 0.95 * prompt, f"{read} of {prompt} tokens were cached"


@call
def openais_chat():
    image = {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "high"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": f"chat: {STORY}"}, image]}]

    def ask():
        return openais.chat.completions.create(model=MODEL, messages=messages, max_tokens=8).usage

    first = ask()
    assert first.prompt_tokens > len(STORY) / 4, first
    messages += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "Go on."}]
    second = ask()
    cached(second.prompt_tokens, second.prompt_tokens_details.cached_tokens)
    stream = openais.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=8, stream=True, stream_options={"include_usage": True})
    equal([chunk.usage.prompt_tokens for chunk in stream if chunk.usage], [second.prompt_tokens])


@call
def openais_responses():
    image = {"type": "input_image", "image_url": DATA_URL, "detail": "auto"}
    asked = [{"role": "user", "content": [{"type": "input_text", "text": f"responses: {STORY}"}, image]}]
    first = openais.responses.create(model=MODEL, input=asked, max_output_tokens=16)
    counted = openais.responses.input_tokens.count(model=MODEL, input=asked)
    equal(first.usage.input_tokens, counted.input_tokens)
    second = openais.responses.create(
        model=MODEL, previous_response_id=first.id, input="Go on.", max_output_tokens=16)
    cached(second.usage.input_tokens, second.usage.input_tokens_details.cached_tokens)


@call
def ollamas_chat():
    client = ollama.Client(host=URL)
    assert "vision" in client.show(MODEL).capabilities
    counts = []
    # Bytes, and base64 as this client's users pass it on.
    for image in (PICTURE, DATA):
        messages = [{"role": "user", "content": f"ollama: {STORY}", "images": [image]}]
        answer = client.chat(MODEL, messages, options={"num_predict": 8})
        counts.append(answer.prompt_eval_count)
        assert answer.eval_count > 0
    equal(counts[0], counts[1])
    text = client.chat(MODEL, [{"role": "user", "content": f"ollama: {STORY}"}], options={"num_predict": 8})
    assert counts[0] > text.prompt_eval_count, (counts, text.prompt_eval_count)
    assert client.generate(MODEL, "What is this?", images=[PICTURE], options={"num_predict": 8}).prompt_eval_count > 9


@call
def anthropics_tool_results():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    tool = {"name": "look", "description": "Looks at the screen.", "input_schema": {"type": "object"}}
    messages = [
        {"role": "user", "content": f"anthropic: {STORY}"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}]},
    ]

    def ask():
        usage = anthropics.messages.create(model=MODEL, max_tokens=8, messages=messages, tools=[tool]).usage
        counted = anthropics.messages.count_tokens(model=MODEL, messages=messages, tools=[tool]).input_tokens
        equal(usage.input_tokens + usage.cache_read_input_tokens, counted)
        return counted, usage.cache_read_input_tokens

    ask()
    messages += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "Go on."}]
    cached(*ask())


@call
def googles_parts():
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
    config = types.GenerateContentConfig(max_output_tokens=8)

    def ask(*later):
        image = types.Part.from_bytes(data=PICTURE, mime_type="image/png")
        turns = [types.UserContent([f"google: {STORY}", image]), *later]
        return client.models.generate_content(model=MODEL, contents=turns, config=config).usage_metadata

    assert ask().prompt_token_count > len(STORY) / 4
    second = ask(types.ModelContent("I see."), types.UserContent("Go on."))
    cached(second.prompt_token_count, second.cached_content_token_count)


if __name__ == "__main__":
    main()
