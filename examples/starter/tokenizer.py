"""Trains the tokenizer: byte-level BPE on the generated text.

Pieces never hold both letters and marks, so that a word has the same pieces wherever it stands, between quotes, in a path or behind a
space: what is to be copied looks alike at both ends. Digits stand alone for the same reason. Only whole words that are frequent have a
second piece with the space before them; these merges come last, so that no other word is cut in another way by its space. The file that
is written cuts text as the pre-tokenizer that GGUF calls "qwen2" does, which gives the same pieces.
"""

import argparse
import json
import random
import re
from collections import Counter
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from held_out import WORDS, phrasings
from text import phrasing, rendering, scenes, words

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
CONTROL = 3
VOCABULARY = 6144
SPACED = 2200
_LEARNING = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SERVING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cut(pattern):
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def corpus(seed, characters):
    """Conversations as they are rendered."""
    rng = random.Random(seed)
    library = scenes.Library(rng)
    total = 0
    while total < characters:
        kind = rng.random()
        if kind < 0.3:
            yield "\n".join(words.paragraph(rng) for _ in range(20))
            total += 2000
            continue
        if kind < 0.5:
            messages, box = scenes.without_tools(rng, library, 4)
        elif kind < 0.8:
            messages, box = scenes.with_tools(rng, library, rng.randrange(2, 12), 3, 0.2, 0)
        elif kind < 0.9:
            messages, box = scenes.client_session(rng, library, 2)
        else:
            messages, box = scenes.client_chat(rng, library, 2, 3000)
        text = "".join(t for t, _ in rendering.pieces(messages, [t.json() for t in box]))
        for special in SPECIAL:
            text = text.replace(special, "\n")
        total += len(text)
        yield text
        library.renew()


def counted(texts, words_behind_spaces):
    for text in texts:
        words_behind_spaces.update(re.findall(r" ([A-Za-z]+)(?![A-Za-z])", text))
        yield text


def spaced(path, words_behind_spaces):
    """Gives the most frequent words that are one piece a second one with a space."""
    document = json.loads(path.read_text())
    vocabulary, merges = document["model"]["vocab"], document["model"]["merges"]
    as_lists = isinstance(merges[0], list)
    for word, _ in words_behind_spaces.most_common():
        if len(vocabulary) == VOCABULARY:
            break
        if word in vocabulary:
            vocabulary[f"Ġ{word}"] = len(vocabulary)
            merges.append(["Ġ", word] if as_lists else f"Ġ {word}")
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "tokenizer.json")
    parser.add_argument("--characters", type=int, default=16_000_000)
    args = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _cut(_LEARNING)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - SPACED, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=16, show_progress=False
    )
    phrasing.hold_out(phrasings())
    words.hold_out(WORDS)
    words_behind_spaces = Counter()
    tokenizer.train_from_iterator(counted(corpus(1, args.characters), words_behind_spaces), trainer)
    tokenizer.pre_tokenizer = _cut(_SERVING)
    tokenizer.save(str(args.out))
    spaced(args.out, words_behind_spaces)
    assert Tokenizer.from_file(str(args.out)).get_vocab_size() == VOCABULARY


if __name__ == "__main__":
    main()
