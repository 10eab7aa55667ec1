"""Small tokenizers of the kinds that encoders have: WordPiece (BERT), Unigram (XLM-RoBERTa) and byte-level BPE (ModernBERT, Qwen3).

Each puts its own tokens around a text and between the two of a pair, as the published ones do.
"""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from byte_tokenizer import Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDPIECE_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNIGRAM_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def mpnet():
    """The tokenizer of MPNet: BERT's, with padding at 1, a token that has no position there."""
    return wordpiece(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"])


def wordpiece(specials=WORDPIECE_SPECIALS):
    """The tokenizer of BERT, uncased."""
    tokens = [*specials, *LETTERS, *"0123456789.,?!-'", *("##" + letter for letter in LETTERS)]
    tokens += ["the", "a1", "qu", "##ick", "##ing", "##er", "fox", "lazy", "##zy", "search", "what", "is", "##ed"]
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(specials)
    names = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    return tokenizer, names


def unigram():
    """The tokenizer of XLM-RoBERTa."""
    pieces = [(token, 0.0) for token in UNIGRAM_SPECIALS]
    pieces += [("▁", -3.0), *((letter, -4.0 - 0.05 * i) for i, letter in enumerate(LETTERS + "0123456789.,?!-'"))]
    pieces += [("▁" + letter, -4.5 - 0.05 * i) for i, letter in enumerate(LETTERS)]
    words = ["▁the", "▁is", "▁what", "qui", "ck", "▁fox", "ing", "er", "▁search", "azy", "ed"]
    pieces += [(word, -5.0 - 0.1 * i) for i, word in enumerate(words)]
    pieces.append(("<mask>", 0.0))
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens([*UNIGRAM_SPECIALS, "<mask>"])
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
    return tokenizer, names


def byte_level(folder, size, single, pair):
    """Byte-level BPE, with these templates of its specials."""
    vocabulary = Vocabulary.of_size(size)
    vocabulary.write(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = {"bos": vocabulary.tokens[0], "eos": vocabulary.tokens[1], "eot": vocabulary.tokens[2]}
    fill = {name: token for name, token in names.items()}
    used = [(token, id) for id, token in enumerate(vocabulary.tokens[:3])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single.format(**fill), pair=pair.format(**fill), special_tokens=used
    )
    return tokenizer, {"bos": names["bos"], "eos": names["eot"], "pad": names["eos"], "cls": names["bos"], "sep": names["eot"]}


def write(folder, tokenizer, names, longest):
    """tokenizer.json and tokenizer_config.json."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n")
    settings = {f"{name}_token": token for name, token in names.items()}
    settings |= {"model_max_length": longest, "tokenizer_class": "PreTrainedTokenizerFast"}
    if names.get("cls") == "[CLS]":
        # BERT's own class gives the second text of a pair another type; the general class has to be told.
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
