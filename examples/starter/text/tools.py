"""Tools to call: those that people give to every model, and any number of invented ones.

A tool here is what a client sends (name, description, JSON schema) together with ways to ask for it. A model that has seen a
thousand tools made of the same few words learns to read what stands in front of it, and not to know tools by heart.
"""

import json

from . import shell, words
from .phrasing import examined, opened, say


class Tool:
    """A tool, and how to make a request that needs it."""

    def __init__(self, name, description, properties, required, ask, kind="other"):
        self.name = name
        self.description = description
        self.schema = {"type": "object", "properties": properties, "required": required}
        self.ask = examined(ask)
        self.kind = kind

    def json(self):
        """As a client sends it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


def _quoted(rng, text, share=0.5):
    if rng.random() >= share or "'" in text or '"' in text:
        return text
    marks = rng.choice(("''", '""', '""', "``", "“”"))
    return f"{marks[0]}{text}{marks[1]}"


def _always(rng, text):
    return _quoted(rng, text, 1.0)


# ---- values: what stands in a request, and what stands in the call


def v_city(rng):
    city = rng.choice(words.CITIES) if rng.random() < 0.75 else words.pseudo_word(rng).capitalize()
    return city, city


def v_person(rng):
    first = rng.choice(words.PEOPLE)
    name = first if rng.random() < 0.5 else f"{first} {words.pseudo_word(rng).capitalize()}"
    return name, name


def v_email(rng):
    mail = f"{rng.choice(words.PEOPLE).lower()}{rng.choice(('', '.' + words.pseudo_word(rng), str(rng.randrange(99))))}@{rng.choice(('example.com', 'example.org', words.pseudo_word(rng) + '.com', words.pseudo_word(rng) + '.io'))}"
    return mail, mail


def v_date(rng):
    kind = rng.random()
    if kind < 0.5:
        value = f"{rng.randrange(2015, 2032)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    elif kind < 0.65:
        value = rng.choice(("tomorrow", "today", "next week", "tonight"))
    elif kind < 0.8:
        value = rng.choice(words.DAYS)
    else:
        value = f"{rng.choice(words.MONTHS)} {rng.randrange(1, 29)}"
    return value, value


def v_time(rng):
    value = f"{rng.randrange(0, 24):02}:{rng.choice(('00', '15', '30', '45', f'{rng.randrange(60):02}'))}"
    if rng.random() < 0.25:
        value = f"{rng.randrange(1, 13)} {rng.choice(('am', 'pm'))}"
    return value, value


def v_int(rng):
    number = rng.choice((rng.randrange(1, 20), rng.randrange(1, 200), rng.randrange(1, 10000)))
    return str(number), number


def v_number(rng):
    if rng.random() < 0.6:
        return v_int(rng)
    number = round(rng.uniform(0, 1000), rng.choice((1, 2)))
    return str(number), number


def v_phrase(rng):
    text = words.phrase(rng, 1, 7)
    return _always(rng, text), text


def v_topic(rng):
    text = " ".join(rng.choice((words.NOUNS, words.TECHNICAL, words.ADJECTIVES))[rng.randrange(150)] for _ in range(rng.randrange(1, 4)))
    if rng.random() < 0.3:
        text = words.phrase(rng, 1, 4)
    return _quoted(rng, text, 0.45), text


def v_word(rng):
    text = words.word(rng)
    return _quoted(rng, text, 0.4), text


def v_name(rng):
    text = words.name(rng)
    return _quoted(rng, text, 0.4), text


def v_id(rng):
    text = words.random_id(rng)
    return _quoted(rng, text, 0.25), text


def v_path(rng):
    text = words.path(rng)
    return _quoted(rng, text, 0.3), text


def v_abspath(rng):
    text = f"{words.absolute_path(rng)}/{words.file_name(rng)}" if rng.random() < 0.7 else words.path(rng)
    return _quoted(rng, text, 0.3), text


def v_dir(rng):
    text = words.directory(rng)
    return _quoted(rng, text, 0.3), text


def v_url(rng):
    return shell.SLOTS["url"](rng)


def v_expression(rng):
    numbers = [str(v_int(rng)[1]) for _ in range(rng.randrange(2, 4))]
    text = numbers[0]
    space = rng.choice((" ", " ", ""))
    for number in numbers[1:]:
        text += f"{space}{rng.choice('+-*/')}{space}{number}"
    return _quoted(rng, text, 0.2), text


def v_language(rng):
    text = rng.choice(words.LANGUAGES)
    return text, text


def v_currency(rng):
    text = rng.choice(words.CURRENCIES)
    return text, text


def v_glob(rng):
    text = rng.choice(("*.{e}", "**/*.{e}", "src/**/*.{e}", "{n}*.{e}", "{d}/*.{e}", "**/{n}.{e}")).replace("{e}", rng.choice(words.EXTENSIONS)).replace("{n}", words.name(rng)).replace("{d}", rng.choice(words.DIRECTORIES))
    return _quoted(rng, text, 0.4), text


def v_regex(rng):
    text = rng.choice((words.word(rng), words.word(rng), f"{words.word(rng)}.*{words.word(rng)}", f"def {words.name(rng)}", f"{words.identifier(rng)}\\(", f"^{words.word(rng)}", f"{words.word(rng)}!", f"#{words.word(rng)}", f"{words.word(rng)}()", f"@{words.word(rng)}", "TODO", "FIXME", words.identifier(rng)))
    return _quoted(rng, text, 0.6), text


def v_command(rng):
    """A command to run, between marks or in a place where it ends by itself."""
    text = command(rng)
    return _delimited(rng, text), text


def _delimited(rng, text):
    options = ["``"]
    if '"' not in text:
        options.append('""')
    if "'" not in text:
        options.append("''")
    marks = rng.choice(options)
    return f"{marks[0]}{text}{marks[1]}"


def echo_text(rng):
    kind = rng.random()
    if kind < 0.3:
        return words.phrase(rng, 1, 5)
    if kind < 0.45:
        return "-".join(words.word(rng) for _ in range(rng.randrange(2, 5)))
    if kind < 0.55:
        return words.random_id(rng)
    if kind < 0.65:
        return rng.choice(("hello", "hello world", "Hello, World!", "hi", "hi there", "ok", "test", "pensieve works", "it works", "hello from pensieve", "done", "ready", "success", "foo bar", "1 2 3", "42", "hello-pensieve", "PENSIEVE_OK"))
    if kind < 0.75:
        return f"{words.pseudo_word(rng)} {words.pseudo_word(rng)}"
    if kind < 0.85:
        return "_".join(words.word(rng).upper() for _ in range(rng.randrange(1, 4)))
    if kind < 0.93:
        return f"{words.word(rng)} {rng.randrange(100000)}"
    return words.sentence(rng).rstrip(".").replace("`", "")


def echo_command(rng):
    text = echo_text(rng)
    kind = rng.random()
    if kind < 0.4 and not set(text) & set("!'\"`$"):
        return f"echo {text}"
    if kind < 0.65 and "'" not in text:
        return f"echo '{text}'"
    if kind < 0.9 and '"' not in text:
        return f'echo "{text}"'
    simple = text.replace("'", "").replace('"', "").replace("!", "")
    return rng.choice((
        f"echo {simple} && echo {words.word(rng)}", f"echo {simple} > {words.path(rng)}", f"echo {simple} | wc -c", f"echo -n {simple}",
        f"echo ${words.word(rng).upper()}", f"echo {simple}; echo {words.word(rng)}", f"echo $(({rng.randrange(100)} + {rng.randrange(100)}))",
        f'echo "{simple}" | tr a-z A-Z', f"printf '{simple}\\n'", f'echo "{simple} $(date +%Y)"', f"echo {simple} >> {words.path(rng)}",
    ))


def command(rng):
    """A shell command of any kind."""
    kind = rng.random()
    if kind < 0.5:
        return echo_command(rng)
    if kind < 0.72:
        return shell.request(rng)[1]
    name, path = words.name(rng), words.path(rng)
    return rng.choice((
        f"python -c 'print({rng.randrange(1000)})'", f"python3 -c \"print('{words.word(rng)}')\"", f"python3 {name}.py --{words.name(rng)} {rng.randrange(100)}",
        f"cat {path} | grep {words.word(rng)}", f"cat {path} | head -n {rng.randrange(1, 50)}", f"ls -l {words.directory(rng)} | sort", f"seq {rng.randrange(1, 20)}",
        f"cd {words.directory(rng)} && make {name}", f"npm run {name}", f"cargo test {name}", f"make {name}", f"git commit -am '{words.phrase(rng, 1, 5)}'",
        f"curl -s http://localhost:{rng.randrange(1000, 9999)}/{name}", f"for i in 1 2 3; do echo {words.word(rng)}; done", f"grep -rn {words.word(rng)} {words.directory(rng)}",
        f"{words.pseudo_word(rng)} --{words.name(rng)}={words.word(rng)} {path}", f"{words.pseudo_word(rng)} {words.word(rng)}", f"docker run --rm {name} {words.pseudo_word(rng)}",
        f"true && echo {words.word(rng)}", f"test -f {path} && echo yes || echo no", f"date +%Y-%m-%d", f"expr {rng.randrange(100)} + {rng.randrange(100)}", f"wc -c {path}", f"rev <<< {words.word(rng)}",
    ))


# ---- asking to run a command, in a frame that says where it begins and ends

_RUN = "[run|execute|start|launch|perform|do|call|invoke|issue|try|fire off]"
_THECMD = "[the command|this command|the following command|the shell command|this shell command|the exact command|exactly this command|the bash command|this|the following|exactly|the one-liner|precisely this command|command]"
_WITH = "[with|using|via|through|by means of|in|by calling]"
_TOOL = "[<tool>|the <tool> tool|<tool>|your <tool> tool|the tool <tool>|<tool> tool|a <tool> call]"
_AFTER = "[and tell me what it [printed|prints|says|returned|outputs|gives|returns|said|put out]|and [show|give] me [the |its ][output|result]|then tell me [the output|the result|what happened|what it printed|what you see|what came out]|and report [the output|what it prints|the result|back|what comes back|what it says]|and tell me [the result|the output|exactly what it printed|what you get|what comes out|what you see]|and [say|repeat|quote] what it [printed|prints|says]|and answer with [its output|the output|what it prints]|then [report|quote|repeat] [its output|the output|what it printed|the result]|and let me know what [it prints|happens|it says|the output is|comes out]|and print the output|and reply with [the output|its output|what it printed]|, then answer with the output|. What does it print?|. Tell me what it [printed|prints|says].|. Report [the output|what it prints|the result].|. [What is the output|What do you get|What does it say]?|. Then tell me [the output|what it printed|what it says].|. [Show|Give] me the output.|. Afterwards tell me the output.|. After that, [quote|repeat|tell me] what it printed.|, and [tell me|report|quote] the output|, please|, thanks|]"

RUN_MARKED = [
    f"{{please}}{_RUN} <cmd>", f"{{please}}{_RUN} <cmd> {_AFTER}", f"{{please}}{_RUN} {_THECMD} <cmd> {_AFTER}", f"{{please}}{_RUN} {_THECMD}: <cmd> {_AFTER}",
    f"{{please}}{_RUN} <cmd> {_WITH} {_TOOL} {_AFTER}", f"{{please}}{_RUN} {_THECMD} <cmd> {_WITH} {_TOOL} {_AFTER}", f"{{please}}{_RUN} {_THECMD} {_WITH} {_TOOL}: <cmd> {_AFTER}",
    f"{{please}}[use|call|take|employ|invoke] {_TOOL} to {_RUN} <cmd> {_AFTER}", f"{{please}}[use|call|take|employ] {_TOOL} to {_RUN} {_THECMD} <cmd> {_AFTER}",
    f"{{please}}[use|call|take] {_TOOL} to {_RUN} {_THECMD}: <cmd> {_AFTER}", f"{{please}}[use|call|invoke] {_TOOL} with [the command |command ||command=|the argument |the input ]<cmd> {_AFTER}",
    f"{_WITH} {_TOOL}, {{please}}{_RUN} <cmd> {_AFTER}", f"{_WITH} {_TOOL}, {{please}}{_RUN} {_THECMD} <cmd> {_AFTER}",
    "what [is|will be] the output of <cmd>?", "what does <cmd> [print|output|say|return|give|do]?", f"what does <cmd> print? [Use {_TOOL}|Run it|Try it|Run it with {_TOOL}|Find out with {_TOOL}|Check with {_TOOL}].", "what happens [if|when] [I|you|we] run <cmd>?", "show me [the output of|what happens with|the result of] <cmd>", "tell me [the output of|what|the result of] <cmd>[ prints| gives|]",
    f"I [need|want] [the output of|to see the output of|to know what happens with|you to run|you to execute] <cmd>[.|, please.|]", "<cmd> - run [it|this|that], please", "<cmd>", "run this for me: <cmd>", f"[here is|this is|take] [a|the|my] command: <cmd>[. | ]{_RUN} it {_AFTER}", f"[there is|consider] the command <cmd>. {{please}}{_RUN} it {_WITH} {_TOOL} {_AFTER}",
    f"[in the terminal|in the shell|in bash|on the command line|on this machine], {_RUN} <cmd> {_AFTER}", f"{{please}}{_RUN} <cmd> in [the terminal|the shell|a shell|bash|a terminal|the console] {_AFTER}", f"{{please}}make a {_TOOL} call [that runs|running|with|which executes] <cmd> {_AFTER}", f"{{please}}let {_TOOL} {_RUN} <cmd> {_AFTER}", f"[your task|the task|task|job|todo]: {_RUN} <cmd> {_AFTER}", f"I would like to see {_TOOL} {_RUN} <cmd> {_AFTER}",
    f"[test|check|verify] [that|whether|if] {_TOOL} works[ by running|: run|, run|; run] <cmd> {_AFTER}", f"[first|to begin with|as a first step|as a test], {{please}}{_RUN} <cmd> {_AFTER}", f"[do not explain|without further questions|no explanations|don't ask], [just ]{_RUN} <cmd> {_AFTER}",
]
# What a command that destroys is run for: an order, not a question about it.
_ORDERS = [pattern for pattern in RUN_MARKED if pattern.startswith("{please}")]
RUN_BARE = [
    f"{{please}}{_RUN} <cmd>", f"{{please}}{_RUN} {_THECMD}: <cmd>", f"{{please}}{_RUN} {_THECMD}:\n<cmd>", f"{{please}}{_RUN} {_THECMD} {_WITH} {_TOOL}: <cmd>", f"{{please}}{_RUN} {_THECMD} {_WITH} {_TOOL}:\n\n<cmd>",
    f"{{please}}[use|call|take|employ|invoke] {_TOOL} to {_RUN} <cmd>", f"{{please}}[use|call|take] {_TOOL} to {_RUN} {_THECMD}: <cmd>", f"{_WITH} {_TOOL}, {{please}}{_RUN} <cmd>", "run: <cmd>", "[execute|bash|shell|command|cmd|run this|$]: <cmd>",
    f"{{please}}{_RUN} {_THECMD} <cmd> {_WITH} {_TOOL} [and tell me|and show me|and report|then tell me|and let me know|and say|and repeat] [the output|the result|what it printed|what it says|what it prints|what happened]",
    f"{{please}}{_RUN} <cmd> {_WITH} {_TOOL} [and tell me|and show me|and report|then tell me|and let me know|and say|and repeat|, then tell me] [the output|the result|what it printed|what it says|what it prints|what happened]",
    f"{{please}}{_RUN} {_THECMD} <cmd> {_WITH} {_TOOL}", f"{{please}}{_RUN} <cmd> {_WITH} {_TOOL}", f"{{please}}{_RUN} {_THECMD} <cmd> [and tell me|and show me|and report|then tell me] [the output|the result|what it printed|what it says|what it prints|what happened]",
    f"{{please}}{_RUN} {_THECMD}: <cmd>\n[Then |Afterwards |]tell me [the output|what it printed|what it says|the result].", f"[here is|this is] [a|the|my] command:\n\n<cmd>\n\n{_RUN} it {_WITH} {_TOOL} [and tell me the output|and report what it prints|and show me the result|].",
    f"{{please}}{_RUN} {_THECMD}:\n```\n<cmd>\n```\n[Then |]tell me [the output|what it printed|what it says|the result].", f"{{please}}{_RUN} {_THECMD} {_WITH} {_TOOL}:\n```bash\n<cmd>\n```", "```\n<cmd>\n```\n[Run this|Run that|Execute it|Please run this] [with|using] <tool>.",
    f"{{please}}[use|call] {_TOOL} to {_RUN} <cmd> [and tell me|and show me|and report|then tell me] [the output|the result|what it printed|what it says|what it prints|what happened]", f"{{please}}[use|call] {_TOOL} to {_RUN} {_THECMD} <cmd> [and tell me|and show me|and report|then tell me] [the output|the result|what it printed|what it says|what it prints|what happened]",
]


@examined
def ask_to_run(rng, tool_name):
    """A request to run a given command, and the command."""
    text = command(rng) if rng.random() < 0.45 else echo_command(rng)
    while shell.destroys(text) and rng.random() < 0.7:
        text = command(rng)
    ordered = shell.destroys(text)
    lone = "\n" not in text and not any(word in text for word in (" with ", " using ", " and ", " then ", " via ", " in "))
    if ordered:
        pattern, shown = rng.choice(_ORDERS), _delimited(rng, text)
    elif rng.random() < 0.62 or not lone:
        pattern, shown = rng.choice(RUN_MARKED), _delimited(rng, text)
    else:
        pattern, shown = rng.choice(RUN_BARE), text
    request = opened(rng, say(rng, pattern, {"cmd": shown, "tool": tool_name}, 0.1).replace(" .", ".").replace(" ,", ","))
    if shown != text and request[-1].isalnum() and rng.random() < 0.4:
        request += "."
    return request, text


RUNNERS = ("Bash", "Bash", "Bash", "Bash", "bash", "shell", "Shell", "run_command", "execute_command", "terminal", "run_shell", "exec", "RunCommand", "run_terminal_cmd", "shell_exec", "execute_bash", "sh", "console", "system_shell", "runInTerminal", "Terminal", "local_shell", "exec_command", "run_shell_command")


def runner(rng):
    """A tool that runs a shell command, called as one or another client calls it."""
    name = rng.choice(RUNNERS) if rng.random() < 0.92 else f"{rng.choice(('run', 'exec', 'execute', 'invoke'))}_{words.pseudo_word(rng)}"
    key = rng.choice(("command", "command", "command", "cmd", "script", "input", "code", "command_line"))
    first = rng.choice(("Runs a shell command and returns what it prints.", "Execute a command in a shell, with its output as the result.", "Run a bash command in the project's folder.", "Executes a given shell command.", "Runs a command line. Use it for git, builds and tests.", "A shell: give it a command and it returns stdout and stderr.", "Run commands in a terminal"))
    properties = {key: _property(rng, "string", "The command to run")}
    for extra, kind in (("timeout", "number"), ("description", "string"), ("run_in_background", "boolean"), ("cwd", "string"), ("dangerouslySkipChecks", "boolean"), ("workdir", "string")):
        if rng.random() < 0.4:
            properties[extra] = _property(rng, kind)
    if rng.random() < 0.15:
        properties = dict(shuffled_items(rng, properties))

    def ask(rng):
        if rng.random() < 0.25:
            text, value = shell.request(rng)
        else:
            text, value = ask_to_run(rng, name)
        return text, {key: value}

    return Tool(name, f"{first}{_more(rng)}", properties, [key], ask, "runner")


def shuffled_items(rng, mapping):
    items = list(mapping.items())
    rng.shuffle(items)
    return items


def _property(rng, kind, description=None, **rest):
    body = {"type": kind, **rest}
    if rng.random() < 0.8:
        body["description"] = description or words.sentence(rng)
    return body if rng.random() < 0.5 else dict(reversed(body.items()))


def _more(rng):
    """What follows the first sentence of a description; nobody of this size reads it."""
    if rng.random() < 0.5:
        return ""
    length = rng.choice((1, 1, 2, 3, 5))
    return rng.choice((" ", "\n\n", "\n")) + "".join(words.block(rng) if length > 1 else words.sentence(rng) for _ in range(length)).rstrip()


# ---- the catalog

_NAMED = {}


def _catalog():
    """Families of tools: names, descriptions, parameters (spellings, type, value, required), requests."""
    s, i, n, b = "string", "integer", "number", "boolean"
    return [
        (["get_weather", "weather", "get_current_weather", "fetch_weather", "weather_lookup", "getWeather", "current_weather"], ["Get the current weather for a city.", "Returns weather conditions and temperature for a location.", "Looks up the weather."], [(["location", "city", "place", "q"], s, v_city, True), (["unit", "units", "temperature_unit"], ["celsius", "fahrenheit"], None, False), (["date", "day", "when"], s, v_date, False)],
         ["what is the weather [like |]in <0>[| today| right now| now]?", "[how is|how's|what's|tell me|show me|check|get|look up] the weather [like |]in <0>", "weather [in|for] <0>", "is it [raining|sunny|cold|warm|windy|snowing] in <0>?", "[do I need|should I take] an umbrella in <0>?", "how [warm|cold|hot] is it in <0>[ right now|]?", "what is the weather in <0> in <1>?", "temperature in <0> in <1>", "what will the weather be [like |]in <0> [on |]<2>?", "[weather|weather forecast|forecast] for <0> on <2>", "I am [going|travelling|flying] to <0>, how is the weather there?"]),
        (["search_web", "web_search", "WebSearch", "search", "google_search", "internet_search", "bing_search", "searchWeb"], ["Search the web.", "Searches the internet for a query and returns the top results.", "Finds web pages."], [(["query", "q", "search_query", "term", "text"], s, v_topic, True), (["num_results", "limit", "count", "max_results", "top_k"], i, v_int, False)],
         ["[search|look|search the web|search the internet|search online] for <0>", "[google|look up] <0>[ online| on the web|]", "find [information|pages|articles|results|something] [about|on] <0>[ online| on the web|]", "what does the [web|internet] say about <0>?", "search for <0> and [give|show] me <1> results", "find <1> [pages|results|articles] about <0>", "[do|run|make] a web search [for|on] <0>"]),
        (["calculate", "calculator", "compute", "math", "evaluate_expression", "eval_math", "calc", "Calculator"], ["Evaluates an arithmetic expression.", "A calculator.", "Compute the value of a mathematical expression."], [(["expression", "expr", "formula", "input"], s, v_expression, True)],
         ["what is <0>?", "[calculate|compute|evaluate|work out|solve] <0>", "how much is <0>?", "<0> = ?", "what's <0>", "what does <0> [make|equal|give]?", "the result of <0>", "I need to know <0>", "[use|take] the calculator for <0>"]),
        (["send_email", "email", "sendEmail", "mail_send", "compose_email", "send_mail", "SendMail"], ["Send an email.", "Sends a mail to a person.", "Composes and sends an e-mail message."], [(["to", "recipient", "address", "email"], s, v_email, True), (["subject", "title"], s, v_phrase, True), (["body", "message", "text", "content"], s, v_phrase, True)],
         ["send [an email|a mail|an e-mail] to <0> with [the |]subject <1> and [the |][body|text|message] <2>", "[email|mail|write to] <0>, subject <1>, [text|body|message|saying] <2>", "[write|compose] [an email|a mail] to <0>: subject <1>, [body|text] <2>", "email <0> about <1> and say <2>", "send <0> a mail [titled|with the title|called] <1> [saying|that says] <2>"]),
        (["create_event", "add_event", "calendar_create", "schedule_meeting", "createCalendarEvent", "book_meeting"], ["Create an event in the calendar.", "Adds an appointment to the calendar.", "Schedules a meeting."], [(["title", "name", "summary", "subject"], s, v_phrase, True), (["date", "day", "on"], s, v_date, True), (["time", "start", "start_time", "at"], s, v_time, False)],
         ["[create|add|make|schedule] [an event|a meeting|an appointment|a calendar entry] [called |named |titled |]<0> [on|for] <1>", "[schedule|book|put] <0> [on|for] <1> at <2>", "[create|add|schedule] [an event|a meeting] [called |named |]<0> [on|for] <1> at <2>", "put <0> in my calendar for <1>", "I have <0> on <1> at <2>, [add it|put it in my calendar|note it]"]),
        (["set_reminder", "remind", "create_reminder", "add_reminder", "reminder", "setReminder"], ["Sets a reminder.", "Reminds the user of something at a given time."], [(["text", "message", "what", "task", "title"], s, v_phrase, True), (["time", "when", "at", "date"], s, v_time, True)],
         ["remind me [of|about|to] <0> at <1>", "[set|create|make] a reminder [for|at] <1>: <0>", "set a reminder [called |saying |]<0> [for|at] <1>", "at <1>, remind me [of|about] <0>", "I must not forget <0> at <1>"]),
        (["set_timer", "timer", "start_timer", "countdown"], ["Starts a timer.", "Counts down some minutes and rings."], [(["minutes", "duration", "duration_minutes", "length"], i, v_int, True)],
         ["[set|start|make] a timer [for|of] <0> minutes", "<0> minute timer", "[wake|call|alert|tell] me in <0> minutes", "[count down|time] <0> minutes", "let me know when <0> minutes are over"]),
        (["translate", "translate_text", "translator", "translateText"], ["Translates text into another language.", "Translate a text."], [(["text", "input", "content", "phrase"], s, v_phrase, True), (["target_language", "to", "language", "target", "lang"], s, v_language, True)],
         ["translate <0> [to|into] <1>", "how do [you|I] say <0> in <1>?", "what is <0> in <1>?", "say <0> in <1>", "put <0> into <1>", "the <1> [for|translation of] <0>"]),
        (["read_file", "Read", "view_file", "cat_file", "open_file", "get_file_contents", "readFile", "view", "file_read"], ["Reads a file.", "Returns the contents of a file.", "Read a file from the disk."], [(["file_path", "path", "filename", "file"], s, v_abspath, True), (["offset", "start_line", "from_line"], i, v_int, False), (["limit", "lines", "max_lines"], i, v_int, False)],
         ["[read|show me|open|display|print|view|look at|load|cat] [the file |the contents of |file |]<0>", "what is in [the file |]<0>?", "what does [the file |]<0> [say|contain]?", "[read|show] the first <2> lines of <0>", "show me what [is|stands] in <0>", "[read|open] <0> and tell me what it says", "read <2> lines of <0> [from|starting at] line <1>", "give me the contents of <0>", "have a look at <0>"]),
        (["write_file", "Write", "create_file", "save_file", "writeFile", "file_write", "put_file"], ["Writes a file.", "Creates or overwrites a file with the given content.", "Write text to a file on the disk."], [(["file_path", "path", "filename", "file"], s, v_abspath, True), (["content", "text", "contents", "data"], s, v_phrase, True)],
         ["[write|save|put|store] <1> [to|into|in] [the file |file |]<0>", "create [a file|the file|a new file] [called |named |at |]<0> [with the content|containing|with|with the text|that contains|that says] <1>", "make a file <0> with <1> in it", "[the file |]<0> should [contain|say|hold] <1>", "save <1> as <0>"]),
        (["Edit", "edit_file", "replace_in_file", "str_replace", "editFile", "apply_edit"], ["Replaces text in a file.", "Edits a file by exact string replacement.", "Change a file: an old string becomes a new one."], [(["file_path", "path", "filename", "file"], s, v_abspath, True), (["old_string", "old_str", "old", "search"], s, v_phrase, True), (["new_string", "new_str", "new", "replace"], s, v_phrase, True)],
         ["[replace|change|swap] <1> [with|to|by|for|into] <2> in [the file |]<0>", "in [the file |]<0>, [replace|change] <1> [with|to|by|into] <2>", "edit <0>: <1> [becomes|should be|should become|->] <2>", "[substitute|put] <2> for <1> in <0>", "[fix|update|edit] <0> so that <1> becomes <2>"]),
        (["Glob", "find_files", "glob", "list_files_matching", "file_search", "findFiles"], ["Finds files by a glob pattern.", "Lists the files whose names match a pattern.", "Fast file search by name pattern."], [(["pattern", "glob", "glob_pattern", "name"], s, v_glob, True), (["path", "directory", "dir", "folder"], s, v_dir, False)],
         ["find [all |]files [matching|that match|like] <0>", "which files match <0>?", "[list|show|search|look for] [all |]<0>[ files|]", "find <0> in [the folder |]<1>", "[glob|search] for <0>", "are there files like <0> [in|under] <1>?", "where are the files that match <0>?"]),
        (["Grep", "grep", "search_files", "search_code", "code_search", "grep_search", "searchInFiles", "ripgrep"], ["Searches the contents of files with a regular expression.", "Search for a pattern in files.", "Finds lines in files."], [(["pattern", "regex", "query", "search"], s, v_regex, True), (["path", "directory", "dir", "folder"], s, v_dir, False)],
         ["[search|grep|look] for <0> in [the code|the files|all files|the project|the repository|the sources|this project]", "[find|show me] [all |]lines [matching|with|that match|containing] <0>", "grep <0>", "where [is|do we use|do we have|does the code use] <0>[ used| defined| mentioned|][ in the code| in the project|]?", "[search|grep] for <0> [in|under] <1>", "which files [contain|mention|have] <0>?", "search <1> for <0>", "find <0> in the [code|sources|files]"]),
        (["list_directory", "LS", "ls", "list_dir", "list_files", "dir_list", "listDirectory"], ["Lists a folder.", "Returns the names of the files in a directory.", "List the contents of a directory."], [(["path", "directory", "dir", "folder"], s, v_dir, True)],
         ["[list|show|show me] [the |all |all the |]files in [the folder |the directory |]<0>", "what is in [the folder |the directory |]<0>?", "which files are in [the folder |the directory |]<0>?", "list [the |]contents of <0>", "[show|list] [the folder |the directory |]<0>", "what [files|things] does [the folder |]<0> [have|contain|hold]?"]),
        (["delete_file", "remove_file", "rm", "deleteFile", "file_delete"], ["Deletes a file.", "Remove a file for good."], [(["path", "file_path", "filename", "file"], s, v_abspath, True)],
         ["[delete|remove|erase|get rid of|throw away] [the file |file |]<0>", "I no longer need <0>[, delete it|, remove it|]", "<0> can go[, delete it|]", "[wipe|trash] <0>"]),
        (["WebFetch", "fetch_url", "http_get", "fetch", "get_page", "browse", "open_url", "download_page", "read_url"], ["Fetches a web page.", "Gets the content of a URL.", "Downloads a page and returns its text."], [(["url", "link", "address", "uri"], s, v_url, True)],
         ["[fetch|get|open|load|download|read|visit|browse|go to] [the page |the site |the url |]<0>", "what [is|does it say] [on|at] <0>?", "what does <0> say?", "[show me|summarize|tell me about] [the page |]<0>", "have a look at <0>", "get me the content of <0>"]),
        (["get_stock_price", "stock_price", "quote", "stock_quote", "getStockPrice"], ["Gets the price of a stock.", "Returns the latest price for a ticker symbol."], [(["symbol", "ticker", "stock"], s, lambda r: (t := "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randrange(2, 5))), t), True)],
         ["what is the [stock |share |]price of <0>?", "[get|show me|look up|check] the [stock |share |][price|quote] [of|for] <0>", "how much is [one share of |a share of |]<0>[ stock| worth|]?", "how is <0> doing[ on the stock market|]?", "<0> [stock price|quote|share price]"]),
        (["convert_currency", "currency", "exchange", "currency_convert", "convertCurrency", "exchange_money"], ["Converts an amount of money from one currency into another.", "Currency conversion."], [(["amount", "value", "sum"], n, v_number, True), (["from", "from_currency", "source", "base"], s, v_currency, True), (["to", "to_currency", "target"], s, v_currency, True)],
         ["[convert|change|exchange] <0> <1> [to|into|in] <2>", "how [much|many] <2> [is|are|do I get for] <0> <1>?", "what is <0> <1> in <2>?", "<0> <1> in <2>", "<0> <1> to <2>", "I have <0> <1>, how much is that in <2>?"]),
        (["convert_units", "unit_convert", "convert", "units"], ["Converts a value from one unit into another.", "Unit conversion."], [(["value", "amount", "quantity", "number"], n, v_number, True), (["from_unit", "from", "source_unit"], s, lambda r: (u := r.choice(_UNITS), u), True), (["to_unit", "to", "target_unit"], s, lambda r: (u := r.choice(_UNITS), u), True)],
         ["[convert|change] <0> <1> [to|into] <2>", "how many <2> are <0> <1>?", "what is <0> <1> in <2>?", "<0> <1> in <2>", "<0> <1> to <2>"]),
        (["get_time", "current_time", "time", "get_current_time", "clock", "world_clock"], ["Tells the time in a city.", "Returns the current time for a place or time zone."], [(["location", "city", "timezone", "place"], s, v_city, True)],
         ["what time is it in <0>?", "[tell me|get|show me|what is] the [current |local |]time in <0>", "how late is it in <0>?", "time in <0>", "[is it|are they] [late|early|asleep] in <0>[ already| now|]?"]),
        (["play_music", "play", "play_song", "music_play", "spotify_play"], ["Plays music.", "Plays a song, optionally by a given artist."], [(["song", "title", "track", "name"], s, v_phrase, True), (["artist", "by", "band"], s, v_person, False)],
         ["play [the song |me |]<0>", "[play|put on] <0> by <1>", "I want to [hear|listen to] <0>[ by <1>|]".replace("[ by <1>|]", ""), "[start|put on] the song <0>", "let me hear <0> by <1>"]),
        (["set_light", "light", "lights", "set_brightness", "control_light", "dim_light"], ["Controls the light in a room.", "Sets the brightness of a lamp in per cent."], [(["room", "location", "where", "area"], s, lambda r: (t := r.choice("kitchen|bedroom|living room|bathroom|hall|garage|office|garden|cellar|attic|balcony|nursery".split("|")), t), True), (["brightness", "level", "percent", "value"], i, lambda r: (str(x := r.randrange(0, 101)), x), True)],
         ["set the [light|lights|lamp|brightness] in the <0> to <1>[ percent|%|]", "[dim|turn|change|put] the <0> [light|lights] to <1>[ percent|%|]", "<0> [light|lights] [at|to] <1>[ percent|%|]", "make the light in the <0> <1> percent bright"]),
        (["set_thermostat", "thermostat", "set_temperature", "heating", "climate"], ["Sets the temperature of the heating.", "Controls the thermostat."], [(["temperature", "degrees", "value", "target"], n, lambda r: (str(x := r.randrange(5, 31)), x), True)],
         ["set the [temperature|thermostat|heating] to <0>[ degrees|]", "[make it|I want it] <0> degrees[ in here| warm|]", "[turn|put] the heating to <0>[ degrees|]", "heat [the house |the room |]to <0> degrees"]),
        (["book_flight", "search_flights", "find_flights", "flights", "flight_search"], ["Searches flights between two cities.", "Finds flights."], [(["origin", "from", "from_city", "departure"], s, v_city, True), (["destination", "to", "to_city", "arrival"], s, v_city, True), (["date", "day", "departure_date", "on"], s, v_date, True)],
         ["[find|search|book|look for|show me|get me] [a flight|flights|a plane] from <0> to <1> on <2>", "I [need|want] to fly from <0> to <1> on <2>", "[which|what|are there] flights [go |]from <0> to <1> on <2>?", "fly me from <0> to <1> on <2>"]),
        (["book_hotel", "find_hotel", "search_hotels", "hotels", "hotel_search"], ["Searches hotels in a city.", "Finds a hotel for some nights."], [(["city", "location", "destination", "place"], s, v_city, True), (["nights", "number_of_nights", "duration"], i, lambda r: (str(x := r.randrange(2, 30)), x), True)],
         ["[find|search|book|look for|get] [a hotel|me a hotel|hotels|a room] in <0> for <1> nights", "I [need|want] [a hotel|a room] in <0> for <1> nights", "<1> nights in <0>, [find a hotel|please book|I need a room]", "where can I [stay|sleep] in <0> for <1> nights?"]),
        (["book_table", "reserve_table", "restaurant_reservation", "reserve_restaurant"], ["Reserves a table at a restaurant.", "Books a table for some people."], [(["restaurant", "name", "place"], s, v_phrase, True), (["people", "party_size", "guests", "seats"], i, lambda r: (str(x := r.randrange(1, 15)), x), True), (["time", "at", "when"], s, v_time, True)],
         ["[book|reserve] a table at <0> for <1> people at <2>", "[get|find] us a table for <1> at <0> at <2>", "we are <1> people and want to eat at <0> at <2>", "a table for <1> at <0>, <2>"]),
        (["get_directions", "directions", "route", "navigate", "find_route"], ["Finds the way from one place to another.", "Returns directions."], [(["from", "origin", "start"], s, v_city, True), (["to", "destination", "end"], s, v_city, True), (["mode", "by", "transport", "travel_mode"], ["car", "train", "bike", "foot", "bus"], None, False)],
         ["how do I get from <0> to <1>?", "[find|show me|tell me] the way from <0> to <1>", "[directions|route|way] from <0> to <1>", "navigate from <0> to <1> by <2>", "how do I get from <0> to <1> by <2>?", "I am in <0> and [must|want to|have to] go to <1>"]),
        (["create_task", "add_task", "add_todo", "todo_add", "TaskCreate", "new_task"], ["Adds a task to the list.", "Creates a to-do item.", "Create a task."], [(["title", "task", "subject", "name", "text"], s, v_phrase, True), (["priority", "importance", "urgency"], ["low", "medium", "high"], None, False)],
         ["[add|create|make|open] [a task|a todo|a to-do|a new task] [called |named |titled |: |]<0>", "[add|put] <0> [to|on] my [list|todo list|tasks|to-do list|task list]", "[create|add] a [task|todo] <0> with <1> priority", "[new|another] [task|todo]: <0>", "I [have to|must|need to] [do|remember] <0>, add it to my tasks", "[add|create] a <1> priority task [called |]<0>"]),
        (["complete_task", "finish_task", "mark_done", "close_task"], ["Marks a task as done.", "Completes a to-do item."], [(["task_id", "id", "task", "number"], s, v_id, True)],
         ["[mark|set] task <0> as [done|finished|complete|completed]", "[complete|finish|close] task <0>", "task <0> is [done|finished|complete]", "I [finished|did|have done] task <0>"]),
        (["query_database", "run_sql", "sql", "execute_sql", "db_query"], ["Runs an SQL query.", "Queries the database and returns rows."], [(["query", "sql", "statement"], s, lambda r: (lambda q: (_always(r, q), q))(r.choice((f"SELECT * FROM {words.plural(r.choice(words.NOUNS))}", f"SELECT {r.choice(words.NOUNS)} FROM {words.plural(r.choice(words.NOUNS))} WHERE {r.choice(words.NOUNS)} > {r.randrange(100)}", f"SELECT COUNT(*) FROM {words.pseudo_word(r)}", f"DELETE FROM {words.pseudo_word(r)} WHERE id = {r.randrange(999)}"))), True)],
         ["[run|execute|send] [the query |the sql |this query |]<0>", "query the database [with|using|:] <0>", "what [does|is the result of] <0>[ return|]?", "ask the database: <0>"]),
        (["get_user", "find_user", "lookup_user", "user_info", "getUser"], ["Looks up a user.", "Returns what is known of a user."], [(["user_id", "id", "username", "user"], s, v_id, True)],
         ["[get|find|look up|show me|fetch] [the |]user <0>", "who is user <0>?", "what do we know about user <0>?", "[details|information|data] [of|about|on] user <0>"]),
        (["send_message", "SendMessage", "message", "send_sms", "text_message", "slack_message", "sendMessage"], ["Sends a message to a person.", "Sends a text message."], [(["to", "recipient", "person", "contact"], s, v_person, True), (["text", "message", "body", "content"], s, v_phrase, True)],
         ["[send|write] [a message|a text] to <0>: <1>", "[tell|text|message|write] <0> <1>", "send <0> the message <1>", "let <0> know: <1>", "send [a message |]to <0> saying <1>", "message <0> and say <1>"]),
        (["get_news", "news", "headlines", "latest_news"], ["Gets the news about a topic.", "Returns current headlines."], [(["topic", "subject", "about", "category"], s, v_topic, True)],
         ["[what is|what's] the [latest |]news [about|on] <0>?", "[show|get|give] me [the |]news [about|on] <0>", "any news [about|on] <0>?", "[latest |]headlines [about|on] <0>", "what happened with <0>[ lately|]?"]),
        (["create_note", "save_note", "add_note", "take_note", "note"], ["Saves a note.", "Stores a text as a note with a title."], [(["title", "name", "heading"], s, v_phrase, True), (["text", "content", "body", "note"], s, v_phrase, True)],
         ["[save|make|create|take|write] a note [called|titled|named] <0> [with the text|saying|that says|with] <1>", "note under <0>: <1>", "[write down|note] <1> [under|as] <0>", "new note <0>: <1>"]),
        (["generate_image", "draw", "create_image", "image", "text_to_image", "imagine"], ["Makes a picture from a description.", "Generates an image."], [(["prompt", "description", "text"], s, v_phrase, True), (["width", "size"], i, lambda r: (str(x := r.choice((256, 512, 768, 1024))), x), False)],
         ["[draw|paint|generate|create|make] [a picture|an image|a picture of|an image of|me a picture of] <0>", "[draw|show] me <0>", "I want a picture of <0>", "make an image of <0>, <1> pixels wide", "[create|generate] a <1> pixel image of <0>"]),
        (["random_number", "roll_dice", "dice", "random_int"], ["Makes a random number between two bounds.", "Returns a random integer."], [(["min", "low", "from", "minimum"], i, lambda r: (str(x := r.randrange(0, 10)), x), True), (["max", "high", "to", "maximum"], i, v_int, True)],
         ["[give|tell|pick|choose|make] [me |][a|a random] number [between|from] <0> [and|to] <1>", "random number [from|between] <0> [to|and] <1>", "[roll|draw|pick] [something|a number] between <0> and <1>"]),
        (["define_word", "dictionary", "define", "lookup_word", "word_definition"], ["Looks up a word in a dictionary.", "Gives the meaning of a word."], [(["word", "term", "entry"], s, v_word, True)],
         ["what does [the word |]<0> mean?", "[define|look up] [the word |]<0>", "[what is the|give me the|the] [definition|meaning] of [the word |]<0>", "look up <0> in the dictionary"]),
        (["get_recipe", "find_recipe", "recipe", "recipe_search"], ["Finds a recipe.", "Searches recipes for a dish."], [(["dish", "name", "query", "food"], s, v_topic, True)],
         ["[find|get|give me|show me|search] a recipe for <0>", "how do I [cook|make|bake] <0>?", "recipe for <0>", "I want to [cook|bake|make] <0>"]),
        (["Skill", "run_skill", "use_skill", "invoke_skill"], ["Runs a named skill.", "Executes a skill by its name."], [(["skill", "name", "skill_name"], s, v_name, True), (["args", "arguments", "input"], s, v_phrase, False)],
         ["[run|use|execute|invoke|start] the skill <0>", "[run|use] the <0> skill", "use skill <0> with [the arguments |]<1>", "[start|invoke] skill <0>"]),
        (["Agent", "Task", "spawn_agent", "delegate", "launch_agent"], ["Starts another agent on a task.", "Launches a subagent that works on its own."], [(["description", "title", "name"], s, v_phrase, True), (["prompt", "task", "instructions"], s, v_phrase, True)],
         ["[start|launch|spawn] [an agent|a subagent] [called|named|titled|for] <0> [with the task|with the prompt|that shall|to do] <1>", "let an agent [called |named |]<0> do <1>", "[delegate|give] <1> to an agent [named|called] <0>"]),
        (["github_issue", "create_issue", "open_issue", "file_issue", "new_issue"], ["Opens an issue in a repository.", "Files a bug."], [(["title", "subject", "summary"], s, v_phrase, True), (["repo", "repository", "project"], s, lambda r: (t := f"{words.pseudo_word(r)}/{words.name(r)}", t), True)],
         ["[open|create|file|make] an issue [called |titled |named |]<0> in <1>", "[report|file] [the bug |a bug |]<0> [in|against|to] [the repository |]<1>", "in <1>, [open|create] an issue [titled |]<0>"]),
        (["track_package", "track_order", "order_status", "get_order", "package_status"], ["Tells where a parcel is.", "Returns the state of an order."], [(["order_id", "tracking_number", "id", "number"], s, v_id, True)],
         ["where is [my |the |][order|package|parcel] <0>?", "[track|check|look up] [the |my |][order|package|parcel] <0>", "what is the [status|state] of [my |the |][order|package|parcel] <0>?", "has [order|package|parcel] <0> [arrived|shipped|left]?"]),
        (["NotebookEdit", "edit_cell", "notebook_edit", "replace_cell"], ["Replaces a cell of a notebook.", "Edits a notebook."], [(["notebook_path", "path", "notebook"], s, lambda r: (p := words.name(r) + ".ipynb", p), True), (["cell_id", "cell", "id"], s, v_id, True), (["new_source", "source", "content"], s, v_phrase, True)],
         ["[replace|change|set] cell <1> [of|in] [the notebook |]<0> [with|to] <2>", "in [the notebook |]<0>, cell <1> should [be|contain|say] <2>", "put <2> into cell <1> of <0>"]),
        (["remember", "save_memory", "memory_write", "memorize", "store_memory"], ["Remembers a fact for later.", "Stores something in memory."], [(["fact", "text", "content", "memory"], s, v_phrase, True)],
         ["[remember|memorize|keep in mind|don't forget|save]: <0>", "[remember|memorize|save] [that|the fact|this:|the following:] <0>", "please remember <0>", "keep <0> in [mind|memory]"]),
        (["CronCreate", "schedule_job", "cron", "add_cron", "create_job"], ["Runs a prompt on a schedule.", "Creates a scheduled job."], [(["cron", "schedule", "expression"], s, lambda r: (lambda c: (_always(r, c), c))(f"{r.choice(('*', '0', '*/5', str(r.randrange(60))))} {r.choice(('*', str(r.randrange(24))))} * * {r.choice(('*', '1-5', str(r.randrange(7))))}"), True), (["prompt", "job", "task", "command"], s, v_phrase, True)],
         ["[schedule|run|do] <1> [with the schedule|with cron|on the schedule|at cron] <0>", "create a [cron job|job|scheduled job] [with|at] <0> [that does|for|doing] <1>", "every <0>, [do|run] <1>"]),
        (["stop_task", "TaskStop", "kill_process", "cancel_job", "stop_job"], ["Stops a running task.", "Kills a background job."], [(["task_id", "id", "job_id", "process_id"], s, v_id, True)],
         ["[stop|cancel|kill|end|abort] [the |]( task| job| process) <0>".replace("( task| job| process)", "[task|job|process|background task]"), "[task|job|process] <0> should [stop|end]"]),
        (["TaskOutput", "get_output", "job_output", "read_output"], ["Gets the output of a background task.", "Reads what a job has printed so far."], [(["task_id", "id", "job_id"], s, v_id, True)],
         ["[show|get|read|give] [me |]the output of [task|job|background task] <0>", "what did [task|job] <0> print?", "what has [task|job] <0> [printed|put out][ so far|]?"]),
    ]


# More ways to ask for what the catalog has, by a tool's first name.
_MORE = {
    "get_weather": ["what's the weather [like |]in <0>[ today| right now| now|]?", "is it [windy|foggy|hot|humid|freezing|stormy] in <0>[ today| right now| at the moment|]?", "how [warm|cold|hot] is it in <0>, in <1>?", "how many degrees [is it|does it have|are there] in <0>[ in <1>|]?".replace("[ in <1>|]", ""), "how many degrees is it in <0>, in <1>?", "[I'm|I am|we are] [off|going|on my way|travelling] to <0>[ soon| today|][.|,] [how's|how is|what is|what about] the weather [there|over there]?", "<0>: [weather|temperature|forecast]?", "[will|does] it rain in <0>[ today|]?", "what should I wear in <0>[ today|]?"],
    "search_web": ["[search|look] [online|the internet|the web] for [information about |]<0>", "[please |]find out [online |]about <0>", "[find|get|search] [me |][the |]<0> [online|on the internet|on the web]", "[run|start|do] [a|an] [online |internet |]search for <0>", "what can [you find|be found] [online |]about <0>?", "[research|investigate] <0>"],
    "calculate": ["[please |]work out <0>", "how much does <0> [make|give]?", "<0>", "do the math: <0>", "<0> [equals|is] what?", "[compute|calculate|evaluate] <0> for me"],
    "send_email": ["send a mail to <0>, subject <1>, and [say|write|tell] <2>", "[write|mail] to <0> with the subject <1> and the [body|text|message] <2>", "[mail|email|e-mail] <0> with the subject <1> and the [text|message|body|content] <2>", "<0> should get [a mail|an email] with subject <1> and [text|body] <2>"],
    "create_event": ["put <0> [in|into|on] [my|the] calendar [on|for] <1>", "[schedule|plan|arrange|book] <0> for <1> at <2>", "on <1> at <2> [there is|I have|comes] <0>[, put it in my calendar|]", "[new|another] [event|appointment|meeting] on <1>: <0>"],
    "set_timer": ["[start|set] a timer, <0> minutes", "[give me|I need] [a shout|a ring|a signal|an alarm|a beep] in <0> minutes", "timer[:| for] <0> [minutes|min]", "<0> minutes[, go| on the timer|, please]", "[ring|beep] [after|in] <0> minutes"],
    "translate": ["how would [one|you|I] say <0> in <1>?", "what's <0> in <1>?", "[give|tell] me the <1> [word|words|translation] for <0>", "I need <0> in <1>", "<0>, but in <1>"],
    "read_file": ["[could you |please |]open <0> and [show|read|give] it [to me|out]", "[let me|I want to|I would like to] [see|read|view] [what's in |what is in |the contents of |the file |]<0>", "what's [in|inside] <0>?", "[give|get] me [the text of |the file |]<0>", "[the contents of |what's written in ]<0>, please"],
    "write_file": ["[put|place|store|write|save] [the text |the words |]<1> [into|in|to|inside] [the file |a file called |a file named |]<0>", "[create|make] <0> [containing|with the text|with the content|that contains|with] <1>", "<0> [shall|should|must] [contain|have|hold] [the text |]<1>", "[write|save] a file <0> [with|containing|that says] <1>"],
    "Edit": ["[please |]change <1> to <2> in <0>", "<1> in <0> [should be|must be|must become|has to be] <2>", "use <2> instead of <1> in <0>"],
    "Glob": ["[please |]find all files that match <0>", "[which|what] files [look like|are like|fit|match] <0>?", "files matching <0>", "[show|give] me [the |]<0> files"],
    "Grep": ["[look|search] for <0> in the files [below|under|in|of] <1>", "which files [contain|have|use|hold] <0>?", "[search|scan|look through] [all |]the files for <0>", "[search|scan] <1> for <0>", "is <0> [used|found] [anywhere|somewhere][ in <1>|]?".replace("[ in <1>|]", ""), "find <0> [in|below|under|inside] <1>"],
    "list_directory": ["what files are in [the directory |the folder |]<0>?", "what's in [the directory |the folder |]<0>?", "[please |]list what's in <0>", "[show|list] [me |][the |]files [in|of|inside|under] [the folder |the directory |]<0>", "which [files|things] are [there |]in <0>?"],
    "delete_file": ["<0> [should|must|has to] be [deleted|removed]", "I want <0> [deleted|removed|gone]", "[delete|remove] <0> for good"],
    "WebFetch": ["[get|load|grab|pull up|show] [me |]the [page|site|url|website] <0>[ for me|]", "what does <0> [return|answer|show|contain]?", "what's [on|at] <0>?", "[request|call] <0>", "[open|visit] <0> and tell me what [is there|it says]"],
    "get_stock_price": ["what's the [current |latest |][stock |share |]price of <0>?", "how much does [one|a] <0> [share|stock] cost?", "how much [is|are] <0> [shares|stock|stocks]?", "[stock|share] price of <0>[, please|]", "what does <0> trade at?", "[price|quote] of <0>"],
    "convert_currency": ["what [is|are] <0> <1> in <2>?", "[please |]convert <0> <1> to <2>", "[turn|swap|change] <0> <1> [into|for|to] <2>", "how many <2> [for|are] <0> <1>?", "<0> <1> [makes|gives|is] how many <2>?"],
    "get_time": ["what's the [local |current |]time in <0>?", "what time [do they have|is it now|is it right now] in <0>?", "the time in <0>[, please|]"],
    "play_music": ["put on <0>", "[please |]play [the song |]<0> by <1>", "start <0>", "[I'd like|I want] <0> by <1>", "some <0>, please"],
    "send_message": ["tell <0> <1>", "[message|text|write to] <0>: <1>", "[send|give] <0> [the|a] message <1>", "<0> should know <1>", "send <0> <1>"],
    "create_task": ["add <0> to [my|the] [todo list|list|todos|tasks]", "[please |]put <0> on [my|the] list with <1> priority", "put <0> on [my|the] [list|todo list]", "todo: <0>", "I [still |]have to do <0>, [note it|put it down|write it down]", "[new|next] todo, <1> priority: <0>"],
    "define_word": ["what's the [meaning|definition] of [the word |]<0>?", "look [the word |]<0> up", "[please |]define [the word |the term |]<0>", "[explain|tell me] what <0> means", "meaning of <0>?"],
    "query_database": ["[run|execute|do] the [query|sql query|statement] <0>", "[query|sql]: <0>"],
    "track_package": ["where's my [package|parcel|order] <0>?", "[please |]track [the |][parcel|package|order] <0>", "[is|has] <0> [been delivered|arrived|on its way]?", "[status|whereabouts] of [package|parcel|order] <0>"],
    "get_user": ["[information|details] [on|about] user <0>", "find the user with [the |]id <0>"],
}
_UNITS = "meters|feet|inches|miles|kilometers|centimeters|kilograms|pounds|ounces|grams|liters|gallons|cups|celsius|fahrenheit|kelvin|seconds|minutes|hours|days|yards|acres|knots|joules|calories|watts|bytes|bits".split("|")


_CATALOG = _catalog()
for _family in _CATALOG:
    _family[3].extend(2 * _MORE.get(_family[0][0], []))


def known(rng, family=None):
    """A tool of the catalog, in one of its spellings."""
    names, descriptions, parameters, patterns = family or rng.choice(_CATALOG)
    name = rng.choice(names)
    properties, required, keys, kept = {}, [], [], []
    for index, (spellings, kind, value, must) in enumerate(parameters):
        if not must and rng.random() < 0.3:
            continue
        key = rng.choice(spellings[:2] if rng.random() < 0.6 else spellings)
        if rng.random() < 0.08:
            key = words.joined(rng, [rng.choice(words.NOUNS), key], "snake")
        if key in properties:
            key = next((k for k in spellings if k not in properties), key + "_2")
        if isinstance(kind, list):
            properties[key] = _property(rng, "string", enum=list(kind))
        else:
            properties[key] = _property(rng, kind)
        if must:
            required.append(key)
        keys.append((index, key, kind, value))
        kept.append(index)
    usable = [p for p in patterns if all(f"<{i}>" not in p for i in range(len(parameters)) if i not in kept)]
    # A request gives every required argument, so these patterns are the ones that do.
    needed = [i for i in kept if parameters[i][3]]
    usable = [p for p in usable if all(f"<{i}>" in p for i in needed)]

    def ask(rng):
        pattern = rng.choice(usable)
        texts, arguments = {}, {}
        for index, key, kind, value in keys:
            if f"<{index}>" not in pattern:
                continue
            texts[str(index)], arguments[key] = (lambda x: (x, x))(rng.choice(kind)) if isinstance(kind, list) else value(rng)
        lead = "{please}" if pattern.split(" ")[0].strip("[").split("|")[0] not in ("what", "how", "is", "which", "where", "do", "who", "has", "I") and "?" not in pattern else ""
        text = opened(rng, say(rng, lead + pattern, texts, 0.15))
        if rng.random() < 0.12:
            text = f"{rng.choice(('Use', 'Call', 'With', 'Using'))} {name}: {text}"
        if text[-1].isalnum() and rng.random() < 0.3:
            text += "."
        return text, arguments

    if rng.random() < 0.15:
        name = words.joined(rng, rng.choice(([words.pseudo_word(rng), name], [name, rng.choice(words.NOUNS)], [rng.choice(words.NOUNS), name])), rng.choice(("snake", "kebab")))
    tool = Tool(name, rng.choice(descriptions) + _more(rng), properties, required, ask, "known")
    tool.family = names[0]
    return tool


_ACTS = {
    "archive": "[archive|put away|file away|move to the archive]", "approve": "[approve|accept|sign off|give my approval for]", "cancel": "[cancel|call off|revoke|abort]", "create": "[create|make|add|set up|open]",
    "delete": "[delete|remove|erase|get rid of]", "update": "[update|change|modify|adjust]", "get": "[get|show me|fetch|look up|find]", "list": "[list|show|show me|enumerate]", "assign": "[assign|give|hand over]",
    "rename": "[rename|call|change the name of]", "move": "[move|transfer|shift]", "copy": "[copy|duplicate|clone]", "export": "[export|save out|dump]", "import": "[import|load in|bring in]", "lock": "[lock|freeze|seal]",
    "unlock": "[unlock|unfreeze|open up]", "publish": "[publish|release|make public]", "schedule": "[schedule|plan|arrange]", "start": "[start|begin|launch]", "stop": "[stop|halt|end]", "rate": "[rate|score|give a rating to]",
    "tag": "[tag|label|mark]", "share": "[share|send around|pass on]", "print": "[print|put on paper]", "measure": "[measure|gauge|take the measure of]", "order": "[order|buy|purchase]", "sell": "[sell|put up for sale]", "paint": "[paint|color]",
    "repair": "[repair|fix|mend]", "inspect": "[inspect|examine|check]", "count": "[count|tell me the number of]", "reserve": "[reserve|book|set aside]", "ship": "[ship|dispatch|send off]", "notify": "[notify|inform|alert]", "merge": "[merge|combine|join]",
    "split": "[split|divide|break up]", "restore": "[restore|bring back|recover]", "verify": "[verify|confirm|make sure of]", "upload": "[upload|put online]", "download": "[download|save locally]", "subscribe": "[subscribe to|follow]", "register": "[register|sign up|enroll]",
    "compress": "[compress|shrink]", "encrypt": "[encrypt|scramble]", "plot": "[plot|draw a chart of|chart]", "summarize": "[summarize|sum up|give a summary of]", "validate": "[validate|check the validity of]", "compare": "[compare]", "water": "[water|give water to]", "feed": "[feed|give food to]", "restart": "[restart|start again|bring up again]", "open": "[open]", "close": "[close|shut]", "clean": "[clean|wipe]", "send": "[send|pass]", "find": "[find|look for|locate]", "read": "[read|have a look at]", "write": "[write|put down]", "check": "[check|look at]", "build": "[build|construct]", "test": "[test|try out]", "play": "[play]", "save": "[save|store|keep]", "search": "[search|look through]", "track": "[track|follow]", "convert": "[convert|turn]", "translate": "[translate]", "add": "[add|put in]", "set": "[set]", "call": "[call|ring]", "pay": "[pay|settle]", "invite": "[invite|ask]", "block": "[block|stop]", "enable": "[enable|turn on|switch on]", "disable": "[disable|turn off|switch off]", "deploy": "[deploy|roll out]", "remove": "[remove|take away]", "book": "[book|reserve]",
}
_PARAMETERS = [
    ("id", "string", v_id, ("with [the |][id|number|identifier] {v}", "[id|number|no.|#] {v}", "{v}", "number {v}")),
    ("name", "string", v_name, ("[called|named] {v}", "with the name {v}", "name {v}", "by the name of {v}")),
    ("title", "string", v_phrase, ("[titled|with the title|entitled] {v}", "title {v}")),
    ("reason", "string", v_phrase, ("because {v}", "with the reason {v}", "[reason:|reason] {v}", "for the reason {v}", "on grounds of {v}")),
    ("comment", "string", v_phrase, ("with the comment {v}", "and comment {v}", "comment {v}", "adding the comment {v}")),
    ("amount", "number", v_number, ("with [an|the] amount of {v}", "amount {v}", "[worth|to the amount of] {v}")),
    ("quantity", "integer", v_int, ("[with a |]quantity [of |]{v}", "{v} times", "{v} pieces", "{v} of them")),
    ("priority", ["low", "medium", "high"], None, ("with {v} priority", "priority {v}", "at {v} priority")),
    ("color", ["red", "green", "blue", "yellow", "black", "white"], None, ("in {v}", "with the color {v}", "color {v}", "colored {v}", "{v}", "{v}")),
    ("format", ["json", "csv", "xml", "yaml", "pdf"], None, ("as {v}", "in {v} format", "format {v}", "in the format {v}")),
    ("owner", "string", v_person, ("[owned by|belonging to|of] {v}", "owner {v}", "with {v} as owner")),
    ("user", "string", v_person, ("for [the |]user {v}", "for {v}", "on behalf of {v}", "user {v}")),
    ("assignee", "string", v_person, ("to {v}", "assigned to {v}", "assignee {v}")),
    ("people", "integer", v_int, ("for {v} people", "with {v} people", "for {v}", "{v} people")),
    ("minutes", "integer", v_int, ("for {v} minutes", "{v} minutes", "lasting {v} minutes")),
    ("target", "string", v_id, ("into {v}", "to {v}", "with {v}", "target {v}")),
    ("source", "string", v_id, ("from {v}", "source {v}", "of {v}")),
    ("room", "string", v_phrase, ("in [the |]room {v}", "room {v}", "in {v}")),
    ("email", "string", v_email, ("with [the |]email [address |]{v}", "at {v}", "email {v}", "mail to {v}")),
    ("date", "string", v_date, ("on {v}", "for {v}", "date {v}", "dated {v}")),
    ("time", "string", v_time, ("at {v}", "time {v}", "from {v} on")),
    ("city", "string", v_city, ("in {v}", "in the city of {v}", "city {v}", "near {v}")),
    ("path", "string", v_path, ("from {v}", "below {v}", "[at|under] the path {v}", "path {v}", "in [the file |]{v}")),
    ("destination", "string", v_dir, ("to {v}", "into {v}", "with destination {v}", "destination {v}")),
    ("url", "string", v_url, ("[from|at] {v}", "with [the |]url {v}", "url {v}")),
    ("language", "string", v_language, ("in {v}", "with the language {v}", "language {v}")),
    ("limit", "integer", v_int, ("[limited to|at most|no more than|up to] {v}", "limit {v}", "with a limit of {v}")),
    ("label", "string", v_word, ("[labelled|with the label] {v}", "label {v}", "as {v}")),
    ("query", "string", v_topic, ("[matching|about|that match] {v}", "with the query {v}", "query {v}")),
    ("weight", "number", v_number, ("weighing {v}", "with a weight of {v}", "weight {v}")),
    ("duration", "integer", v_int, ("for {v} minutes", "[lasting|with a duration of] {v}", "duration {v}")),
    ("force", "boolean", None, ("[by force|forcibly|with force|no matter what]",)),
    ("verbose", "boolean", None, ("[verbosely|with all details|in verbose mode]",)),
    ("tags", "tags", None, ("with [the |]tags {v}", "tagged {v}", "tags {v}")),
]


_DONE = {"get": "fetched", "sell": "sold", "split": "split", "feed": "fed", "stop": "stopped", "ship": "shipped", "tag": "tagged", "plot": "plotted", "unlock": "unlocked", "copy": "copied", "notify": "notified"}


def invented(rng, act=None, noun=None):
    """A tool that nobody has: an act on a thing, with parameters; sometimes under a name that says nothing."""
    act = act or rng.choice(tuple(_ACTS))
    spoken = _ACTS[act]
    noun = noun or (rng.choice(words.NOUNS) if rng.random() < 0.8 else words.pseudo_word(rng))
    adjective = rng.choice(words.ADJECTIVES) if rng.random() < 0.2 else None
    thing = f"{adjective} {noun}" if adjective else noun
    opaque = rng.random() < 0.12
    parts = [words.pseudo_word(rng) for _ in range(rng.choice((1, 2)))] if opaque else [act] + ([adjective] if adjective else []) + [noun]
    if not opaque and rng.random() < 0.2:
        parts = parts[1:] + parts[:1]
    if rng.random() < 0.12:
        parts = [words.pseudo_word(rng)] + parts
    name = words.joined(rng, parts)
    if rng.random() < 0.08:
        name = f"mcp__{words.pseudo_word(rng)}__{name}"
    chosen = rng.sample(_PARAMETERS, rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))
    prefix = rng.random() < 0.2
    properties, required, filled = {}, [], []
    for key, kind, value, ways in chosen:
        spelled = f"{noun}_{key}" if prefix else key
        if rng.random() < 0.06:
            spelled = words.pseudo_word(rng) + "_" + key
        must = rng.random() < 0.7 and kind not in ("boolean",)
        if isinstance(kind, list):
            properties[spelled] = _property(rng, "string", enum=list(kind))
        elif kind == "tags":
            properties[spelled] = _property(rng, "array", items={"type": "string"})
        else:
            properties[spelled] = _property(rng, kind)
        if must:
            required.append(spelled)
        filled.append((spelled, kind, value, ways, must))

    def ask(rng):
        clauses, arguments = [], {}
        for spelled, kind, value, ways, must in filled:
            if not must and rng.random() < 0.5:
                continue
            if isinstance(kind, list):
                text = arguments[spelled] = rng.choice(kind)
            elif kind == "boolean":
                text, arguments[spelled] = "", True
            elif kind == "tags":
                tags = [words.word(rng) for _ in range(rng.randrange(1, 4))]
                text = ", ".join(tags[:-1]) + (" and " if len(tags) > 1 else "") + tags[-1]
                arguments[spelled] = tags
            else:
                text, arguments[spelled] = value(rng)
            way = rng.choice(ways) if rng.random() < 0.75 or kind == "boolean" else f"[{spelled.replace('_', ' ')}|{spelled}|{spelled} =|{spelled}:|with {spelled} set to] {{v}}"
            clauses.append((spelled, say(rng, way.replace("{v}", "<v>"), {"v": text}, 0)))
        order = list(clauses)
        if rng.random() < 0.4:
            rng.shuffle(order)
        verb = say(rng, spoken) if rng.random() < 0.75 else act
        done = _DONE.get(act, words.past(act))
        article = rng.choice(("the", "the", "a", "this", "my", "our"))
        joiner = rng.choice((" ", " ", ", ", " and "))
        body = f"{verb} {article} {thing}" + "".join((" " if i == 0 else joiner) + c for i, (_, c) in enumerate(order))
        text = opened(rng, say(rng, "{please}<b>{thanks}", {"b": body}, 0.1))
        if rng.random() < 0.25:
            frame = rng.choice(("{want} <t> <d><c>", "<t> {be} <d><c>", "<t> {be} <d><c>{thanks}", "[have|get] <t> <d><c>"))
            clauses_text = "".join((" " if i == 0 else joiner) + c for i, (_, c) in enumerate(order))
            text = opened(rng, say(rng, frame, {"t": f"{article} {thing}", "d": done, "c": clauses_text}, 0.1))
        if rng.random() < 0.15:
            text = f"{rng.choice(('Use', 'Call', 'Use the tool', 'Please use'))} {name}{rng.choice((': ', ' to ', ' and '))}{body}"
        ordered = {key: arguments[key] for key in properties if key in arguments}
        if text[-1].isalnum() and rng.random() < 0.3:
            text += "."
        return text, ordered

    description = rng.choice((f"{words.third(act).capitalize()} a {thing}.", f"{act.capitalize()} {thing}.", f"This tool {words.third(act)} the {thing}.", f"Use it to {act} a {thing}.", f"{act.capitalize()} the given {thing}"))
    return Tool(name, description + _more(rng), properties, required, ask, "invented")


def siblings(rng, count):
    """Tools that differ in one word: the same act on other things, or other acts on the same thing."""
    if rng.random() < 0.5:
        noun = rng.choice(words.NOUNS)
        return [invented(rng, act, noun) for act in rng.sample(tuple(_ACTS), count)]
    act = rng.choice(tuple(_ACTS))
    return [invented(rng, act, noun) for noun in rng.sample(words.NOUNS, count)]


_CLIENT_LIKE = {"Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "WebSearch", "NotebookEdit", "Skill", "Agent", "TaskCreate", "SendMessage", "CronCreate", "TaskStop", "TaskOutput"}


def client_like(rng):
    """Tools as coding clients have them: their usual names, long descriptions, some tools without arguments."""
    tools = []
    for family in _CATALOG:
        if _CLIENT_LIKE & set(family[0]) and rng.random() < 0.8:
            tool = known(rng, family)
            tool.name = next(n for n in family[0] if n in _CLIENT_LIKE)
            tools.append(tool)
    return tools


def tool(rng):
    kind = rng.random()
    return runner(rng) if kind < 0.08 else known(rng) if kind < 0.5 else invented(rng)


def arguments_json(arguments):
    return json.dumps(arguments, ensure_ascii=False)
