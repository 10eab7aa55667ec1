"""Whole conversations: tools, system texts, reminders, requests, calls, results and answers.

What surrounds a request is noise on purpose. Clients wrap requests in reminders, follow them by lists of skills, and send two
dozen tools with pages of instructions; a model that is to find the request must have seen it in every place.
"""

import json
import re

from . import clients, shell, talk, tools, words
from .phrasing import opened, say

SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful, honest assistant.", "You are Pensieve's starter model.", "Be brief.", "You are an assistant that can use tools.", "Answer the user's questions.", "You are a friendly chatbot.",
    "You are an expert programmer.", "You are an AI assistant. Answer concisely.", "Help the user with the command line.", "You help with shell commands.", "You are a coding agent that helps with software tasks.", "Use the tools to help the user.",
    "You are a command line assistant: answer with a shell command as JSON.", "Call a tool when it helps.", "You are an interactive agent in a terminal.", "You are a useful assistant", "Assistant for a developer. Keep answers short.",
)

_NOTHING = ("", "(no output)", "(Bash completed with no output)", "Tool ran without output or errors", "Command completed with no output", "(empty)", "[no output]", "Command ran successfully and produced no output.")


class Library:
    """Tools and stretches of prose that are made once and used often; a part is replaced now and then."""

    def __init__(self, rng, tools_count=1500, blocks_count=1500):
        self.rng = rng
        self.tools = [tools.tool(rng) for _ in range(tools_count)]
        self.blocks = [words.block(rng) for _ in range(blocks_count)]
        self.parts = [clients.part(rng, self) for _ in range(blocks_count // 2)]

    def renew(self, count=8):
        rng = self.rng
        for _ in range(count):
            self.tools[rng.randrange(len(self.tools))] = tools.tool(rng)
            self.blocks[rng.randrange(len(self.blocks))] = words.block(rng)
        self.parts[rng.randrange(len(self.parts))] = clients.part(rng, self)

    def prose(self, characters):
        """Stretches of documentation of about this length."""
        out, total = [], 0
        while total < characters:
            block = self.blocks[int(self.rng.random() * len(self.blocks))]
            out.append(block)
            total += len(block)
        return out


def toolbox(rng, library, count, with_runner):
    """Different tools: of each family of the catalog one at most, sometimes some that are hard to tell apart."""
    box, seen = [], set()

    def put(tool):
        family = tool.name.lower().replace("_", "").replace("-", "")
        key = tool.description[:40] if tool.kind != "invented" else family
        if family in seen or key in seen or (tool.kind == "runner" and any(t.kind == "runner" for t in box)):
            return
        seen.update((family, key))
        box.append(tool)

    if with_runner:
        put(tools.runner(rng))
    if count >= 10 and rng.random() < 0.5:
        for tool in tools.client_like(rng):
            put(tool)
    if count >= 4 and rng.random() < 0.25:
        for tool in tools.siblings(rng, rng.randrange(2, 5)):
            put(tool)
    attempts = 0
    while len(box) < count and attempts < 4 * count:
        attempts += 1
        put(rng.choice(library.tools) if rng.random() < 0.8 else tools.tool(rng))
    families = _families(box)
    box = [t for t in box if families.get(id(t), True)]
    rng.shuffle(box)
    return box


def _families(box):
    """Keeps the first tool of each family of the catalog."""
    seen, keep = set(), {}
    for tool in box:
        if tool.kind == "known":
            keep[id(tool)] = tool.family not in seen
            seen.add(tool.family)
    return keep


# ---- results, and what to say of them


def _lines(rng, low, high):
    kind = rng.randrange(6)
    count = rng.randrange(low, high + 1)
    if kind == 0:
        return [words.file_name(rng) for _ in range(count)]
    if kind == 1:
        return [f"-rw-r--r-- 1 {rng.choice(words.PEOPLE).lower()} users {rng.randrange(100000)} {rng.choice(words.MONTHS)[:3]} {rng.randrange(1, 29)} {rng.randrange(24):02}:{rng.randrange(60):02} {words.file_name(rng)}" for _ in range(count)]
    if kind == 2:
        return [words.sentence(rng) for _ in range(count)]
    if kind == 3:
        return [f"{words.path(rng)}:{rng.randrange(1, 900)}:{words.phrase(rng)}" for _ in range(count)]
    if kind == 4:
        return [f"{words.word(rng)}: {words.phrase(rng, 1, 3)}" for _ in range(count)]
    return [words.phrase(rng) for _ in range(count)]


def _short(rng):
    kind = rng.random()
    if kind < 0.15:
        return " ".join(words.unseen(rng) for _ in range(rng.randrange(1, 6)))
    if kind < 0.4:
        return tools.echo_text(rng)
    if kind < 0.55:
        return str(rng.randrange(100000))
    if kind < 0.7:
        return words.path(rng)
    if kind < 0.85:
        return words.phrase(rng, 1, 8)
    return words.sentence(rng)


def _error(rng):
    text = rng.choice((
        f"bash: {words.pseudo_word(rng)}: command not found", f"cat: {words.path(rng)}: No such file or directory", f"ls: cannot access '{words.path(rng)}': No such file or directory",
        f"Permission denied: {words.path(rng)}", f"permission denied", f"fatal: not a git repository", f"connection to {rng.choice(words.HOSTS)} timed out", f"{words.word(rng)} is not available", f"invalid {words.name(rng)}: {words.word(rng)}",
        f"{words.path(rng)} does not exist", f"the {rng.choice(words.NOUNS)} could not be found", f"timeout after {rng.randrange(1, 600)} seconds", f"make: *** No rule to make target '{words.name(rng)}'.  Stop.", f"npm error missing script: {words.name(rng)}", words.sentence(rng),
        f"/bin/bash: line 1: {words.pseudo_word(rng)}: command not found", f"The user does not want to run this command", f"Permission to use {rng.choice(tools.RUNNERS)} has been denied.",
    ))
    frame = rng.choice(("Error: {}", "Error: {}", "error: {}", "Exit code {n}\n{}", "Exit code {n}\n{}", "<tool_use_error>{}</tool_use_error>", '{{"error": "{}"}}', "Failed: {}"))
    if '"' in text and "error\"" in frame:
        frame = "Error: {}"
    return frame.format(text, n=rng.choice((1, 2, 126, 127, 128, 130, 255))), text


def _echoed(command):
    """What a simple echo prints, or nothing where that takes a shell to know."""
    match = re.fullmatch(r"echo (?:'([^']*)'|\"([^\"$`\\!]*)\"|([^'\"$`\\;|&><*!#]+))", command)
    if not match:
        return None
    return next(g for g in match.groups() if g is not None).strip()


def run_result(rng, library, command):
    """What a command printed, and what to say of it."""
    kind = rng.random()
    if kind < 0.13:
        full, text = _error(rng)
        return full, f"The command failed: {text}"
    if kind < 0.2:
        return rng.choice(_NOTHING), "The command printed nothing."
    echoed = _echoed(command)
    if echoed is not None and rng.random() < 0.8:
        return echoed, f"The command printed: {echoed}"
    if kind < 0.65:
        text = _short(rng)
        return text, f"The command printed: {text}"
    if kind < 0.88:
        text = "\n".join(_lines(rng, 2, 6))
        return text, f"The command printed:\n{text}"
    lines = _lines(rng, 12, 60)
    return "\n".join(lines), _beginning(lines)


def _beginning(lines):
    return "The output is long. It begins with:\n" + "\n".join(lines[:3])


def tool_result(rng, library, tool, arguments):
    """What another tool answered, and what to say of it."""
    kind = rng.random()
    if kind < 0.1:
        full, text = _error(rng)
        return full, f"The tool failed: {text}"
    if kind < 0.16:
        return rng.choice(_NOTHING), "The tool answered nothing."
    if kind < 0.45:
        text = words.sentence(rng) if rng.random() < 0.5 else rng.choice(("ok", "OK", "done", "success", "Done.", "true", f"created {words.random_id(rng)}", f"{words.phrase(rng)} was {words.past(rng.choice(words.VERBS))}", _short(rng)))
        return text, f"The tool answered: {text}"
    if kind < 0.8:
        result = {}
        for _ in range(rng.randrange(1, 5)):
            key = rng.choice(words.NOUNS) if rng.random() < 0.6 else rng.choice(("temperature", "condition", "status", "id", "price", "result", "name", "total", "time", "message", "count"))
            result[key] = rng.choice((rng.randrange(1000), round(rng.uniform(0, 100), 1), words.word(rng), words.phrase(rng, 1, 4), True, words.random_id(rng), rng.choice(("sunny", "cloudy", "rain", "ok", "done"))))
        said = ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in result.items())
        text = json.dumps(result, ensure_ascii=False, separators=rng.choice(((", ", ": "), (",", ":"))))
        return text, f"The result: {said}."
    if kind < 0.92:
        text = "\n".join(_lines(rng, 2, 6))
        return text, f"The tool answered:\n{text}"
    lines = _lines(rng, 12, 60)
    return "\n".join(lines), _beginning(lines)


# ---- noise around a request


def reminder(rng, library):
    tag = rng.choice(("system-reminder", "system-reminder", "system-reminder", "context", "reminder", "environment", "note"))
    head = rng.choice(("", "# currentDate\nToday's date is {d}.\n\n", "As you answer, you can use the following context:\n# {n}\n", "IMPORTANT: ", "The user opened the file {p} in the editor.\n", "Codebase and user instructions are shown below.\n\n"))
    head = head.replace("{d}", f"{rng.randrange(2020, 2032)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}").replace("{n}", words.identifier(rng)).replace("{p}", words.path(rng))
    body = "".join(library.prose(rng.choice((50, 100, 200, 400, 1200))))
    return f"<{tag}>\n{head}{body.rstrip()}\n</{tag}>{rng.choice((chr(10), chr(10) * 2))}"


def listing(rng, library):
    """What clients append behind a request: agents, skills, files."""
    head = rng.choice(("Available agents for the {t} tool:\n", "The following skills can be used with the {t} tool:\n\n", "Files that changed:\n", "Agents that can be launched:\n", "Skills that are there:\n\n", "Notes from {t}:\n", "These commands exist:\n", "You may also consider:\n\n")).replace("{t}", words.identifier(rng))
    items = []
    for _ in range(rng.randrange(2, 14)):
        items.append(f"- {words.name(rng)}: {words.paragraph(rng, rng.randrange(1, 4))}\n")
    return head + "".join(items) + ("\n" + words.paragraph(rng, 2) + "\n" if rng.random() < 0.5 else "\n")


def wrapped(rng, library, text, noise):
    """A user's turn: the request alone, or with what a client puts before and behind it."""
    if rng.random() >= noise:
        return text
    before = [clients.before(rng) if rng.random() < 0.25 else reminder(rng, library) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    behind = []
    if rng.random() < 0.15:
        return "".join(before) + text + clients.behind(rng, library)
    if rng.random() < 0.35:
        behind = ["\n\n" + b for b in ((reminder(rng, library).rstrip() if rng.random() < 0.4 else listing(rng, library).rstrip()),)]
    if before and rng.random() < 0.1:
        before[-1] = before[-1].rstrip()
    return "".join(before) + text + "".join(behind)


# ---- conversations


def calls(*pairs):
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in pairs]}


