"""Writes tests/fixtures/templates/*.json: what transformers renders with the templates that lie there.

The templates are written by hand, each with the constructs of one family's. Every conversation of the table below is rendered
by `apply_chat_template` with each of them, as it is (`plain`) and, where a template refuses it or would show it in a way
that no prefix survives, folded (`folded`): a system text becomes a part of the first user's, neighbours become one, calls
become words. Which template takes what is stated here, in `TEMPLATES`, and found out by the host. Beside that there are
expressions, as small as can be, and dates.

    python tests/reference/templates.py       (transformers)
"""

import copy
import dataclasses
import datetime
import hashlib
import json
import string
from pathlib import Path

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "templates"
# What a model is told of tools that its template does not take; the host's own words do not matter here.
WORDS = "There are tools: get_weather, search."


@dataclasses.dataclass
class Calls:
    """How a template takes calls and their results."""

    short_ids: bool = False
    arguments_as_text: bool = False
    parallel: bool = True
    beside_text: bool = True
    beside_both: bool = True
    user_after_result: bool = True


@dataclasses.dataclass
class Facts:
    """What a template takes as it is."""

    bos: str = ""
    eos: str = ""
    special: tuple = ()
    parts: bool = False
    system: bool = True
    alternates: bool = False
    user_first: bool = False
    tools: bool = False
    calls: Calls | None = None


