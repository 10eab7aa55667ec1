"""A small language for ways to say a thing.

`[a|b|]` is a choice (the last one empty), `{group}` one of a group's ways, `<slot>` a place for a value. A few lines make
thousands of sentences. Held-out phrasings for the evaluation are written by hand in held_out.py and never made here.
"""

import random
import re
from functools import lru_cache, wraps

_HELD_OUT = set()
_KEEP_LETTERS = str.maketrans({chr(i): " " for i in range(128) if not chr(i).isalnum()})


def hold_out(phrasings):
    """Never says one of these: they are for the examination."""
    _HELD_OUT.update(phrasings)


def examined(make):
    """A maker of requests (text first) that draws again where the examination has the same words."""

    @wraps(make)
    def draw(*args):
        while True:
            made = make(*args)
            if " ".join(made[0].lower().translate(_KEEP_LETTERS).split()) not in _HELD_OUT:
                return made

    return draw

GROUPS = {
    "please": "[please |can you |could you |could you please |would you |I want you to |I need you to |I'd like you to |go ahead and |kindly |hey, |hi, please |can you please |you should |now |next, |let's |I'd like to |I want to |I need to |help me |help me to |we need to |I would like you to |let me |I have to |we should |we have to |it's time to |try to |I wish to |make sure to |do me a favor and |you must |I wonder if you can |would you be able to |is it possible to |are you able to |would it be possible to |I would love to |my task is to |we want to |||||||||||||||]",
    "be": "[should be|must be|needs to be|has to be|ought to be|shall be|is to be|can be|should get|needs to get|must get]",
    "want": "[I want|I'd like|I would like|I need|please have|please get|get|have|we want|I'd love|we need|I want to have|I'd like to have|I need to have|I wish]",
    "may": "[may|can|could|might]",
    "deleting": "[deleting|removing|erasing|wiping|touching]",
    "deleted": "[deleted|removed|erased|wiped|trashed|thrown away|gone|dropped|discarded|cleared out|cleaned up]",
    "doc": "[file|document|text file]",
    "thanks": "[| please| for me| now| right now| thanks|, please|, thanks| for me please| real quick|||||||]",
    "list": "[list up|tell me|name|name me|present|bring up|an overview of|overview of|a list of|let me look at|I want to look at|list|show|show me|display|print|give me|view|see|enumerate|get|output|let me see|I want to see]",
    "show": "[let me look at|let me have a look at|I want to look at|I would like to look at|I want to read|read me|print out|write out|show|show me|display|print|give me|view|see|get|output|let me see|tell me|report]",
    "what": "[what is|what's|tell me|show me|show|give me|print|display|I want to know|get|find out|check]",
    "all": "[all|all the|all of the|every|each of the|the|]",
    "files": "[files|the files|file names|documents|items|entries|contents|the contents|everything]",
    "here": "[in the current directory|in this directory|in the current folder|in this folder|here|in here|of the current directory|of this folder|in the directory I am in|in the working directory|in my current directory|in cwd|in the present directory|inside this folder|from the current directory]",
    "maybehere": "[| in the current directory| in this directory| in the current folder| in this folder| here||]",
    "below": "[| in the current directory| in this directory| in this folder| here| under this directory| below the current directory| recursively| in this tree| anywhere below here| in all subfolders| including subdirectories||||]",
    "dir": "[directory|folder|dir]",
    "thedir": "[|directory |folder |the directory |the folder |dir |the dir |a directory called |the folder named ]",
    "thefile": "[|file |the file |file named |the file called |the document ||]",
    "find": "[find all|search|look up|hunt for|discover|tell me|I am looking for|I'm looking for|do we have|do I have|are there|find|search for|look for|locate|list|show|show me|which are|get|give me|where are|find me|display]",
    "delete": "[take away|take out|clear|clean up|dispose of|scrap|bin|eliminate|delete|remove|erase|get rid of|trash|wipe|throw away|drop|rm|discard|clear out]",
    "larger": "[beyond|at a size over|taking more than|that take up more than|that go over|that go beyond|bigger in size than|that weigh more than|larger than|bigger than|greater than|over|above|more than|exceeding|that are larger than|that are bigger than|which are larger than|with more than|with a size over|with a size above|of more than|that exceed|heavier than|whose size is over|larger in size than|that take more than]",
    "smaller": "[smaller than|less than|under|below|that are smaller than|which are smaller than|with less than|with a size under|with a size below|of less than|whose size is under|not as large as|tinier than|lighter than]",
    "create": "[create|make|add|set up|generate|produce|start|build]",
    "count": "[tell me the number of|I need the number of|I want to know how many|the count of|total number of|give me a count of|find out how many|count|how many|tell me how many|give me the number of|count up|what is the number of|number of|show the number of|get the number of|tally]",
    "run": "[run|execute|start|launch|invoke|perform]",
    "search": "[hunt|go|look around|search|grep|look|scan|check]",
    "word": "[the word |the text |the string |the pattern |||occurrences of |mentions of |lines with |lines containing |lines that contain |matches of ]",
    "command": "[command|shell command|bash command|terminal command|cmd|command line]",
    "howto": "[how do I|how can I|how to|how would I|how do you|how does one|how could I|how would I go about to|how should I|what do I have to do to|what must I do to|what is the way to|is there a way to|is it possible to|can I|could I|I want to|I'd like to|I would like to|I need to|I am trying to|help me|help me to|show me how to|tell me how to|explain how to|can you explain how to|explain to me how I can|teach me to|steps to|the steps to|what is needed to|what does it take to|where do I begin to|please tell me how to|what's the best way to|what's the command to|in which way can I|how is it possible to|how am I supposed to|do you know how to|how exactly do I|how might I]",
    "whatis": "[what is|what's|what exactly is|what's exactly|what really is|please tell me what is|could you tell me what is|tell me, what is|do you know what is|I want to know what is|I wonder what is|can you say what is|so what is|and what is|what might be|explain|explain to me|describe|define|say]",
    "how": "[how do I|how can I|how could I|how would one|what do I have to type to|what should I type to|is there a way to|is there a {command} to|what do I enter to|I want to know how to|please tell me how to|I'd like to know how to|how to|how would I|how do you|what is the command to|what's the command to|which command lets me|give me the command to|what {command} do I use to|what do I type to|show me how to|the {command} to|command to|I need a {command} to|write a {command} to|which {command} will|tell me how to|how does one]",
}