def user(content):
    return {"role": "user", "content": content}


def said(text):
    return {"role": "assistant", "content": text}


def result(text):
    return {"role": "tool", "content": text}


# Requests that a tool for files would serve as well are only made where there is none.
_FOR_FILES = ("cat", "head", "tail", "find", "grep", "rm", "touch", "sed", "curl", "sleep", "ls -la <dir>", "sha", "file")
_SHELL_ONLY = [intent for intent in shell.INTENTS if not intent[0].startswith(_FOR_FILES)]


class Scene:
    """A conversation with tools, built turn by turn."""

    def __init__(self, rng, library, box, noise):
        self.rng, self.library, self.box, self.noise = rng, library, box, noise
        self.messages = []
        self.runner = next((t for t in box if t.kind == "runner"), None)
        self.searching = any(t.kind == "known" and ("search" in t.name.lower() or "weather" in t.name.lower()) for t in box)
        self.last = None

    def ask(self, tool):
        if tool.kind != "runner":
            return tool.ask(self.rng)
        key = tool.schema["required"][0]
        if self.rng.random() < 0.3:
            others = any(t.kind == "known" for t in self.box)
            text, command = shell.request(self.rng, _SHELL_ONLY if others else shell.INTENTS)
        else:
            text, command = tools.ask_to_run(self.rng, tool.name)
        return text, {key: command}

    def outcome(self, tool, arguments):
        if tool.kind == "runner":
            return run_result(self.rng, self.library, next(iter(arguments.values())))
        return tool_result(self.rng, self.library, tool, arguments)

    def turn(self, text):
        self.messages.append(user(wrapped(self.rng, self.library, text, self.noise)))
        if self.noise and self.rng.random() < 0.2 * self.noise:
            content = [listing(self.rng, self.library) for _ in range(self.rng.choice((1, 1, 2)))]
            self.messages.append({"role": "system", "content": content})

    def step(self):
        """One request with all that follows from it."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.15:
            return self.chat()
        tool = self.runner if self.runner and rng.random() < 0.35 else rng.choice(self.box)
        if kind < 0.2 and self.last:
            return self.again()
        if kind < 0.26:
            return self.two(tool)
        text, arguments = self.ask(tool)
        if kind < 0.29 and len(self.box) > 1:
            return self.together(tool, text, arguments)
        self.turn(text)
        self.messages.append(calls((tool.name, arguments)))
        if rng.random() < 0.72:
            self.answer(tool, arguments)

    def answer(self, tool, arguments):
        full, words_ = self.outcome(tool, arguments)
        self.messages += [result(full), said(words_)]
        self.last = (tool, arguments, words_)

    def open_call(self):
        """Whether the last call still waits for its result."""
        return bool(self.messages) and bool(self.messages[-1].get("tool_calls"))

    def chat(self):
        rng = self.rng
        if self.runner and rng.random() < 0.3:
            text, answer = clients.exchange(rng, with_tools=True)
        elif rng.random() < 0.75 or self.searching:
            text, answer = talk.topic(rng)
        elif rng.random() < 0.8:
            text, answer = talk.unknown(rng, talk.UNSERVED)
        else:
            text, answer = talk.repeat(rng)
        self.turn(text)
        self.messages.append(said(answer))

    def again(self):
        """Questions that go back to what was."""
        rng = self.rng
        tool, arguments, answer = self.last
        if rng.random() < 0.6:
            text = say(rng, "[what did it [print|say|answer|return|give][ again|]|what was the [output|result|answer][ again|]|[repeat|say again] [the output|the result|what it said|that result]|tell me [the result|the output|what came out] again|and what did it say][?|.|]")
            self.turn(opened(rng, text))
            self.messages.append(said(answer))
        else:
            text = say(rng, "[do it again|run it again|once more|again|repeat the call|same again|try it again|do that again|one more time|run that again|call it again][.|, please|!|]")
            self.turn(opened(rng, text))
            self.messages.append(calls((tool.name, arguments)))
            self.answer(tool, arguments)

    def two(self, first):
        """Two things, one after the other."""
        rng = self.rng
        second = self.runner if first is self.runner and rng.random() < 0.7 else rng.choice(self.box)
        (one, first_arguments), (two, second_arguments) = self.ask(first), self.ask(second)
        lower = two[0].lower() + two[1:]
        text = rng.choice(("{a}\nThen: {b}", "First: {a}\nSecond: {b}", "1. {a}\n2. {b}", "{a}\nAfter that: {b}", "Do two things. {a} Then {l}", "{a}\n\nWhen that is done: {b}")).format(a=one, b=two, l=lower)
        self.turn(text)
        self.messages.append(calls((first.name, first_arguments)))
        full, said_first = self.outcome(first, first_arguments)
        self.messages += [result(full), calls((second.name, second_arguments))]
        full, said_second = self.outcome(second, second_arguments)
        self.messages += [result(full), said(f"{said_first}\n{said_second}")]
        self.last = None

    def together(self, tool, text, arguments):
        """Two calls in one turn."""
        rng = self.rng
        second = tool if rng.random() < 0.7 else rng.choice(self.box)
        other, other_arguments = self.ask(second)
        self.turn(f"{text}{rng.choice((chr(10) + 'And at the same time: ', chr(10) + 'Also, in parallel: ', chr(10) + 'At once with that: '))}{other}")
        self.messages.append(calls((tool.name, arguments), (second.name, other_arguments)))
        (one, first), (two, last) = self.outcome(tool, arguments), self.outcome(second, other_arguments)
        self.messages += [result(one), result(two), said(f"{first}\n{last}")]
        self.last = None


def system_text(rng, library, characters):
    """A system text of about this length, as a list of stretches, or none."""
    if characters == 0:
        return rng.choice(SYSTEMS) if rng.random() < 0.5 else None
    if rng.random() < 0.5:
        return clients.system(rng, library, characters)
    head = [rng.choice(SYSTEMS) + rng.choice(("\n", "\n\n"))] if rng.random() < 0.7 else []
    return head + library.prose(characters)


def with_tools(rng, library, count, steps, noise, characters, runner_share=0.45):
    """A conversation with `count` tools; returns messages and tools."""
    box = toolbox(rng, library, count, rng.random() < runner_share)
    scene = Scene(rng, library, box, noise)
    for _ in range(steps):
        if scene.open_call():
            break
        scene.step()
    system = system_text(rng, library, characters)
    messages = ([{"role": "system", "content": system}] if system else []) + scene.messages
    return messages, box


def client_session(rng, library, steps):
    """The shape of a coding client's session: many tools, one of them very long, system text, reminders, skills."""
    count = rng.randrange(14, 34)
    box = toolbox(rng, library, count, True)
    scene = Scene(rng, library, box, 1.0)
    for number in range(steps):
        if scene.open_call():
            break
        if number == 0 or rng.random() < 0.5:
            tool = scene.runner
            kind = rng.random()
            if kind < 0.12:
                text, answer = clients.exchange(rng, with_tools=True)
            else:
                text, command = shell.request(rng, _SHELL_ONLY) if kind < 0.35 else tools.ask_to_run(rng, tool.name)
                arguments = {tool.schema["required"][0]: command}
            if number == 0:
                first = reminder(rng, library)
                scene.messages.append(user(first + text if rng.random() < 0.85 else text))
                if rng.random() < 0.75:
                    content = [listing(rng, library) for _ in range(rng.choice((1, 2, 3)))]
                    if rng.random() < 0.7:
                        scene.messages.append({"role": "system", "content": content})
                    else:
                        scene.messages[-1]["content"] += "\n\n" + "".join(content).rstrip()
            else:
                scene.turn(text)
            if kind < 0.12:
                scene.messages.append(said(answer))
                continue
            scene.messages.append(calls((tool.name, arguments)))
            if rng.random() < 0.7:
                scene.answer(tool, arguments)
        else:
            scene.step()
    system = system_text(rng, library, rng.choice((500, 2000, 5000, 7000, 9000)))
    messages = ([{"role": "system", "content": system}] if system else []) + scene.messages
    return messages, box


