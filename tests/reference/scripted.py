"""Writes tests/fixtures/scripted/tokenizer.json: the tokenizer of the model that tests/plugins/scripted.rs plays.

A byte-level BPE with Qwen's pattern, small but real: words are cut into several tokens, markers cross tokens, and a prompt
of a hundred kilobytes has some thirty thousand tokens. It is trained on this tree's own prose and code, so that it is free
to distribute. Its added tokens are of both kinds that checkpoints have: specials, which have no text, and plain ones.

    python tests/reference/scripted.py       (tokenizers)
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent.parent
VOCABULARY = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SOURCES = ["README.md", "docs/adr/*.md", "plugin-api/src/*.rs", "sdk/src/*.rs", "tests/reference/README.md"]
JSON = '{"type": "object", "properties": {"name": {"type": "string", "description": "The command"}}, "required": ["name"]}\n'


def corpus():
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text()
    for _ in range(50):
        yield JSON


def main():
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = VOCABULARY - len(SPECIAL) - len(PLAIN)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in PLAIN])
    assert tokenizer.get_vocab_size() == VOCABULARY
    folder = ROOT / "tests" / "fixtures" / "scripted"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n")


if __name__ == "__main__":
    main()
