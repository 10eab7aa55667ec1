"""Rows of tokens for training, made while the model trains, by as many processes as there are cores."""

import multiprocessing as mp
import queue
import random
from pathlib import Path

import numpy as np

from held_out import WORDS, phrasings
from text import phrasing, rendering, scenes, words

ROW_TOKENS = 131_072
# The longest document of each kind of row, and how many documents a row may hold.
KINDS = {"short": (1024, 2048), "middle": (8192, 512), "long": (32_768, 128)}
END = 0


class Source:
    """Documents of one process, as (ids, learned)."""

    def __init__(self, seed, tokenizer_path, library=1200):
        from tokenizers import Tokenizer

        self.rng = random.Random(seed)
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        phrasing.hold_out(phrasings())
        words.hold_out(WORDS)
        pieces = (token.removeprefix("Ġ") for token in self.tokenizer.get_vocab())
        words.use_pieces(sorted({piece for piece in pieces if piece.isascii() and piece.isalpha()}))
        self.library = scenes.Library(self.rng, library, library)
        self.known = {}

    def encode(self, text):
        if len(text) < 24:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        ids = self.known.get(text)
        if ids is None:
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            if len(self.known) > 20_000:
                self.known.clear()
            self.known[text] = ids
        return ids

    def encoded(self, pieces):
        ids, learned = [], []
        for text, weight in pieces:
            new = self.encode(text)
            ids.extend(new)
            learned.extend([weight] * len(new))
        return ids, learned

    def conversation(self, messages, box):
        return self.encoded(rendering.pieces(messages, [t.json() for t in box]))

    def document(self, kind, progress):
        rng, library, draw = self.rng, self.library, self.rng.random()
        if rng.random() < 0.2:
            library.renew(4)
        if kind == "short":
            if draw < (0.5 if progress < 0.08 else 0.08):
                return self.encoded(scenes.copying(rng, library, rng.choice((1000, 2000, 3000))))
            if draw < 0.38:
                return self.conversation(*scenes.without_tools(rng, library, rng.choice((1, 1, 1, 2, 3, 4))))
            if draw < 0.48:
                return self.conversation(*scenes.client_chat(rng, library, rng.choice((1, 1, 2)), rng.choice((100, 400, 1200))))
            return self.conversation(*scenes.with_tools(rng, library, rng.choice((1, 2, 3, 4, 6, 8, 10)), rng.choice((1, 1, 2, 3)), 0.1, 0, 0.3))
        if kind == "middle":
            if draw < (0.14 if progress < 0.2 else 0.03):
                return self.encoded(scenes.copying(rng, library, rng.choice((6000, 12000))))
            if draw < 0.14:
                return self.conversation(*scenes.client_chat(rng, library, rng.choice((1, 1, 2, 4)), rng.choice((1500, 4000, 8000, 14000))))
            if draw < 0.48:
                return self.conversation(*scenes.client_session(rng, library, rng.choice((1, 1, 2, 3, 4))))
            if draw < 0.9:
                noise = rng.choice((0, 0.3, 1.0))
                return self.conversation(*scenes.with_tools(rng, library, rng.randrange(2, 31), rng.choice((1, 2, 3, 5, 7)), noise, rng.choice((0, 0, 500, 2000, 6000))))
            return self.conversation(*scenes.without_tools(rng, library, rng.choice((1, 2, 8, 14)), rng.choice((0, 0, 1000, 8000))))
        if draw < 0.55:
            messages, box = scenes.client_session(rng, library, rng.choice((1, 2, 4, 8)))
            return self.conversation(self.lengthened(messages), box)
        if draw < 0.85:
            messages, box = scenes.with_tools(rng, library, rng.randrange(20, 160), rng.choice((3, 6, 12)), 0.5, rng.choice((0, 4000, 20000)), 0.7)
            return self.conversation(messages, box)
        if draw < 0.95:
            return self.conversation(*scenes.without_tools(rng, library, rng.choice((4, 12)), rng.choice((20000, 60000))))
        return self.encoded(scenes.copying(rng, library, 40000))

    def lengthened(self, messages):
        """The session with a very long text in its system turn, or in a turn before the request."""
        prose = self.library.prose(self.rng.choice((15_000, 30_000, 60_000, 90_000)))
        if self.rng.random() < 0.5:
            return [{"role": "system", "content": prose}, *[m for m in messages if m is not messages[0] or m["role"] != "system"]]
        at = next(i for i, m in enumerate(messages) if m["role"] == "user")
        earlier = [{"role": "user", "content": ["".join(prose).rstrip()]}, {"role": "assistant", "content": "Good. What else can I do for you?", "given": True}]
        return messages[:at] + earlier + messages[at:]

    def row(self, kind, progress):
        """One row: tokens, places and targets that are learned, and where documents start."""
        longest, documents = KINDS[kind]
        tokens = np.full(ROW_TOKENS, END, np.uint16)
        learned = np.zeros(ROW_TOKENS, bool)
        starts, at, misses = [0], 0, 0
        while at < ROW_TOKENS and len(starts) < documents and misses < 4:
            room = ROW_TOKENS - at
            ids, weights = self.document(kind if room > longest else "middle" if room > 2 * KINDS["middle"][0] else "short", progress)
            if len(ids) > min(longest, room):
                misses += len(ids) <= longest
                continue
            tokens[at : at + len(ids)] = ids
            learned[at : at + len(ids)] = weights
            at += len(ids)
            starts.append(at)
        # What is left over is cut into pieces that no row kind finds too long.
        while at < ROW_TOKENS:
            at = min(at + longest, ROW_TOKENS)
            starts.append(at)
        starts += [ROW_TOKENS] * (documents + 32 - len(starts))
        return kind, tokens, np.flatnonzero(learned).astype(np.int32), np.array(starts, np.int32)


def kind_of(progress, draw):
    """Short rows first, long ones last."""
    if progress < 0.12:
        shares = (0.85, 0.15)
    elif progress < 0.45:
        shares = (0.3, 0.7)
    else:
        shares = (0.44, 0.46)
    return "short" if draw < shares[0] else "middle" if draw < sum(shares) else "long"


def _work(seed, tokenizer_path, progress, rows):
    source = Source(seed, tokenizer_path)
    while True:
        rows.put(source.row(kind_of(progress.value, source.rng.random()), progress.value))


class Rows:
    """Rows without end. When the makers are slower than the model, an earlier row comes again."""

    def __init__(self, seed, workers, tokenizer_path=None):
        context = mp.get_context("spawn")
        self.progress = context.Value("d", 0.0)
        self.rows = context.Queue(maxsize=3 * workers)
        tokenizer_path = tokenizer_path or Path(__file__).parent / "tokenizer.json"
        self.workers = [context.Process(target=_work, args=(seed * 1000 + i, tokenizer_path, self.progress, self.rows), daemon=True) for i in range(workers)]
        for worker in self.workers:
            worker.start()
        self.kept, self.made, self.again = [], 0, 0
        self.rng = random.Random(seed)

    def next(self):
        try:
            row = self.rows.get(timeout=None if len(self.kept) < 8 else 0.02)
        except queue.Empty:
            self.again += 1
            return self.rng.choice(self.kept)
        self.made += 1
        self.kept.append(row)
        if len(self.kept) > 250:
            self.kept.pop(self.rng.randrange(100))
        return row

    def close(self):
        for worker in self.workers:
            worker.terminate()