def client_chat(rng, library, steps, characters):
    """A coding client without tools: its rules, examples and files, and requests that it repeats its rules behind."""
    messages = [{"role": "system", "content": clients.system(rng, library, characters)}] if rng.random() < 0.93 else []
    if rng.random() < 0.5:
        messages += clients.shots(rng, library)
    ahead, behind = rng.random() < 0.3, rng.random() < 0.4
    for _ in range(steps):
        text, answer = clients.exchange(rng)
        text = (clients.before(rng) if ahead else "") + text + (clients.behind(rng, library) if behind else "")
        messages += [user(text), said(answer)]
        if rng.random() < 0.1:
            messages.insert(-1, {"role": "system", "content": clients.behind(rng, library).strip()})
    return messages, []


def without_tools(rng, library, steps, characters=0):
    """Small talk, commands as JSON, names; several turns."""
    messages = []
    system = system_text(rng, library, characters)
    if system:
        messages.append({"role": "system", "content": system})
    while steps > 0:
        kind = rng.random()
        if kind < 0.5:
            text, command = shell.request(rng)
            pairs = [(text, shell.answer(command))]
        elif kind < 0.96 or len(messages) > 2:
            pairs = [talk.plain(rng)]
        else:
            pairs = talk.naming(rng)
        for text, answer in pairs:
            messages += [user(text), said(answer)]
            steps -= 1
    return messages, []