_TOKENS = re.compile(r"\[|\]|\||\{\w+\}|<\w+>|[^\[\]|{}<>]+|[<>{}]")


@lru_cache(maxsize=None)
def parse(pattern):
    """A pattern as nested tuples: ("all", parts), ("one", options), ("slot", name), or a string."""
    tokens = _TOKENS.findall(pattern)
    tree, at = _sequence(tokens, 0, top=True)
    assert at == len(tokens), f"unbalanced: {pattern}"
    return tree


def _sequence(tokens, at, top=False):
    options, parts = [], []
    while at < len(tokens):
        token = tokens[at]
        if token == "[":
            inner, at = _sequence(tokens, at + 1)
            parts.append(inner)
        elif token == "]" and not top:
            break
        elif token == "|" and not top:
            options.append(("all", tuple(parts)))
            parts = []
        elif token[0] == "{" and token[-1] == "}" and len(token) > 2:
            parts.append(("group", token[1:-1]))
        elif token[0] == "<" and token[-1] == ">" and len(token) > 2:
            parts.append(("slot", token[1:-1]))
        else:
            parts.append(token)
        at += 1
    options.append(("all", tuple(parts)))
    return (options[0] if top else ("one", tuple(options))), at


def pieces(rng, pattern, out=None):
    """One way to say the pattern: a list of strings and ("slot", name)."""
    out = [] if out is None else out
    _walk(rng, parse(pattern), out)
    return out


