"""OpenAI's Python SDK against Pensieve: every feature that is served, streamed and not, with the SDK's own types."""

import json

import openai
from openai.types import Completion, CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageCustomToolCall
from pydantic import BaseModel

from calls import KEY, MODEL, URL, call, equal, main, refused

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name} of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "time")
]


class Weather(BaseModel):
    city: str
    degrees: int


def ask(text, **more):
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **more)


def stream(text, **more):
    chunks = list(ask(text, stream=True, **more))
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    equal(len({chunk.id for chunk in chunks}), 1)
    return chunks


def said(chunks, index=0):
    """The text and the reason of a choice that was streamed."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    equal(choices[0].delta.role, "assistant")
    reasons = [choice.finish_reason for choice in choices]
    assert all(reason is None for reason in reasons[:-1]), reasons
    return "".join(choice.delta.content or "" for choice in choices), reasons[-1]


def adds_up(usage: CompletionUsage):
    assert isinstance(usage, CompletionUsage)
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


@call
def chat():
    answer = ask("Say hello")
    assert isinstance(answer, ChatCompletion)
    equal(answer.object, "chat.completion")
    equal(answer.model, MODEL)
    assert answer.id.startswith("chatcmpl-") and answer.system_fingerprint.startswith("fp_")
    choice = answer.choices[0]
    equal((choice.index, choice.finish_reason, choice.logprobs), (0, "stop", None))
    equal((choice.message.role, choice.message.content), ("assistant", "Hello there, blåbær friend 🫐."))
    equal((choice.message.tool_calls, choice.message.refusal), (None, None))
    adds_up(answer.usage)


@call
def chat_streamed():
    chunks = stream("Say hello")
    equal(said(chunks), ("Hello there, blåbær friend 🫐.", "stop"))
    assert len(chunks) > 4 and all(chunk.usage is None for chunk in chunks)
    assert all(chunk.object == "chat.completion.chunk" and chunk.model == MODEL for chunk in chunks)


@call
def usage_streamed():
    *chunks, last = stream("Say hello", stream_options={"include_usage": True})
    equal(last.choices, [])
    adds_up(last.usage)
    assert all(chunk.usage is None for chunk in chunks)
    whole = ask("Say hello").usage
    equal((last.usage.prompt_tokens, last.usage.completion_tokens), (whole.prompt_tokens, whole.completion_tokens))


@call
def stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": "Say hello"}]) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds
    equal(final.choices[0].message.content, "Hello there, blåbær friend 🫐.")


@call
async def asynchronously():
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as other:
        messages = [{"role": "user", "content": "Say hello"}]
        answer = await other.chat.completions.create(model=MODEL, messages=messages)
        chunks = await other.chat.completions.create(model=MODEL, messages=messages, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        equal(text, answer.choices[0].message.content)


@call
def every_role():
    arguments = json.dumps({"city": "Oslo"})
    used = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "name": "ada", "content": [{"type": "text", "text": "How is"}, {"type": "text", "text": " it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [used]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "system", "content": "Go on."},
        {"role": "user", "content": "Say hello"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    equal(answer.choices[0].message.content, "Hello there, blåbær friend 🫐.")


def is_weather_call(tool_call):
    assert tool_call.id.startswith("call_")
    equal((tool_call.type, tool_call.function.name), ("function", "weather"))
    equal(json.loads(tool_call.function.arguments), {"city": "Oslo"})


@call
def tool_round_trip():
    first = ask("Call for the weather", tools=TOOLS)
    choice = first.choices[0]
    equal((choice.finish_reason, choice.message.content), ("tool_calls", None))
    (tool_call,) = choice.message.tool_calls
    is_weather_call(tool_call)
    messages = [
        {"role": "user", "content": "Call for the weather"},
        choice.message,
        {"role": "tool", "tool_call_id": tool_call.id, "content": "21 degrees"},
    ]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    equal(second.choices[0].message.content, "It is 21 degrees in Oslo.")
    assert second.usage.prompt_tokens_details.cached_tokens > 0


@call
def tools_streamed():
    chunks = stream("Call for both", tools=TOOLS)
    calls = {}
    for piece in [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]:
        if piece.index not in calls:
            assert piece.id.startswith("call_") and piece.type == "function"
            calls[piece.index] = [piece.function.name, ""]
        calls[piece.index][1] += piece.function.arguments or ""
    found = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    equal(found, [("weather", {"city": "Oslo"}), ("time", {"city": "Bergen"})])
    equal(said(chunks), ("", "tool_calls"))


@call
def tools_by_stream_helper():
    messages = [{"role": "user", "content": "Call for both"}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        final = events.get_final_completion()
    equal([event.name for event in done], ["weather", "time"])
    equal([tool_call.function.name for tool_call in final.choices[0].message.tool_calls], ["weather", "time"])


@call
def tool_choices():
    def names(text, choice, **more):
        message = ask(text, tools=TOOLS, tool_choice=choice, max_tokens=200, **more).choices[0].message
        return [tool_call.function.name for tool_call in message.tool_calls or []]

    def allowed(mode):
        tools = [{"type": "function", "function": {"name": "weather"}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    equal(names("Call for the weather", "auto"), ["weather"])
    equal(names("Say hello", "none"), [])
    equal(names("Call for the weather", "required"), ["weather"])
    equal(names("Call for the weather", {"type": "function", "function": {"name": "time"}}), ["time"])
    equal(names("Call for the weather", allowed("required")), ["weather"])
    equal(names("Say hello", allowed("auto")), [])
    equal(names("Call for both", "auto", parallel_tool_calls=False), ["weather"])


def custom(name, **form):
    """A custom tool whose input has this form."""
    more = {"format": {"type": "grammar", "grammar": form}} if form else {}
    return {"type": "custom", "custom": {"name": name, **more}}


@call
def custom_tools():
    tools = [*TOOLS, custom("patch")]
    first = ask("Patch the file", tools=tools).choices[0]
    (tool_call,) = first.message.tool_calls
    assert isinstance(tool_call, ChatCompletionMessageCustomToolCall) and tool_call.id.startswith("call_")
    equal((tool_call.custom.name, tool_call.custom.input), ("patch", 'say "hi"\n-bye\n'))
    output = {"role": "tool", "tool_call_id": tool_call.id, "content": "21 degrees"}
    messages = [{"role": "user", "content": "Patch the file"}, first.message, output]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    equal(second.choices[0].message.content, "It is 21 degrees in Oslo.")
    assert second.usage.prompt_tokens_details.cached_tokens > 0

    chunks = stream("Patch the file", tools=tools)
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    equal((pieces[0].type, pieces[0].custom["name"]), ("custom", "patch"))
    equal("".join(piece.custom["input"] for piece in pieces), 'say "hi"\n-bye\n')
    equal(said(chunks), ("", "tool_calls"))


@call
def a_custom_tool_keeps_to_its_grammar():
    number = custom("number", syntax="regex", definition="[0-9]{2}")
    for choice in ("auto", {"type": "custom", "custom": {"name": "number"}}):
        (tool_call,) = ask("Give a number", tools=[number], tool_choice=choice).choices[0].message.tool_calls
        assert len(tool_call.custom.input) == 2 and tool_call.custom.input.isdigit(), tool_call
    unknown = custom("patch", syntax="lark", definition="start: nothing")
    answer = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Patch the file"}], tools=[unknown])
    assert "not enforced" in answer.headers["warning"], answer.headers
    equal(answer.parse().choices[0].message.tool_calls[0].custom.name, "patch")


@call
def json_objects():
    answer = ask("Answer in JSON", response_format={"type": "json_object"})
    equal(json.loads(answer.choices[0].message.content), {"city": "Oslo", "degrees": 21})
    text, reason = said(stream("Answer in JSON", response_format={"type": "json_object"}))
    equal((json.loads(text), reason), ({"city": "Oslo", "degrees": 21}, "stop"))


@call
def schemas():
    messages = [{"role": "user", "content": "Answer in JSON"}]
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Weather)
    equal(parsed.choices[0].message.parsed, Weather(city="Oslo", degrees=21))
    with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Weather) as events:
        final = events.get_final_completion()
    equal(final.choices[0].message.parsed, Weather(city="Oslo", degrees=21))
    # The model would rather say something else, and must not.
    messages = [{"role": "user", "content": "Say hello"}]
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "fine", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(model=MODEL, messages=messages, response_format=format, max_tokens=100)
    assert isinstance(json.loads(answer.choices[0].message.content)["ok"], bool)


def is_likely(tokens, text):
    equal(b"".join(bytes(token.bytes) for token in tokens).decode(), text)
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        equal(token.top_logprobs[0].logprob, token.logprob)


@call
def log_probabilities():
    choice = ask("Say hello", logprobs=True, top_logprobs=3).choices[0]
    is_likely(choice.logprobs.content, choice.message.content)
    chunks = stream("Say hello", logprobs=True, top_logprobs=3)
    choices = [chunk.choices[0] for chunk in chunks]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    is_likely(tokens, said(chunks)[0])


@call
def several_choices():
    one = ask("Say hello").usage
    answer = ask("Say hello", n=3, seed=7, temperature=1)
    equal([choice.index for choice in answer.choices], [0, 1, 2])
    equal({choice.message.content for choice in answer.choices}, {"Hello there, blåbær friend 🫐."})
    equal(answer.usage.prompt_tokens, one.prompt_tokens)
    equal(answer.usage.completion_tokens, 3 * one.completion_tokens)
    *chunks, last = stream("Say hello", n=3, stream_options={"include_usage": True})
    for index in range(3):
        equal(said(chunks, index), ("Hello there, blåbær friend 🫐.", "stop"))
    equal(last.usage.completion_tokens, 3 * one.completion_tokens)


@call
def sampling():
    more = {
        "seed": 7, "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": -0.1,
        "logit_bias": {"5": -1}, "user": "ada", "metadata": {"a": "b"}, "store": False, "service_tier": "auto",
        "reasoning_effort": "none", "verbosity": "low", "prompt_cache_key": "x",
    }
    equal(ask("Say hello", **more).choices[0].message.content, "Hello there, blåbær friend 🫐.")
    equal(said(stream("Say hello", **more))[0], "Hello there, blåbær friend 🫐.")


@call
def stops():
    for stop in (" there", ["x", " there"]):
        choice = ask("Say hello", stop=stop).choices[0]
        equal((choice.message.content, choice.finish_reason), ("Hello", "stop"))
        equal(said(stream("Say hello", stop=stop)), ("Hello", "stop"))


@call
def limits():
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask("Count", **{name: 3})
        equal((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 3))
        equal(said(stream("Count", **{name: 3}))[1], "length")


@call
def reasoning():
    message = ask("Think first").choices[0].message
    equal((message.content, message.reasoning_content.strip()), ("Forty-two.", "Let me see."))
    chunks = stream("Think first")
    thoughts = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks]
    equal(("".join(thoughts).strip(), said(chunks)), ("Let me see.", ("Forty-two.", "stop")))
    messages = [{"role": "user", "content": "Think first"}, message, {"role": "user", "content": "Say hello"}]
    again = client.chat.completions.create(model=MODEL, messages=messages)
    equal(again.choices[0].message.content, "Hello there, blåbær friend 🫐.")


@call
def beyond_the_api():
    more = {"pensieve": {"grammar": {"regex": "(yes|no)"}, "seed": 3}}
    equal(ask("Say hello", extra_body=more).choices[0].message.content in ("yes", "no"), True)
    error = refused(openai.BadRequestError, lambda: ask("Say hello", extra_body={"pensieve": {"sampler": 1}}))
    equal(error.param, "pensieve.sampler")


@call
def stream_left_early():
    with ask("Count", stream=True) as chunks:
        next(iter(chunks))
    equal(ask("Say hello").choices[0].finish_reason, "stop")


@call
def completion():
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=50)
    assert isinstance(answer, Completion)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    choice = answer.choices[0]
    equal((choice.index, choice.text, choice.finish_reason, choice.logprobs), (0, " a time.", "stop", None))
    adds_up(answer.usage)


@call
def completion_streamed():
    chunks = list(client.completions.create(
        model=MODEL, prompt="Once upon", max_tokens=50, stream=True, stream_options={"include_usage": True}))
    assert all(isinstance(chunk, Completion) for chunk in chunks)
    last = chunks.pop()
    equal(last.choices, [])
    adds_up(last.usage)
    equal("".join(chunk.choices[0].text for chunk in chunks), " a time.")
    equal([chunk.choices[0].finish_reason for chunk in chunks][-2:], [None, "stop"])


@call
def completions_of_several_prompts():
    answer = client.completions.create(model=MODEL, prompt=["Once upon", "Say hello"], n=2, max_tokens=50)
    hello = "Hello there, blåbær friend 🫐."
    equal([(choice.index, choice.text) for choice in answer.choices], list(enumerate([" a time."] * 2 + [hello] * 2)))
    for prompt in ([1, 2, 3], [[1, 2], [3]]):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
        equal(len(answer.choices), 1 if prompt[0] == 1 else 2)
        equal(answer.usage.prompt_tokens, 3)


@call
def completion_options():
    def complete(**more):
        return client.completions.create(model=MODEL, prompt="Once upon", **{"max_tokens": 50, **more})

    equal(complete(echo=True).choices[0].text, "Once upon a time.")
    equal(complete(stop="time").choices[0].text, " a ")
    equal(complete(max_tokens=2).choices[0].finish_reason, "length")
    equal(len(complete(n=2, best_of=3, seed=5, temperature=1).choices), 2)
    equal(complete(presence_penalty=1, frequency_penalty=1, top_p=0.5, user="ada").choices[0].text, " a time.")
    found = complete(logprobs=2).choices[0]
    lists = found.logprobs
    equal("".join(lists.tokens), found.text)
    equal(len({len(lists.tokens), len(lists.token_logprobs), len(lists.top_logprobs), len(lists.text_offset)}), 1)
    equal(lists.text_offset[:2], [0, len(lists.tokens[0])])
    assert all(len(top) in (2, 3) and token in top for token, top in zip(lists.tokens, lists.top_logprobs))
    equal(refused(openai.BadRequestError, lambda: complete(suffix="x")).param, "suffix")


@call
def models():
    listed = client.models.list()
    assert all(isinstance(model, Model) for model in listed)
    equal([model.id for model in listed], [MODEL])
    model = client.models.retrieve(MODEL)
    equal((model.id, model.object, model.owned_by), (MODEL, "model", "pensieve"))
    error = refused(openai.NotFoundError, lambda: client.models.retrieve("nobody"))
    equal((error.code, error.param), ("model_not_found", "model"))


@call
def unknown_models_are_the_default():
    messages = [{"role": "user", "content": "Say hello"}]
    answer = client.chat.completions.create(model="gpt-anything", messages=messages)
    equal(answer.choices[0].message.content, "Hello there, blåbær friend 🫐.")


@call
def refusals():
    table = [
        ("temperature", {"temperature": 2.1}),
        ("top_p", {"top_p": -0.1}),
        ("n", {"n": 9}),
        ("stop", {"stop": ["a", "b", "c", "d", "e"]}),
        ("max_tokens", {"max_tokens": 0}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("presence_penalty", {"presence_penalty": 3}),
        ("logit_bias.5", {"logit_bias": {"5": 101}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("functions", {"functions": [{"name": "old"}]}),
        ("response_format.type", {"response_format": {"type": "yaml"}}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
    ]
    for field, more in table:
        error = refused(openai.BadRequestError, lambda: ask("Say hello", **more))
        equal((error.param, error.type, error.status_code), (field, "invalid_request_error", 400))
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": [{"type": "text", "text": "Say hello"}, *image]}])
    assert "messages.0.content.1" in raw.headers["warning"], raw.headers
    error = refused(openai.BadRequestError, lambda: list(ask("Say hello", stream=True, temperature=-1)))
    equal(error.param, "temperature")


@call
def too_long():
    for more in ({}, {"stream": True}):
        error = refused(openai.BadRequestError, lambda: ask("word " * 80_000, **more))
        equal(error.code, "context_length_exceeded")
        assert "prompt is too long" in error.message


@call
def keys_of_other_services():
    other = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-proj-of-another-service", max_retries=0)
    assert list(other.models.list())


@call
def raw_responses():
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello"}])
    assert raw.headers["x-request-id"]
    equal(raw.headers["content-type"], "application/json")
    equal(raw.parse().choices[0].finish_reason, "stop")


if __name__ == "__main__":
    main()