IM = ("<|im_start|>", "<|im_end|>")
INST = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
TEMPLATES = {
    "chatml": Facts(eos="<|im_end|>", special=IM),
    "commandr": Facts("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", ("<|START_OF_TURN_TOKEN|>",), tools=True, calls=Calls()),
    "deepseek": Facts(
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        ("<｜User｜>", "<｜Assistant｜>"),
        calls=Calls(arguments_as_text=True),
    ),
    "deepseek31": Facts("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ("<｜User｜>", "<｜Assistant｜>"), tools=True, calls=Calls()),
    "gemma2": Facts("<bos>", "<eos>", ("<end_of_turn>",), system=False, alternates=True, user_first=True),
    "gemma4": Facts("<bos>", "<turn|>", ("<|turn>", "<|tool_call>", "<tool_call|>"), tools=True, calls=Calls()),
    "glm4": Facts(eos="<|endoftext|>", special=("<|user|>",), tools=True, calls=Calls()),
    "glm45": Facts(eos="<|endoftext|>", special=("<|user|>", "<|assistant|>"), tools=True, calls=Calls()),
    "granite3": Facts(eos="<|end_of_text|>", special=("<|start_of_role|>", "<|end_of_role|>"), tools=True, calls=Calls()),
    "harmony": Facts("<|startoftext|>", "<|return|>", ("<|end|>",), tools=True, calls=Calls(parallel=False, beside_both=False)),
    "hermes": Facts("<s>", "<|im_end|>", IM, tools=True, calls=Calls(beside_text=False, beside_both=False)),
    "kimi": Facts("[BOS]", "<|im_end|>", ("<|tool_calls_section_begin|>",), tools=True, calls=Calls()),
    "lfm2": Facts("<|startoftext|>", "<|im_end|>", IM, tools=True, calls=Calls()),
    "llama2": Facts("<s>", "</s>", alternates=True, user_first=True),
    "llama31": Facts(
        "<|begin_of_text|>", "<|eot_id|>", tools=True, calls=Calls(parallel=False, beside_text=False, beside_both=False)
    ),
    "llama4python": Facts("<|begin_of_text|>", "<|eot|>", ("<|header_start|>", "<|header_end|>"), tools=True, calls=Calls()),
    "minimax": Facts(eos="[e~[", special=("]~b]",), tools=True, calls=Calls()),
    "mistral1": Facts("<s>", "</s>", system=False, alternates=True, user_first=True),
    "mistral3": Facts(
        "<s>", "</s>", INST, False, False, True, True, True, Calls(short_ids=True, beside_text=False, beside_both=False, user_after_result=False)
    ),
    "mistral_small": Facts("<s>", "</s>", INST, tools=True, calls=Calls()),
    "parts": Facts("<s>", "<end_of_utterance>", parts=True),
    "phi3": Facts("<s>", "<|endoftext|>", ("<|end|>",)),
    "phi4mini": Facts(eos="<|endoftext|>", special=("<|end|>",)),
    "qwen25": Facts(eos="<|im_end|>", special=IM, tools=True, calls=Calls()),
    "qwen3": Facts(eos="<|im_end|>", special=IM, tools=True, calls=Calls()),
    "qwen3coder": Facts(eos="<|im_end|>", special=IM, tools=True, calls=Calls()),
    "smollm3": Facts(eos="<|im_end|>", special=IM, tools=True),
    "zephyr": Facts("<s>", "</s>"),
}


def tool(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool(
        "get_weather",
        "How the weather is in a place — now",
        {
            "place": {"type": "string", "description": "a town, as Zürich or 東京"},
            "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
            "days": {"type": ["integer", "number"]},
        },
        ["place"],
    ),
    tool(
        "search",
        'Looks for "words"',
        {
            "query": {"type": "object", "properties": {"all": {"type": "array", "items": {"type": "string"}}}},
            "limits": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        [],
    ),
    tool("now", "", {}, []),
]
NESTED = {"query": {"all": ["<b>&'\"", "日本 😀"], "deep": {"x": [1, 2.5, -0.0, 1e22, True, None, {}, []]}}, "text": "a\n\t\\"}


def user(*parts):
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def assistant(*parts):
    return {"role": "assistant", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def system(text):
    return {"role": "system", "parts": [{"text": text}]}


def call(id, name, arguments):
    return {"call": {"id": id, "name": name, "arguments": arguments}}


def result(id, text, is_error=False):
    return {"result": {"id": id, "text": text, "is_error": is_error}}


def thought(text):
    return {"thinking": text}


BERN = call("call_7Hq2zzxTbW3nLk0a", "get_weather", {"place": "Bern"})
CONVERSATIONS = {
    "a_question": dict(turns=[user("Hello, who are you?")]),
    "a_system": dict(system="Be brief.\n  Always. ", turns=[user("  Grüße: <b>'&\"</b> 日本 😀 \n")]),
    "turns": dict(system="Be kind.", turns=[user("One?"), assistant(" Two.\n"), user("Three?"), assistant("4"), user("5")]),
    "an_answer_to_continue": dict(turns=[user("Say it."), assistant("The answer  ")]),
    "tools": dict(system="Be brief.", tools=True, turns=[user("What is there to know?")]),
    "a_call": dict(tools=True, turns=[user("Look."), assistant(call("abcDEF123", "search", NESTED)), user(result("abcDEF123", "[1, \"é\"]\nmore"))]),
    "typed_arguments": dict(
        tools=True,
        turns=[
            user("Look."),
            assistant(call("abcDEF123", "get_weather", {"place": "Zürich <b>\n", "unit": "°C", "days": 3})),
            user(result("abcDEF123", "sun")),
        ],
    ),
    "a_broken_call": dict(
        tools=True,
        turns=[
            user("Look."),
            assistant(call("abcDEF123", "no such tool", {"malformed_arguments": '{"a": <oops>'})),
            user(result("abcDEF123", "there is no such tool", True)),
        ],
    ),
    "calls_beside_text": dict(
        system="Be brief.",
        tools=True,
        turns=[
            user("Bern, and the time?"),
            assistant("I look.", BERN, call("call_2", "now", {})),
            user(result("call_7Hq2zzxTbW3nLk0a", "22 °C"), result("call_2", "no clock", True), "Well?"),
        ],
    ),
    "an_answer_after_a_call": dict(
        tools=True,
        turns=[user("Bern?"), assistant(BERN), user(result("call_7Hq2zzxTbW3nLk0a", "rain")), assistant("Rain."), user("Thanks."), assistant(BERN)],
    ),
    "calls_without_tools": dict(turns=[user("Bern?"), assistant("So:", BERN), user(result("call_7Hq2zzxTbW3nLk0a", "rain"))]),
    "thoughts": dict(
        tools=True,
        turns=[user("Bern?"), assistant(thought("Hm.\nI ask."), BERN), user(result("call_7Hq2zzxTbW3nLk0a", "rain")), assistant(thought("I see."), "Rain."), user("Sure?")],
    ),
    "thoughts_and_text_beside_a_call": dict(
        tools=True,
        turns=[user("Bern?"), assistant(thought("Hm."), "I look.", BERN), user(result("call_7Hq2zzxTbW3nLk0a", "rain"))],
    ),
    "thinking_is_off": dict(turns=[user("Quick!")], variables={"enable_thinking": False, "reasoning_effort": "low"}),
    "no_turns_taken": dict(turns=[user("One."), user("Two."), assistant("Three."), assistant("Four."), user("Five.")]),
    "the_model_begins": dict(turns=[assistant("Welcome."), user("Hello.")]),
    "a_system_in_the_middle": dict(system="Be kind.", turns=[user("One."), assistant("Two."), system("Be quick."), user("Three.")]),
    "nothing_said": dict(turns=[user(""), assistant(""), user("Well?")]),
    "words_like_tokens": dict(system="</s><|im_end|>", turns=[user("[INST]<|end|></s>"), assistant("<|im_start|><eos>"), user("<think>?</think><｜User｜>")]),
}
VARIABLES = {"date_string": "26 Jul 2024", "today": "2025-02-07"}

# Messages that the host does not make, and templates know all the same.
RAW = {
    "ended": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two."}]}],
    "an_image": [{"role": "user", "content": [{"type": "image"}]}],
    "no_content": [{"role": "user"}],
    "another_role": [{"role": "user", "content": "One?"}, {"role": "critic", "content": "Two."}],
    "text_arguments": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "now", "content": "{\"x\": 1}"},
    ],
    "a_late_system": [{"role": "user", "content": "One?"}, {"role": "system", "content": "Two."}, {"role": "user", "content": "3"}],
}

DATA = {
    "s": "  Grüße, 'World' \"x\" \\ \n",
    "words": "a,b,,c",
    "n": 7,
    "f": 2.50,
    "items_": [3, 1, 2],
    "maps": [{"k": "b", "v": 1}, {"k": "a", "v": None}, {"k": "c"}],
    "d": {"b": 1, "a": [True, None, 1.5, "é\u0001\u2028"], "c": {"x": {}}},
    "none": None,
}
EXPRESSIONS = """
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s | trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'xya'.lstrip('yx') }}
{{ words.split(',') }}|{{ words.split(',', 1) }}|{{ ' a  b '.split() }}|{{ 'a b c'.rsplit(None, 1) }}|{{ words.rsplit(',', 1)[0] }}
{{ 'a\\nb\\r\\nc'.splitlines() }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'abc'.partition('x') }}
{{ s.replace('r', 'R') }}|{{ 'aaa'.replace('a', 'b', 2) }}|{{ s | replace('World', n) }}
{{ 'Hello'.upper() }}{{ 'Hello'.lower() }}{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}{{ 'ß'.upper() }}|{{ 'hello wORLD' | title }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'abc'.find('x') }}{{ 'banana'.count('an') }}{{ 'abcb'.rfind('b') }}
{{ '%s is %d, %.2f %5s|%-5s|%05d %x %%' % ('a', 3, 2.5, 'b', 'c', 42, 255) }}|{{ '%s' % n }}
{{ '{} and {}'.format('a', 1) }}|{{ '{0}{1}{0}'.format('a', 'b') }}|{{ '{:>5}|{:<5}|{:^5}|{:03d}|{:.1f}'.format('a', 'b', 'c', 7, 2.55) }}|{{ '{a}'.format(a=1) }}
{{ '-'.join(['a', 'b']) }}|{{ items_ | join(', ') }}|{{ maps | map(attribute='k') | join('+') }}|{{ maps | join(', ', attribute='k') }}
{{ 'abc'[::-1] }}{{ 'abcdef'[1:-1:2] }}{{ 'abc'[-1] }}{{ items_[:2] }}{{ items_[-2:] }}{{ items_[::-1] }}{{ items_[5:] }}{{ 'äöü'[1:] }}
{{ n // 2 }} {{ -7 // 2 }} {{ n / 2 }} {{ 8 / 2 }} {{ n % 4 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 + 2.0 }} {{ 1e3 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 3.0 }} {{ 10 * 'ab' }} {{ [1] * 3 }} {{ [1] + [2] }} {{ (1, 2) + (3,) }}
{{ true }} {{ false }} {{ none }} {{ [true, none, 'a', "it's", 1.0] }} {{ {'a': none, 'b': [1]} }} {{ (1,) }} {{ () }} {{ missing }}
{{ d }}|{{ d | tojson }}|{{ d | tojson(indent=2) }}|{{ d | tojson(sort_keys=true) }}|{{ d | tojson(ensure_ascii=true) }}
{{ s | tojson }}|{{ '<>&\\'' | tojson }}|{{ none | tojson }}|{{ [] | tojson(indent=4) }}|{{ {} | tojson(indent=4) }}|{{ [1, [2]] | tojson(indent=4) }}
{{ d | tojson(separators=(',', ':')) }}|{{ 1e22 | tojson }}|{{ 1.0 | tojson }}|{{ '😀' | tojson(ensure_ascii=true) }}|{{ {1: 2, none: [3]} | tojson }}
{{ missing | tojson }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d | items %}{{ k }}{% endfor %}{% for k in d %}{{ k }}{% endfor %}{{ d.keys() | list }}{{ d.values() | list | length }}
{% for k, v in d | dictsort %}{{ k }}{% endfor %}|{{ d.get('b') }}{{ d.get('z') }}{{ d.get('z', 'y') }}{{ d['b'] }}{{ d.z is defined }}{{ 'b' in d }}{{ 'z' not in d }}
{{ items_ | sort }}{{ items_ | sort(reverse=true) }}{{ maps | sort(attribute='k') | map(attribute='k') | list }}{{ items_ | sum }}{{ items_ | max }}{{ items_ | min }}{{ items_ | reverse | list }}
{{ items_ | first }}{{ items_ | last }}{{ items_ | length }}{{ 'abc' | length }}{{ d | count }}{{ [1, 1, 2] | unique | list }}{{ [] | first }}
{{ maps | selectattr('v') | list | length }}{{ maps | selectattr('v', 'defined') | list | length }}{{ maps | rejectattr('k', 'equalto', 'a') | map(attribute='k') | list }}{{ maps | selectattr('k', 'in', ['a', 'c']) | list | length }}
{{ items_ | select('odd') | list }}{{ items_ | reject('equalto', 1) | list }}{{ items_ | map('string') | list }}{{ ['a ', ' b'] | map('trim') | join }}{{ maps | map(attribute='z', default='q') | join }}
{{ maps | groupby('k') | map('first') | list }}|{{ missing | default('x') }}{{ '' | default('y', true) }}{{ none | default('z') }}{{ s | d('w') | length }}
{{ n is number }}{{ n is integer }}{{ f is float }}{{ s is string }}{{ d is mapping }}{{ items_ is sequence }}{{ s is iterable }}{{ none is none }}{{ missing is undefined }}{{ true is boolean }}{{ n is odd }}{{ n is divisibleby 7 }}
{{ n is eq 7 }}{{ n is ne 7 }}{{ n is gt 3 }}{{ 'a' is in 'abc' }}{{ 'ABC' is upper }}{{ 'abc' is lower }}{{ 1 is sameas 1 }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ d is iterable }}{{ n is iterable }}{{ d is string }}
{{ 1 < 2 < 3 }}{{ 'a' < 'b' }}{{ 1 == 1.0 }}{{ true == 1 }}{{ [1] == [1] }}{{ not true }}{{ '' or 'x' }}{{ 'a' and 'b' }}{{ none or 0 }}{{ 1 if false }}{{ 'y' if n else 'n' }}
{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{% set x = 1 %}{% for i in range(2) %}{% set x = 5 %}{% endfor %}{{ x }}{{ range(1, 10, 3) | list }}
{% for i in items_ %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }};{% else %}none{% endfor %}{% for i in [] %}{% else %}none{% endfor %}
{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}{% for i in range(9) if i is odd %}{{ i }}{{ loop.length }}{% endfor %}
{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}
{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 2, 3) }}|{{ m(b=1, a=2) }}|{{ m('a') | upper }}
{% macro outer() %}[{{ caller() }}]{% endmacro %}{% call outer() %}in{% endcall %}{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% set block %}a {{ n }} b{% endset %}{{ block | upper }}{{ block is string }}{% filter upper %}x{{ n }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = (1, 'x') %}{{ t }}{{ t[1] }}{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}
{{ s | upper | lower | length }}{{ 'hello' | capitalize }}{{ 3.7 | int }}{{ '12' | int + 1 }}{{ 'x' | int(5) }}{{ '2.5' | float }}{{ 2.567 | round(1) }}{{ 2.5 | round }}{{ -3 | abs }}{{ n | string + '!' }}
{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\nb' | indent(width=1, first=true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'x'.center(5) }}
{{ [1, 2, 3] | tojson | safe }}{{ '<b>' | escape }}{{ '<b>' | e }}{{ ['a', 'b'] | list }}{{ 'abc' | list }}{{ 'abc' | reverse }}{{ dict(a=1, b=2) }}{{ [('a', 1)] | items | list if false else 'z' }}
{{ 'abc'.isdigit() }}{{ '12'.isdigit() }}{{ 'abc'.isalpha() }}{{ 'a1'.isalnum() }}{{ ' '.isspace() }}{{ '7'.zfill(3) }}{{ 'x'.ljust(3) }}|{{ 'x'.rjust(3, '.') }}{{ 'ab'.index('b') }}{{ 'abc'.removeprefix('a').removesuffix('c') }}
{{ raise_exception('no: ' + s.strip()) }}
{{ missing.attribute }}
{{ missing.attribute.more }}
{{ none.attribute is defined }}{{ n.attribute is defined }}{{ d.b.c is defined }}
{{ 'a' + 1 }}
{{ 1 + none }}
{{ d.missing + 'x' }}
{{ missing ~ none ~ 1 ~ [1] ~ 2.0 }}
{{ items_.append(4) }}
{{ s.nothing() }}
{{ [1, 2][5] }}|{{ d['zz'] }}|{{ 'abc'[9] }}
{{ 1 / 0 }}
{{ 'x' | nothing }}
{% if missing %}a{% elif not missing %}b{% endif %}{{ missing == none }}{{ missing in [1] }}{{ missing | length }}{{ missing | list }}{% for x in missing %}{{ x }}{% endfor %}
{%- if true -%}  a  {%- endif -%}  b  {#- c -#}  d {{- ' e ' -}} f {% raw %}{{ x }}{% endraw %} g {%+ if true %} h {% endif +%} i
{{ "a\\tb\\x41\\u00e9\\\\'\\"" }}{{ 'it\\'s' }}{{ '''x''' if false else 'y' }}
{{ 0x1f }}{{ 0b11 }}{{ 1_000 }}{{ 1.5e-7 }}{{ 123456789012345678901234567890 }}{{ -0.0 }}{{ 9007199254740993 }}{{ 1e400 }}
{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages | length }}{{ (messages | last).content }}{{ messages[0].get('name', 'nobody') }}{{ messages[0].items() | list }}
{{ d.items() | list | length }}{{ d.copy() == d }}{{ [3, 4].index(4) }}{{ [1, 2, 2].count(2) }}{{ 2 in items_ }}{{ 'x' not in 'abc' }}{{ d.items() | first | first }}
{{ 'a' if missing is defined else 'b' }}{{ (1 if n > 3 else 2) + 1 }}{{ n > 3 and 'yes' or 'no' }}{{ 'a' 'b' }}{{ [1, 2,] }}{{ {'a': 1,} }}
""".strip().split("\n")
LINES = [
    "  {% if true %}\n  a\n    {% endif %}\n  b\n{# c #}\nd\n",
    "{% if true -%}\n\n  a\n{%- endif %}\n\n\nb",
    "{{ 'a' }}\n{{ 'b' }}\n\n{% set x = 1 %}\n  {{ x }}  \n\n",
    "  {#- c -#}\n  a\n\n",
    "a\r\nb\r\n{% if true %}\r\nc{% endif %}\r\n",
    "{% generation %}a{% endgeneration %}|{%- generation -%} b {%- endgeneration -%} c {% generation %}\n d\n{% endgeneration %}\ne",
    "\u2028a\u2028 {{ '\u2028'.strip() }}|{{ '\u00a0x\u3000'.strip() }}|{{ '\u200bx'.strip() | length }}",
]
TIMES = [datetime.datetime(2024, 7, 4, 9, 5, 7), datetime.datetime(2025, 12, 31, 23, 59, 58, 123456)]
FORMATS = ["%d %b %Y", "%Y-%m-%d", "%A, %B %d, %Y", "%a %-d.%-m.%y", "%H:%M:%S", "%I:%M %p", "%j %U %w %u", "%e %%", "%F %T", "%B %d %Y at %-I", "%D %R", "plain"]


def short(id):
    if len(id) == 9 and id.isalnum() and id.isascii():
        return id
    letters = string.digits + string.ascii_uppercase + string.ascii_lowercase
    return "".join(letters[byte % 62] for byte in hashlib.sha256(id.encode()).digest()[:9])


def join(*texts):
    return "\n\n".join(text for text in texts if text)


def words_of(arguments):
    return json.dumps(arguments, ensure_ascii=False)


def steps(conversation):
    """The messages that say the same, as a client of transformers would write them; a list of parts is a text."""
    made, names, waiting, leading = [], {}, "", ""
    for turn in conversation["turns"]:
        texts = [part["text"] for part in turn["parts"] if part.get("text")]
        if turn["role"] == "system":
            leading, waiting = (join(leading, *texts), waiting) if not made else (leading, join(waiting, *texts))
        elif turn["role"] == "user":
            results = [part["result"] for part in turn["parts"] if "result" in part]
            for part in results:
                text = "Error: " + part["text"] if part["is_error"] else part["text"]
                made.append({"role": "tool", "content": text, "tool_call_id": part["id"], "name": names[part["id"]]})
            text, waiting = join(waiting, *texts), ""
            if text or not results:
                made.append({"role": "user", "content": text})
        else:
            message = {"role": "assistant", "content": "".join(texts)}
            calls = [part["call"] for part in turn["parts"] if "call" in part]
            names.update({part["id"]: part["name"] for part in calls})
            for part in turn["parts"]:
                if "thinking" in part:
                    message["thinking"] = part["thinking"]
                    message["reasoning_content"] = part["thinking"]
            if calls:
                message["tool_calls"] = [
                    {"id": part["id"], "type": "function", "function": {"name": part["name"], "arguments": part["arguments"]}}
                    for part in calls
                ]
            made.append(message)
    return join(conversation.get("system", ""), leading), made


def plain(conversation):
    text, messages = steps(conversation)
    return ([{"role": "system", "content": text}] if text else []) + messages


def folded(conversation, facts):
    """The same in a form that a template with these facts takes."""
    text, messages = steps(conversation)
    if conversation.get("tools") and not facts.tools:
        text = join(text, WORDS)
    messages = with_calls(messages, facts) if facts.calls else in_words(messages)
    if text and not facts.system:
        if messages[0]["role"] == "user":
            messages[0]["content"] = join(text, messages[0]["content"])
        else:
            messages.insert(0, {"role": "user", "content": text})
        text = ""
    if facts.alternates:
        messages = alternating(messages)
    if facts.user_first and messages[0]["role"] != "user":
        messages.insert(0, {"role": "user", "content": ""})
    messages = ([{"role": "system", "content": text}] if text else []) + messages
    as_parts = lambda text: [{"type": "text", "text": text}] if facts.parts else text
    return [{**message, "content": as_parts(message["content"])} for message in messages]


def with_calls(messages, facts):
    made, form, left = [], facts.calls, copy.deepcopy(messages)
    while left:
        message = left.pop(0)
        calls = message.get("tool_calls")
        if message["role"] == "user" and made and made[-1]["role"] == "tool" and not form.user_after_result:
            made[-1]["content"] = join(made[-1]["content"], message["content"])
        elif calls:
            if form.beside_text and not form.beside_both and message["content"] and message.get("thinking"):
                message["thinking"] = message["reasoning_content"] = join(message["thinking"], message["content"])
                message["content"] = ""
            if message["content"] and not form.beside_text:
                if not facts.alternates:
                    made.append({key: value for key, value in message.items() if key != "tool_calls"})
                message["content"] = ""
            if form.parallel or len(calls) == 1:
                made.append(message)
                continue
            results = {}
            while left and left[0]["role"] == "tool":
                outcome = left.pop(0)
                results[outcome["tool_call_id"]] = outcome
            for call in calls:
                made.append({**message, "tool_calls": [call]})
                made += [results.pop(call["id"])] if call["id"] in results else []
                message = {"role": "assistant", "content": ""}
            made += results.values()
        else:
            made.append(message)
    for message in made:
        for call in message.get("tool_calls", []):
            call["id"] = short(call["id"]) if form.short_ids else call["id"]
            if form.arguments_as_text:
                call["function"]["arguments"] = words_of(call["function"]["arguments"])
        if "tool_call_id" in message and form.short_ids:
            message["tool_call_id"] = short(message["tool_call_id"])
    return made


def in_words(messages):
    made, was_result = [], False
    for message in copy.deepcopy(messages):
        calls = [
            f"<tool_call>\n{words_of({'name': call['function']['name'], 'arguments': call['function']['arguments']})}\n</tool_call>"
            for call in message.pop("tool_calls", [])
        ]
        if calls:
            message["content"] = "\n".join([message["content"]] * bool(message["content"]) + calls)
        is_result = message["role"] == "tool"
        if is_result:
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if was_result and message["role"] == "user":
            gap = "\n" if is_result else "\n\n"
            made[-1]["content"] += gap + message["content"]
        else:
            made.append(message)
        was_result = is_result
    return made


def alternating(messages):
    made = []
    for message in messages:
        last = made[-1] if made else {}
        if message["role"] == last.get("role") == "user":
            last["content"] = join(last["content"], message["content"])
        elif message["role"] == last.get("role") == "assistant" and "tool_calls" not in last:
            last["content"] = join(last["content"], message["content"])
            last.update({key: value for key, value in message.items() if key not in ("role", "content")})
        else:
            made.append(message)
    return made


class Renderer:
    def __init__(self, name, facts):
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
        tokens = {"bos_token": facts.bos, "eos_token": facts.eos}
        self.tokenizer.add_special_tokens({name: text for name, text in tokens.items() if text})
        self.tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text()

    def render(self, messages, tools=None, variables={}, **how):
        """The text, or why there is none: the template's own words, or nothing where it breaks."""
        try:
            return {"text": self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **how, **variables)}
        except TemplateError as error:
            return {"raises": str(error) if type(error) is TemplateError else None}
        except (TypeError, AttributeError, ValueError, KeyError):
            return {"raises": None}


