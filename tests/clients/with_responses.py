"""The Responses API through OpenAI's Python SDK: its methods, its typed events, and a round trip of a function."""

import json
import pathlib
import re

import httpx
import openai
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from calls import KEY, MODEL, URL, call, equal, main, refused

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60)
HELLO = "Hello there, blåbær friend 🫐."
TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": f"Tells the {name} of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    for name in ("weather", "time")
]


class Weather(BaseModel):
    city: str
    degrees: int


def create(question, /, **more):
    return client.responses.create(model=MODEL, input=question, **more)


def valid(response):
    """The SDK builds its types from whatever comes; this holds a response against them strictly."""
    Response.model_validate(response.model_dump(warnings=False))
    return response


EVENT = TypeAdapter(ResponseStreamEvent)


def events(**body):
    """The events of an answer as they stand on the wire, each held against the SDK's types."""
    body = {"model": MODEL, "stream": True, **body}
    lines = httpx.post(f"{URL}/v1/responses", json=body, timeout=60).text.splitlines()
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    for event in data:
        typed = EVENT.validate_python(event)
        equal(typed.type, event["type"])
    return data


@call
def text():
    response = valid(create("Say hello"))
    equal((response.output_text, response.status, response.object), (HELLO, "completed", "response"))
    usage = response.usage
    equal(usage.total_tokens, usage.input_tokens + usage.output_tokens)
    assert 0 <= usage.input_tokens_details.cached_tokens <= usage.input_tokens


@call
def streamed_text():
    events = list(create("Say hello", stream=True))
    equal([event.sequence_number for event in events], list(range(len(events))))
    kinds = [event.type for event in events]
    equal(kinds[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
    ends = ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    equal(kinds[-4:], ends)
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), HELLO)
    equal(valid(events[-1].response).output_text, HELLO)


@call
def stream_helper():
    with client.responses.stream(model=MODEL, input="Say hello") as stream:
        kinds = {event.type for event in stream}
        equal(stream.get_final_response().output_text, HELLO)
    assert "response.output_text.delta" in kinds and "response.completed" in kinds, kinds


@call
def parsed():
    response = client.responses.parse(model=MODEL, input="Answer in JSON", text_format=Weather)
    equal(response.output_parsed, Weather(city="Oslo", degrees=21))


@call
def a_function_and_its_output():
    first = valid(create("Call for the weather", tools=TOOLS))
    (item,) = first.output
    assert isinstance(item, ResponseFunctionToolCall), item
    equal((item.name, item.arguments.replace(" ", "")), ("weather", '{"city":"Oslo"}'))
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "21 degrees"}
    answer = "It is 21 degrees in Oslo."
    equal(create([output], tools=TOOLS, previous_response_id=first.id).output_text, answer)
    history = [{"role": "user", "content": "Call for the weather"}, item.model_dump(exclude_none=True), output]
    equal(create(history, tools=TOOLS, store=False).output_text, answer)


@call
def two_functions_streamed():
    events = list(create("Call for both", tools=TOOLS, stream=True))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    equal([(event.output_index, event.name) for event in done], [(0, "weather"), (1, "time")])
    equal([item.name for item in events[-1].response.output], ["weather", "time"])


@call
def reasoning_goes_there_and_back():
    response = valid(create("Think first", include=["reasoning.encrypted_content"], store=False))
    reasoning, message = response.output
    equal((reasoning.type, reasoning.content[0].text.strip()), ("reasoning", "Let me see."))
    assert reasoning.encrypted_content and message.content[0].text.strip() == "Forty-two.", response
    history = [*(item.model_dump(exclude_none=True) for item in response.output), {"role": "user", "content": "Say hello"}]
    equal(create(history).output_text, HELLO)


PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Changes a file.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: line+\nline: ("+" | "-") /[^\\n]*/ "\\n"\n'},
}
LARK = pathlib.Path(__file__).parent.parent / "fixtures/codex/apply_patch.lark"
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files. This is a FREEFORM tool, so do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": LARK.read_text()},
}
NUMBER = {"type": "custom", "name": "number", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}"}}


@call
def every_event_is_of_the_sdks_types():
    seen = set()
    for body in [
        {"input": "Say hello"},
        {"input": "Think first", "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}},
        {"input": "Call for both", "tools": TOOLS, "tool_choice": "required", "instructions": "Be kind."},
        {"input": "Patch the file", "tools": [PATCH], "parallel_tool_calls": False},
        {"input": "Answer in JSON", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}},
        {"input": "Count", "max_output_tokens": 3, "metadata": {"a": "b"}, "temperature": 0.5},
    ]:
        seen |= {event["type"].removeprefix("response.") for event in events(**body)}
    expected = {
        "created", "in_progress", "completed", "incomplete", "output_item.added", "output_item.done", "content_part.added",
        "content_part.done", "output_text.delta", "output_text.done", "reasoning_text.delta", "reasoning_text.done",
        "function_call_arguments.delta", "function_call_arguments.done", "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
    }
    equal(seen, expected)


