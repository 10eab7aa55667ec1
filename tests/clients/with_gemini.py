"""Google's SDK for Python against Pensieve: contents, streams, functions, schemas, thoughts, counts, models, errors."""

from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from calls import KEY, MODEL, URL, call, equal, main, refused

HELLO = "Hello there, blåbær friend 🫐."
client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
WEATHER = types.Tool(function_declarations=[
    types.FunctionDeclaration(name=name, description="Tells it.", parameters=types.Schema(
        type="OBJECT", properties={"city": types.Schema(type="STRING")}, required=["city"],
    )) for name in ("weather", "time")
])


def generate(contents, **config):
    return client.models.generate_content(model=MODEL, contents=contents, config=types.GenerateContentConfig(**config))


@call
def text():
    response = generate("Say hello", system_instruction="Be kind.", temperature=0.5, top_k=40, max_output_tokens=100)
    equal((response.text, response.model_version), (HELLO, MODEL))
    equal(response.candidates[0].finish_reason, types.FinishReason.STOP)
    usage = response.usage_metadata
    equal(usage.total_token_count, usage.prompt_token_count + usage.candidates_token_count)
    equal(generate("Count", max_output_tokens=3).candidates[0].finish_reason, types.FinishReason.MAX_TOKENS)


@call
def streamed():
    parts = list(client.models.generate_content_stream(model=MODEL, contents="Say hello"))
    equal("".join(part.text for part in parts), HELLO)
    assert parts[-1].usage_metadata.candidates_token_count > 0


@call
async def streamed_async():
    stream = await client.aio.models.generate_content_stream(model=MODEL, contents="Say hello")
    equal("".join([part.text async for part in stream]), HELLO)


@call
def functions():
    (found,) = generate("Call for the weather", tools=[WEATHER]).function_calls
    equal((found.name, found.args), ("weather", {"city": "Oslo"}))
    both = generate("Call for both", tools=[WEATHER]).function_calls
    equal([found.name for found in both], ["weather", "time"])
    chosen = types.FunctionCallingConfig(mode="ANY", allowed_function_names=["weather"])
    forced = generate("Say hello", tools=[WEATHER], tool_config=types.ToolConfig(function_calling_config=chosen))
    equal(forced.function_calls[0].name, "weather")


@call
def functions_that_the_sdk_runs():
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"21 degrees in {city}"

    equal(generate("Call for the weather", tools=[weather]).text, "It is 21 degrees in Oslo.")


@call
def schemas():
    class Weather(BaseModel):
        city: str
        degrees: int

    response = generate("Answer in JSON", response_mime_type="application/json", response_schema=Weather)
    equal(response.parsed, Weather(city="Oslo", degrees=21))
    choice = {"type": "STRING", "enum": ["red", "blue"]}
    assert generate("Say hello", response_mime_type="text/x.enum", response_schema=choice).text in ("red", "blue")


@call
def thoughts():
    config = {"thinking_config": types.ThinkingConfig(include_thoughts=True)}
    parts = generate("Think first", **config).candidates[0].content.parts
    equal([(part.text, part.thought) for part in parts], [("Let me see.", True), ("Forty-two.", None)])
    parts = generate("Think first").candidates[0].content.parts
    equal([part.text for part in parts], ["Forty-two."])


@call
def chats():
    chat = client.chats.create(model=MODEL)
    equal(chat.send_message("Say hello").text, HELLO)
    equal("".join(part.text for part in chat.send_message_stream("Count"))[:7], "one two")


@call
def files():
    text = types.Part.from_bytes(data=b"Say hello", mime_type="text/plain")
    equal(generate([text]).text, HELLO)
    image = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    equal(generate([image, "Say hello"]).text, HELLO)


@call
def candidates():
    response = generate("Say hello", candidate_count=2, response_logprobs=True, logprobs=2)
    equal([candidate.content.parts[0].text for candidate in response.candidates], [HELLO, HELLO])
    result = response.candidates[0].logprobs_result
    equal(len(result.top_candidates[0].candidates), 2)
    assert result.chosen_candidates[0].log_probability <= 0


@call
def counts_and_models():
    counted = client.models.count_tokens(model=MODEL, contents="Say hello").total_tokens
    equal(generate("Say hello").usage_metadata.prompt_token_count, counted)
    equal([model.name for model in client.models.list()], [f"models/{MODEL}"])
    assert client.models.get(model=MODEL).input_token_limit > 0


@call
def complaints():
    error = refused(errors.ClientError, lambda: generate("Say hello", temperature=9))
    equal((error.code, error.status), (400, "INVALID_ARGUMENT"))
    assert error.message.startswith("generationConfig.temperature:"), error.message
    equal(refused(errors.ClientError, lambda: client.models.get(model="gone")).code, 404)


if __name__ == "__main__":
    main()