def _walk(rng, node, out):
    if isinstance(node, str):
        out.append(node)
        return
    kind, value = node
    if kind == "all":
        for part in value:
            _walk(rng, part, out)
    elif kind == "one":
        _walk(rng, value[int(rng.random() * len(value))], out)
    elif kind == "group":
        _walk(rng, parse(GROUPS[value]), out)
    else:
        out.append(node)


def say(rng, pattern, slots=None, roughness=0.3, stray=True):
    """One way to say the pattern, with the slots' texts in it, and sometimes as hastily as people type, with stray words in it."""
    rough = rng.random() < roughness
    strange = roughness > 0 and rng.random() < 0.3
    parts = pieces(rng, pattern)
    if strange and stray and rng.random() < 0.5:
        at = rng.choice([i for i, p in enumerate(parts) if isinstance(p, str)] or [-1])
        if at >= 0:
            parts[at] = disturbed(rng, parts[at])
    text = ""
    for part in parts:
        if isinstance(part, str):
            part = roughen(rng, part) if rough else part
            part = re.sub(r"  +", " ", part)
            text += part[1:] if part[:1] == " " and text[-1:] in ("", " ") else part
        else:
            text += slots[part[1]]
    text = text.strip()
    if strange and text:
        kind = rng.random()
        if kind < 0.3:
            text = rng.choice(_BEFORE) + text
        elif kind < 0.6 and text[-1].isalnum() and not pattern.endswith((">", ">}")):
            text += rng.choice(_BEHIND)
    return text


_BEFORE = "well, |so, |um, |actually, |okay, |now, |quick question: |hey, |listen, |by the way, |and |also, |next, |alright, |just |one more thing: |maybe |say, |oh, |right, ".split("|")
_BEHIND = " at the moment| right now| currently| today| if possible| ok?| in this project| for my work| quickly| now| this time| once again| again| as well| too| somehow| here and now| for a moment| asap| if you can| I think| or so| at once| exactly| please| would you| when you can| thanks a lot".split("|")


def disturbed(rng, text):
    """Words before, between and behind that change nothing; now and then one that replaces another."""
    from .words import ADJECTIVES, ADVERBS, COMMON, NOUNS

    spaces = [i for i, letter in enumerate(text) if letter == " "]
    kind = rng.random()
    if kind < 0.45 or len(spaces) < 3:
        return text
    stray = rng.choice(rng.choice((COMMON, COMMON, ADVERBS, ADJECTIVES, NOUNS)))
    at = rng.choice(spaces)
    if kind < 0.75:
        return text[:at] + " " + stray + text[at:]
    behind = text[at + 1 :].partition(" ")
    return text[:at] + " " + stray + (" " + behind[2] if behind[1] else "")


_DROPPED = {"the", "a", "an", "all", "me", "please", "of", "that", "are", "is"}


def roughen(rng, text):
    """Drops small words and swaps letters now and then."""
    kind = rng.random()
    if kind < 0.35:
        return " ".join(w for w in text.split(" ") if w not in _DROPPED or rng.random() < 0.5)
    if kind < 0.55 and len(text) > 6:
        letters = [i for i in range(1, len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
        if letters:
            i = rng.choice(letters)
            swap = rng.random()
            if swap < 0.5:
                return text[:i] + text[i + 1] + text[i] + text[i + 2:]
            return text[:i] + text[i + 1:]
    if kind < 0.75:
        return text.lower()
    return text


def opened(rng, text):
    """The first letter large or not, an end mark or not."""
    if text and text[0].isalpha() and rng.random() < 0.6:
        text = text[0].upper() + text[1:]
    return text


def ended(rng, text, mark=None):
    if text and text[-1].isalnum() and rng.random() < 0.35:
        return text + (mark or rng.choice((".", ".", ".", "!")))
    return text


def shuffled(rng, items):
    items = list(items)
    rng.shuffle(items)
    return items


if __name__ == "__main__":
    source = random.Random(1)
    for _ in range(10):
        print(say(source, "{please}{find} files {larger} <size>{below}{thanks}", {"size": "10 MB"}))
