"""What every program in this folder asks, and how it is seen that the model has called the tool and told what it said."""

import os

URL = os.environ["PENSIEVE_URL"]
KEY = "sk-of-another-service"
MODEL = "pensieve-starter"
QUESTION = "What is the weather like in Lisbon?"

CALLED = []


def weather(city: str) -> str:
    """Get the current weather in a city.

    Args:
        city: The city.
    """
    CALLED.append(city)
    return f"21 degrees and sunny in {city}"


def check(answer, pieces=2):
    assert CALLED == ["Lisbon"], f"the tool was called with {CALLED}"
    assert "21 degrees and sunny in Lisbon" in answer, f"the answer is {answer!r}"
    assert pieces > 1, f"the stream has {pieces} pieces"
    print(f"called, answered and streamed in {pieces} pieces: {answer.strip()}")
