"""Trains the tokenizer: byte-level BPE on the generated text.

Pieces never hold both letters and marks, so that a word has the same pieces wherever it stands, between quotes or in a path:
what is to be copied looks alike at both ends. Digits stand alone for the same reason. The file that is written cuts text as
the pre-tokenizer that GGUF calls "qwen2" does, which gives the same pieces.
"""

import argparse
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from text import rendering, scenes, words

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
CONTROL = 3
VOCABULARY = 6144
_LEARNING = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
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
        else:
            messages, box = scenes.client_session(rng, library, 2)
        text = "".join(t for t, _ in rendering.pieces(messages, [t.json() for t in box]))
        for special in SPECIAL:
            text = text.replace(special, "\n")
        total += len(text)
        yield text
        library.renew()


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
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=16, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(1, args.characters), trainer)
    tokenizer.pre_tokenizer = _cut(_SERVING)
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(args.out))


if __name__ == "__main__":
    main()