@call
def a_custom_tool_keeps_to_its_grammar():
    # The model leaves out what lines begin with.
    (item,) = valid(create("Patch the file", tools=[PATCH], temperature=0)).output
    equal((item.type, item.name), ("custom_tool_call", "patch"))
    assert re.fullmatch(r'[+-]say "hi"\n-bye\n', item.input), item.input
    output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "21 degrees"}
    history = [{"role": "user", "content": "Patch the file"}, item.model_dump(exclude_none=True), output]
    equal(create(history, tools=[PATCH]).output_text, "It is 21 degrees in Oslo.")
    item = create("Give a number", tools=[NUMBER], temperature=0).output[0]
    assert re.fullmatch("[0-9]{2}", item.input), item.input


@call
def codex_patches_keep_to_their_grammar():
    for stream in (False, True):
        answer = create("Apply the change", tools=[APPLY_PATCH], stream=stream, temperature=0)
        item = (list(answer)[-1].response if stream else answer).output[0]
        equal((item.type, item.name), ("custom_tool_call", "apply_patch"))
        # The model leaves the first asterisks out; the rest is as it wrote it, quotes and backslashes included.
        equal(item.input, '*** Begin Patch\n*** Add File: a "b".txt\n+one\\two\n+\n*** End Patch\n')


@call
def a_grammar_beyond_the_engine_is_a_warning():
    for syntax, definition in [("lark", 'start: "(" start ")" | "x"'), ("lark", "start: ("), ("regex", "a(?=b)"), ("regex", "(a")]:
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        response = valid(create("Patch the file", tools=[{"type": "custom", "name": "patch", "format": form}]))
        equal((response.output[0].type, response.output[0].name), ("custom_tool_call", "patch"))
        assert "tools.0.format.definition" in response.metadata["pensieve_warning_0"], response.metadata


@call
def a_strict_function_is_enforced_or_refused():
    hopeless = {"type": "object", "properties": {"x": {"$ref": "https://example.org/x"}}}
    tool = {"type": "function", "name": "weather", "parameters": hopeless, "strict": True}
    error = refused(openai.BadRequestError, lambda: create("Call for the weather", tools=[tool]))
    equal(error.param, "tools.0.parameters")
    create("Call for the weather", tools=[{**tool, "strict": False}])


@call
def stored_responses():
    first = create("Say hello", instructions="Be kind.", metadata={"a": "b"})
    found = valid(client.responses.retrieve(first.id))
    equal((found.id, found.output_text, found.metadata), (first.id, HELLO, {"a": "b"}))
    second = create("Count", previous_response_id=first.id)
    equal(second.previous_response_id, first.id)
    items = list(client.responses.input_items.list(second.id))
    equal([item.role for item in items], ["user", "assistant", "user"])
    for order, roles in [("asc", ["user", "assistant", "user"]), ("desc", ["user", "assistant", "user"])]:
        listed = list(client.responses.input_items.list(second.id, order=order, limit=1))
        equal([item.role for item in listed], roles)
        equal({item.id for item in listed}, {item.id for item in items})
        equal([item.id for item in listed] == [item.id for item in items], order == "desc")
    error = refused(openai.BadRequestError, lambda: client.responses.input_items.list(second.id, limit=0))
    equal(error.param, "limit")
    events = list(client.responses.retrieve(first.id, stream=True))
    equal([event.sequence_number for event in events], list(range(len(events))))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), HELLO)
    equal(valid(events[-1].response).id, first.id)
    rest = list(client.responses.retrieve(first.id, stream=True, starting_after=events[-2].sequence_number))
    equal([event.type for event in rest], ["response.completed"])
    with client.responses.stream(response_id=first.id) as stream:
        equal(stream.get_final_response().output_text, HELLO)
    client.responses.delete(first.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    error = refused(openai.BadRequestError, lambda: create("Count", previous_response_id=first.id))
    equal(error.code, "previous_response_not_found")
    hidden = create("Say hello", store=False)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(hidden.id))


@call
def counted_tokens():
    count = client.responses.input_tokens.count(model=MODEL, input="Say hello").input_tokens
    equal(count, create("Say hello").usage.input_tokens)


@call
def a_limit_makes_it_incomplete():
    response = valid(create("Count", max_output_tokens=3))
    equal((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))


@call
def what_runs_elsewhere_is_left_out():
    response = create("Say hello", tools=[{"type": "web_search"}], tool_choice="auto")
    equal(response.output_text, HELLO)
    assert "web_search" in response.metadata["pensieve_warning_0"], response.metadata


@call
def errors():
    for field, more in [
        ("temperature", {"temperature": 3}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("tools.0.name", {"tools": [{"type": "function", "name": "a b"}]}),
        ("text.format.type", {"text": {"format": {"type": "xml"}}}),
        ("conversation", {"conversation": "conv_1"}),
    ]:
        for stream in (False, True):
            error = refused(openai.BadRequestError, lambda: create("Say hello", stream=stream, **more))
            equal((error.param, error.type), (field, "invalid_request_error"))
    error = refused(openai.BadRequestError, lambda: create("word " * 80_000))
    equal((error.code, error.param), ("context_length_exceeded", "input"))
    refused(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="x"))


if __name__ == "__main__":
    main()
