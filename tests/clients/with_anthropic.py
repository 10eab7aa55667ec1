"""Anthropic's Python SDK against Pensieve: every feature that is served, streamed and not, with the SDK's own types."""

import json

import anthropic
from anthropic.types import Message, MessageTokensCount, ModelInfo, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from pydantic import BaseModel

from calls import KEY, MODEL, URL, call, equal, main, refused

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=60)

HELLO = "Hello there, blåbær friend 🫐."
TOOLS = [
    {
        "name": name,
        "description": f"Tells the {name} of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    for name in ("weather", "time")
]


class Weather(BaseModel):
    city: str
    degrees: int


def user(content):
    return {"role": "user", "content": content}


def ask(content, **more):
    return client.messages.create(**{"model": MODEL, "max_tokens": 1000, "messages": [user(content)], **more})


def text(message):
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def tools_used(message):
    return [(block.name, block.input) for block in message.content if isinstance(block, ToolUseBlock)]


def events(content, **more):
    """The events of a stream, whose order is checked here."""
    found = [event for event in ask(content, stream=True, **more) if event.type != "ping"]
    kinds = [event.type for event in found]
    equal((kinds[0], kinds[-2:]), ("message_start", ["message_delta", "message_stop"]))
    place, is_open = -1, False
    for event in found[1:-2]:
        if event.type == "content_block_start":
            place += 1
            equal(is_open, False)
        equal((event.index, event.type == "content_block_start" or is_open), (place, True))
        is_open = event.type != "content_block_stop"
    equal(is_open, False)
    return found


def deltas(found, kind, name):
    pieces = [event.delta for event in found if event.type == "content_block_delta"]
    return "".join(getattr(piece, name) for piece in pieces if piece.type == kind)


def total(usage: Usage):
    assert isinstance(usage, Usage) or usage.output_tokens > 0
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


@call
def message():
    answer = ask("Say hello")
    assert isinstance(answer, Message) and answer.id.startswith("msg_")
    equal((answer.type, answer.role, answer.model), ("message", "assistant", MODEL))
    equal(([block.type for block in answer.content], text(answer)), (["text"], HELLO))
    equal((answer.stop_reason, answer.stop_sequence), ("end_turn", None))
    assert total(answer.usage) > 0 and answer.usage.output_tokens > 0


@call
def message_streamed():
    found = events("Say hello")
    equal(deltas(found, "text_delta", "text"), HELLO)
    start, delta = found[0].message, found[-2]
    equal((start.content, start.stop_reason, delta.delta.stop_reason), ([], None, "end_turn"))
    whole = ask("Say hello").usage
    equal((total(start.usage), delta.usage.output_tokens), (total(whole), whole.output_tokens))


@call
def stream_helper():
    with client.messages.stream(model=MODEL, max_tokens=100, messages=[user("Say hello")]) as stream:
        equal("".join(stream.text_stream), HELLO)
        final = stream.get_final_message()
    equal((text(final), final.stop_reason), (HELLO, "end_turn"))


@call
async def asynchronously():
    async with anthropic.AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0) as other:
        answer = await other.messages.create(model=MODEL, max_tokens=100, messages=[user("Say hello")])
        equal(text(answer), HELLO)
        async with other.messages.stream(model=MODEL, max_tokens=100, messages=[user("Say hello")]) as stream:
            equal("".join([piece async for piece in stream.text_stream]), HELLO)


@call
def bearer_tokens():
    other = anthropic.Anthropic(base_url=URL, auth_token=KEY, max_retries=0)
    answer = other.messages.create(model=MODEL, max_tokens=100, messages=[user("Say hello")])
    equal(text(answer), HELLO)


@call
def tokens_are_counted():
    more = {"messages": [user("Say hello")], "system": "Be brief.", "tools": TOOLS}
    count = client.messages.count_tokens(model=MODEL, **more)
    assert isinstance(count, MessageTokensCount)
    answer = client.messages.create(model=MODEL, max_tokens=10, **more)
    equal(count.input_tokens, total(answer.usage))
    fewer = client.messages.count_tokens(model=MODEL, messages=more["messages"])
    assert fewer.input_tokens < count.input_tokens