def rendered(name, facts):
    renderer, cases = Renderer(name, facts), {}
    for title, conversation in CONVERSATIONS.items():
        variables = {**VARIABLES, **conversation.get("variables", {})}
        tools = TOOLS if conversation.get("tools") else None
        as_is = plain(conversation)
        goes_on = as_is[-1]["role"] == "assistant"
        cases[title] = renderer.render(as_is, tools, variables, add_generation_prompt=not goes_on)
        ours = folded(conversation, facts)
        continues = ours[-1]["role"] == "assistant" and "tool_calls" not in ours[-1]
        how = {"continue_final_message": True} if continues else {"add_generation_prompt": True}
        ours = renderer.render(ours, tools if facts.tools else None, variables, **how)
        assert "text" in ours, (name, title, ours)
        if ours != cases[title]:
            cases[title]["folded"] = ours["text"]
    for title, messages in RAW.items():
        cases[title] = renderer.render(messages, None, VARIABLES, add_generation_prompt=title != "ended")
    return cases


def expression(source):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    try:
        (text,), _ = chat_template_utils.render_jinja_template([chat], chat_template=source, **DATA)
        return text
    except Exception:
        return None


def dates():
    class Clock(datetime.datetime):
        pass

    rows = []
    for time in TIMES:
        Clock.now = classmethod(lambda cls: time)
        chat_template_utils.datetime, before = Clock, chat_template_utils.datetime
        rows += [[time.isoformat(), format, expression("{{ strftime_now('%s') }}" % format)] for format in FORMATS]
        chat_template_utils.datetime = before
    return rows


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def main():
    conversations = {"words": WORDS, "tools": TOOLS, "variables": VARIABLES, "conversations": CONVERSATIONS, "raw": RAW}
    write("conversations.json", {**conversations, "plain": {name: plain(value) for name, value in CONVERSATIONS.items()}})
    facts = {name: dataclasses.asdict(facts) for name, facts in TEMPLATES.items()}
    write("rendered.json", {name: {"facts": facts[name], "cases": rendered(name, TEMPLATES[name])} for name in TEMPLATES})
    sources = EXPRESSIONS + LINES
    write("expressions.json", {"data": DATA, "dates": dates(), "expressions": [[source, expression(source)] for source in sources]})


if __name__ == "__main__":
    main()
