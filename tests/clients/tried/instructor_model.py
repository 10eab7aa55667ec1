"""instructor: a typed answer through tools and through JSON schemas, and one that is streamed as it grows."""

import instructor
import openai
from pydantic import BaseModel

from question import KEY, MODEL, URL


class City(BaseModel):
    city: str


client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
asked = {"model": MODEL, "messages": [{"role": "user", "content": "Which city? Lisbon."}], "max_retries": 0, "max_tokens": 200, "temperature": 0}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    typed = instructor.from_openai(client, mode=mode)
    answer = typed.chat.completions.create(response_model=City, **asked)
    assert isinstance(answer.city, str), answer
    parts = list(typed.chat.completions.create_partial(response_model=City, **asked))
    assert len(parts) > 1 and isinstance(parts[-1].city, str), parts
    print(f"{mode}: {answer!r}, streamed in {len(parts)} pieces")
