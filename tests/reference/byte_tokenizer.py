"""A byte-level tokenizer of any size, the same one as tokenizer.json and as GGUF metadata.

A fixture is a complete model: a host must be able to serve it, so each vocabulary has Llama 3's pre-tokenizer, three
specials, three merges and as many of the 256 bytes as fit (ASCII text first). Bytes that a small vocabulary lacks are
dropped when text is encoded. What the vocabulary has over is reserved specials.
"""

import json
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, EOT = 0, 1, 2
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
_SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
_MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he")]
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Vocabulary:
    """Every token by id, and which of them are special."""

    tokens: list
    special: list

    @staticmethod
    def of_size(size):
        merged = ["".join(pair) for pair in _MERGES]
        letters = _byte_letters()[: size - len(_SPECIALS) - len(merged)]
        tokens = _SPECIALS + letters + merged
        reserved = [f"<|reserved_special_token_{i}|>" for i in range(size - len(tokens))]
        special = [True] * len(_SPECIALS) + [False] * (len(letters) + len(merged)) + [True] * len(reserved)
        return Vocabulary(tokens + reserved, special)

    def merges(self):
        return [" ".join(pair) for pair in _MERGES]

    def write(self, folder):
        """tokenizer.json and tokenizer_config.json as a published checkpoint has them."""
        plain = {token: id for id, (token, special) in enumerate(zip(self.tokens, self.special)) if not special}
        specials = [token for token, special in zip(self.tokens, self.special) if special]
        vocabulary = plain | {token: self.tokens.index(token) for token in specials}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_MERGES, ignore_merges=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_LLAMA3_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_SPECIALS[BOS]} $A",
            pair=f"{_SPECIALS[BOS]} $A {_SPECIALS[BOS]} $B",
            special_tokens=[(_SPECIALS[BOS], BOS)],
        )
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
        assert tokenizer.get_vocab_size() == len(self.tokens)
        assert tokenizer.encode("the").ids[0] == BOS
        (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n")
        settings = {
            "add_bos_token": True,
            "bos_token": _SPECIALS[BOS],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": _SPECIALS[EOT],
            "model_max_length": 256,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _byte_letters():
    """The letter that byte-level BPE writes for each byte, ASCII text first."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters, spare = {}, 256
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(spare)
            spare += 1
    first = [*b"\t\n\r", *range(32, 127)]
    return [letters[byte] for byte in first + [byte for byte in range(256) if byte not in first]]