@call
def systems_and_caches():
    system = [
        {"type": "text", "text": "Be brief and kind, and remember that the reader may be in a hurry. " * 4},
        {"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}},
    ]
    first = ask("Say hello", system=system)
    messages = [
        user([{"type": "text", "text": "Say hello"}]),
        {"role": "assistant", "content": first.content},
        {"role": "system", "content": "Hurry."},
        user([{"type": "text", "text": "Say hello", "cache_control": {"type": "ephemeral"}}]),
    ]
    second = client.messages.create(model=MODEL, max_tokens=100, system=system, messages=messages)
    equal(text(second), HELLO)
    assert second.usage.cache_read_input_tokens > 32


def is_weather_use(block):
    assert isinstance(block, ToolUseBlock) and block.id.startswith("toolu_")
    equal((block.name, block.input), ("weather", {"city": "Oslo"}))


@call
def tool_round_trip():
    first = ask("Call for the weather", tools=TOOLS)
    equal(first.stop_reason, "tool_use")
    is_weather_use(first.content[-1])
    for content in ("21 degrees", [{"type": "text", "text": "21 degrees"}]):
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": content, "is_error": False}
        messages = [user("Call for the weather"), {"role": "assistant", "content": first.content}, user([result])]
        second = client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=TOOLS)
        equal((text(second), second.stop_reason), ("It is 21 degrees in Oslo.", "end_turn"))


@call
def tools_streamed():
    found = events("Call for the weather", tools=TOOLS)
    equal(json.loads(deltas(found, "input_json_delta", "partial_json")), {"city": "Oslo"})
    equal(found[-2].delta.stop_reason, "tool_use")
    with client.messages.stream(model=MODEL, max_tokens=500, messages=[user("Call for both")], tools=TOOLS) as stream:
        final = stream.get_final_message()
    equal(tools_used(final), [("weather", {"city": "Oslo"}), ("time", {"city": "Bergen"})])


@call
def tool_choices():
    def names(content, **choice):
        return [name for name, _ in tools_used(ask(content, tools=TOOLS, tool_choice=choice, max_tokens=200))]

    equal(names("Call for the weather", type="auto"), ["weather"])
    equal(names("Say hello", type="none"), [])
    equal(names("Call for the weather", type="any"), ["weather"])
    equal(names("Call for the weather", type="tool", name="time"), ["time"])
    equal(names("Call for both", type="auto", disable_parallel_tool_use=True), ["weather"])


@call
def tool_runner():
    asked = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return "21 degrees"

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, messages=[user("Call for the weather")], tools=[weather])
    final = runner.until_done()
    equal((asked, final.content[0].text), (["Oslo"], "It is 21 degrees in Oslo."))


@call
def stop_sequences():
    answer = ask("Say hello", stop_sequences=["x", " there"])
    equal((text(answer), answer.stop_reason, answer.stop_sequence), ("Hello", "stop_sequence", " there"))
    found = events("Say hello", stop_sequences=[" there"])
    equal((found[-2].delta.stop_reason, found[-2].delta.stop_sequence), ("stop_sequence", " there"))


@call
def limits():
    answer = ask("Count", max_tokens=3)
    equal((answer.stop_reason, answer.usage.output_tokens), ("max_tokens", 3))
    equal(events("Count", max_tokens=3)[-2].delta.stop_reason, "max_tokens")
    # More than there is room for is no reason to refuse.
    equal(events("Say hello", max_tokens=1_000_000)[-2].delta.stop_reason, "end_turn")


@call
def thinking():
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    answer = ask("Think first", **more)
    first = answer.content[0]
    assert isinstance(first, ThinkingBlock) and first.signature
    equal((first.thinking.strip(), text(answer)), ("Let me see.", "Forty-two."))
    found = events("Think first", **more)
    equal(deltas(found, "thinking_delta", "thinking").strip(), "Let me see.")
    assert deltas(found, "signature_delta", "signature")
    messages = [user("Think first"), {"role": "assistant", "content": answer.content}, user("Say hello")]
    again = client.messages.create(model=MODEL, messages=messages, **more)
    equal(text(again), HELLO)