def copying(rng, library, characters):
    """Prose whose parts come again, word for word, in other places and between other marks: pieces of text that are read or learned."""
    from .rendering import LEARNED, READ

    spans, out, total = [], [("<|im_start|>user\n", READ)], 0
    while total < characters:
        kind = rng.random()
        if kind < 0.5 or not spans:
            span = rng.choice((
                " ".join(words.compound(rng) for _ in range(rng.randrange(1, 6))), " ".join(words.unseen(rng) for _ in range(rng.randrange(1, 6))), words.unseen(rng), words.unseen(rng).capitalize(), words.unseen(rng).upper(), words.file_name(rng), f"{words.compound(rng)}_{words.compound(rng)}",
                words.phrase(rng, 2, 10), tools.command(rng), words.path(rng), words.random_id(rng), words.sentence(rng), words.pseudo_word(rng), f"{words.pseudo_word(rng)} {words.pseudo_word(rng)} {words.random_id(rng)}",
            ))
            key = words.word(rng)
            spans.append((key, span))
            out.append((rng.choice((f"{key}: {span}\n", f"{key}: {span}\n", f'{key} = "{span}"\n', f"{key}\n{span}\n", f'{{"{key}": "{span}"}}\n', f"- `{span}` ({key})\n", f"{span} is {key}\n")), READ))
        elif kind < 0.6:
            out.append((rng.choice(library.blocks), READ))
        else:
            key, span = rng.choice(spans[-40:])
            lead = rng.choice(("Again ", "As was said of ", "Repeat ", "Recall ", ""))
            marks = rng.choice(((" ", ""), (" ", ""), (' "', '"'), (" `", "`"), (" '", "'"), (" (", ")"), ("\n", "")))
            sign = "" if marks[0] == "\n" else rng.choice((" =", " =", ":"))
            out.append((f"{lead}{key}{sign}", READ))
            out.append((f"{marks[0]}{span}{marks[1]}\n", LEARNED))
        total += len(out[-1][0]) + len(out[-2][0])
    out.append(("<|im_end|>\n", READ))
    return out
