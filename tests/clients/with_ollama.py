"""Ollama's Python client against Pensieve: chat, generate, tools, formats, and what it asks about models."""

import ollama

from calls import MODEL, URL, call, equal, main, refused

client = ollama.Client(host=URL)
HELLO = "Hello there, blåbær friend 🫐."


def weather(city: str) -> str:
    """Tells the weather of a city.

    Args:
      city: The city.
    """
    return f"21 degrees in {city}"


def user(text, **more):
    return [{"role": "user", "content": text, **more}]


@call
def chat():
    response = client.chat(MODEL, user("Say hello"))
    equal((response.message.content, response.done, response.done_reason), (HELLO, True, "stop"))
    assert response.prompt_eval_count > 0 and response.eval_count > 0 and response.total_duration > 0
    equal(client.chat(f"{MODEL}:latest", user("Say hello")).message.content, HELLO)


@call
def streamed_chat():
    parts = list(client.chat(MODEL, user("Say hello"), stream=True))
    equal("".join(part.message.content or "" for part in parts), HELLO)
    equal([part.done for part in parts], [False] * (len(parts) - 1) + [True])


@call
def tools():
    response = client.chat(MODEL, user("Call for the weather"), tools=[weather])
    (found,) = response.message.tool_calls
    equal((found.function.name, dict(found.function.arguments)), ("weather", {"city": "Oslo"}))
    result = {"role": "tool", "tool_name": "weather", "content": "21 degrees"}
    history = [*user("Call for the weather"), response.message, result]
    equal(client.chat(MODEL, history, tools=[weather]).message.content, "It is 21 degrees in Oslo.")
    parts = list(client.chat(MODEL, user("Call for both"), tools=[weather], stream=True))
    assert any(part.message.tool_calls for part in parts)


@call
def formats():
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}}}
    for form in ("json", schema):
        assert client.chat(MODEL, user("Answer in JSON"), format=form).message.content.startswith("{")


@call
def thoughts():
    message = client.chat(MODEL, user("Think first"), think=True).message
    equal((message.thinking.strip(), message.content.strip()), ("Let me see.", "Forty-two."))


@call
def generate():
    equal(client.generate(MODEL, "Say hello").response, HELLO)
    equal("".join(part.response for part in client.generate(MODEL, "Say hello", stream=True)), HELLO)
    equal(client.generate(MODEL, "Count", options={"num_predict": 2}).done_reason, "length")


@call
def models():
    equal([model.model for model in client.list().models], [MODEL])
    shown = client.show(MODEL)
    equal(shown.capabilities, ["completion", "tools", "logprobs"])
    assert any(name.endswith(".context_length") for name in shown.modelinfo), shown
    client.chat(MODEL, user("Say hello"))
    equal([model.model for model in client.ps().models], [MODEL])
    equal(client.pull(MODEL).status, "success")


@call
def images_become_notes():
    equal(client.chat(MODEL, user("Say hello", images=[b"AAAA"])).message.content, HELLO)


@call
def errors():
    error = refused(ollama.ResponseError, lambda: client.chat(MODEL, user("Say hello"), options={"top_p": 3}))
    equal(error.status_code, 400)
    assert error.error.startswith("options.top_p: "), error.error
    equal(refused(ollama.ResponseError, lambda: client.embed(MODEL, "x")).status_code, 400)
    equal(refused(ollama.ResponseError, lambda: client.show("nobody")).status_code, 404)
    assert "hf:OWNER/REPO" in refused(ollama.ResponseError, lambda: client.pull("nobody")).error


if __name__ == "__main__":
    main()