@call
def formats():
    parsed = client.messages.parse(
        model=MODEL, max_tokens=100, messages=[user("Answer in JSON")], output_format=Weather)
    equal(parsed.parsed_output, Weather(city="Oslo", degrees=21))
    # The model would rather say something else, and must not.
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    assert isinstance(json.loads(text(ask("Say hello", output_config=config)))["ok"], bool)
    assert isinstance(json.loads(deltas(events("Say hello", output_config=config), "text_delta", "text"))["ok"], bool)


@call
def sampling():
    more = {"temperature": 0.5, "top_k": 40, "top_p": 0.9, "metadata": {"user_id": "ada"}, "service_tier": "auto"}
    equal(text(ask("Say hello", extra_body={"whatever": 1, **more})), HELLO)


@call
def beyond_the_api():
    answer = ask("Say hello", extra_body={"pensieve": {"grammar": {"regex": "(yes|no)"}, "seed": 3}})
    assert text(answer) in ("yes", "no")


@call
def stream_left_early():
    with ask("Count", stream=True) as found:
        next(iter(found))
    equal(ask("Say hello").stop_reason, "end_turn")


@call
def models():
    listed = list(client.models.list())
    assert all(isinstance(model, ModelInfo) for model in listed)
    # Claude Code's discovery keeps ids that contain "claude", so each model has a second name for it.
    equal([model.id for model in listed], [MODEL, f"pensieve/claude-{MODEL}"])
    equal(client.models.retrieve(f"pensieve/claude-{MODEL}").type, "model")
    equal(ask("Say hello", model=f"pensieve/claude-{MODEL}").model, f"pensieve/claude-{MODEL}")
    model = client.models.retrieve(MODEL)
    equal((model.id, model.type), (MODEL, "model"))


@call
def unknown_models_are_the_default():
    equal(text(ask("Say hello", model="claude-haiku-anything")), HELLO)


@call
def refusals():
    table = [
        ("max_tokens", {"max_tokens": 0}),
        ("temperature", {"extra_body": {"temperature": 1.5}}),
        ("top_k", {"extra_body": {"top_k": -1}}),
        ("messages", {"messages": []}),
        ("tool_choice", {"tool_choice": {"type": "any"}}),
        ("stop_sequences", {"stop_sequences": [""]}),
        ("messages", {"messages": [user([{"type": "video"}])]}),
    ]
    for field, more in table:
        for stream in (False, True):
            error = refused(anthropic.BadRequestError, lambda: ask("Say hello", stream=stream, **more))
            equal((error.status_code, error.body["error"]["type"]), (400, "invalid_request_error"))
            assert error.body["error"]["message"].startswith(field), error.body
            assert error.request_id


@call
def too_long():
    for stream in (False, True):
        error = refused(anthropic.BadRequestError, lambda: ask("word " * 80_000, stream=stream))
        assert error.body["error"]["message"].startswith("prompt is too long: "), error.body


@call
def keys_of_other_services():
    other = anthropic.Anthropic(base_url=URL, api_key="sk-ant-of-another-service", max_retries=0)
    assert list(other.models.list())


@call
def images_become_notes():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    raw = client.messages.with_raw_response.create(
        model=MODEL, max_tokens=100, messages=[user([{"type": "text", "text": "Say hello"}, image])])
    assert "messages.0.content.1" in raw.headers["warning"], raw.headers
    equal(text(raw.parse()), HELLO)


@call
def raw_responses():
    raw = client.messages.with_raw_response.create(model=MODEL, max_tokens=100, messages=[user("Say hello")])
    assert raw.headers["request-id"]
    equal(text(raw.parse()), HELLO)


if __name__ == "__main__":
    main()
