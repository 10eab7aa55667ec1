"""Small models that answer in the form of schemas, through Pensieve and through llama.cpp's server: how many answers are complete and valid, and
how long they are.

    python -m venv venv && venv/bin/pip install numpy jsonschema xllamacpp
    cargo build --release
    venv/bin/python tests/real/schemas.py

The schemas are open, as pydantic and servers of the Model Context Protocol write them: none says `additionalProperties: false`, so a model that is only held
to valid JSON may go on with keys of its own until the limit. Both servers get the same requests, greedily, and one after the other.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import urllib.request

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import ROOT, fetch  # noqa: E402
from sessions import llama, pensieve, until_up  # noqa: E402

LIMIT = 256
TEXT, NUMBER, WHOLE, FLAG = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}


def fields(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required or properties)}


def some(items, **limits):
    return {"type": "array", "items": items, **limits}


PERSON = fields(name=TEXT, age=WHOLE)
CASES = [
    ("Anna is 31 years old.", PERSON),
    ("A red bicycle costs 250 euros.", fields(item=TEXT, colour={"enum": ["red", "green", "blue"]}, price=NUMBER)),
    ("The meeting is on Monday at noon in room 4.", fields(day=TEXT, time=TEXT, room=WHOLE)),
    ("The light is on.", fields(on=FLAG)),
    ("Oslo, Bergen and Bodø are towns in Norway.", fields(country=TEXT, towns=some(TEXT))),
    ("Tom is 7 and Eva is 9.", fields(people=some(PERSON))),
    ("Name a film and its year.", fields("title", title=TEXT, year={"anyOf": [WHOLE, {"type": "null"}]})),
    ("Bob lives in Main Street 5 in Paris.", fields(name=TEXT, address=fields(street=TEXT, number=WHOLE, city=TEXT))),
    ("I liked the soup very much.", fields(mood={"type": "string", "enum": ["good", "bad", "mixed"]})),
    ("Count from one to three.", some(WHOLE, minItems=3, maxItems=3)),
    ("Ada wrote 3 letters and Ben wrote 5.", {"type": "object", "additionalProperties": WHOLE}),
    ("Write a file notes.txt that says hello.", fields("path", "content", path=TEXT, content=TEXT, mode=TEXT)),
    ("Search for cheap hotels in Rome.", fields("query", query=TEXT, limit={**WHOLE, "minimum": 1, "maximum": 50})),
    ("What is the capital of France?", fields(answer=TEXT, confidence={**NUMBER, "minimum": 0, "maximum": 1})),
    ("Turn left and then right.", fields(steps=some({"enum": ["left", "right", "straight"]}))),
    ("The server at 10.0.0.7 listens on port 80.", fields(host=TEXT, port=WHOLE, secure=FLAG)),
    ("Water boils at 100 degrees.", fields(kind={"const": "fact"}, substance=TEXT, degrees=NUMBER)),
    ("An order of two apples and a pear.", {**fields(lines=some({"$ref": "#/$defs/Line"})), "$defs": {"Line": fields(product=TEXT, count=WHOLE)}}),
    ("Delete the temporary files.", fields("command", command=TEXT, description=TEXT, timeout=NUMBER)),
    ("Translate 'good morning' into French.", fields(source=TEXT, language=TEXT, translation=TEXT)),
]  # fmt: skip


def ask(url, question, schema):
    """An answer, its tokens, and why it ended."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    messages = [{"role": "user", "content": f"{question} Answer in JSON."}]
    body = {"model": "smol", "messages": messages, "max_tokens": LIMIT, "temperature": 0, "response_format": form}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer = json.load(answer)
    choice = answer["choices"][0]
    return choice["message"]["content"], answer["usage"]["completion_tokens"], choice["finish_reason"]


def is_valid(text, schema):
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/pensieve")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT.parent / "pensieve-models", help="where the models are put")
    parser.add_argument("--answers", action="store_true", help="print every answer")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    print("| model | server | valid | cut off | tokens in all | longest |\n|---|---|---|---|---|---|", flush=True)
    for name in ("smollm2", "gemma3"):
        model = fetch(name, options.cache)
        with tempfile.TemporaryDirectory() as home:
            starts = [
                ("Pensieve", lambda model=model, home=home: pensieve(options.program.resolve(), model, 4096, pathlib.Path(home))),
                ("llama.cpp", lambda model=model: llama(model, 4096, 1)),
            ]
            for server_name, start in starts:
                server, url = start()
                try:
                    until_up(url, server)
                    answers = [ask(url, *case) for case in CASES]
                finally:
                    server.terminate()
                    server.wait()
                if options.answers:
                    for (question, _), (text, tokens, end) in zip(CASES, answers):
                        print(f"    {server_name}: {question} {end} {tokens} {text!r}", flush=True)
                valid = sum(is_valid(text, schema) for (_, schema), (text, _, _) in zip(CASES, answers))
                cut = sum(end == "length" for _, _, end in answers)
                tokens = [tokens for _, tokens, _ in answers]
                print(f"| {name} | {server_name} | {valid} of {len(CASES)} | {cut} | {sum(tokens)} | {max(tokens)} |", flush=True)


if __name__ == "__main__":
    main()
