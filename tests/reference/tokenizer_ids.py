"""Writes tests/fixtures/tokenizers: small vocabularies as GGUF metadata, and the ids that the reference gives.

A GGUF file holds the vocabulary and a name ("llama-bpe", "qwen2"), not the tokenizer. What the name stands for is
knowledge of the reader, so it is checked here against code that has it from elsewhere: the model's own class in
transformers, transformers' converters for tiktoken and tekken files, tiktoken, and the sentencepiece library. Nothing in
this file comes from the SDK's table of patterns. Where two references exist, they must agree before anything is written.

    python tests/reference/tokenizer_ids.py       (transformers 5, tokenizers, tiktoken, sentencepiece, gguf)

The vocabularies are trained here, on text that is made here, so that the fixtures are small and free to distribute.
"""

import base64
import io
import json
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import sentencepiece
import tiktoken
import tiktoken_ext.openai_public as openai_public
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import LlamaConverter, TikTokenConverter, bytes_to_unicode, generate_merges
from transformers.integrations.mistral.tokenizer import MistralConverter
from transformers.models.codegen.tokenization_codegen import CodeGenTokenizer
from transformers.models.cohere.tokenization_cohere import CohereTokenizer
from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer
from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"
VOCABULARY = 700
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# `{bos}`, `{eos}`, `{turn}` and `{tool}` are replaced by what each kind calls them.
TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces, three   spaces, seven       spaces",
    "    four spaces in front\n        and eight",
    "\ttab\t\ttabs \t mixed \t\t end",
    "line\nline\n\nparagraph\n\n\n\nfour\r\nwindows\r\n\r\nend\n",
    "\n\n \n  \n\t\n",
    "space before newline \n  then indent",
    "It's what they're saying: I'm sure we've won, he'll go, she'd stay, don't",
    "IT'S WHAT THEY'RE SAYING: I'M SURE WE'VE WON, HE'LL GO, SHE'D STAY, DON'T",
    "It'S wE'Re 'tis 'TWAS rock'n'roll ''s '' ' 's",
    "1 12 123 1234 12345 123456 1234567890 3.14159 1,000,000 0x1F 1e-9 v2.0.1",
    "２０２６年 ١٢٣٤ ½ ² Ⅻ ①②③ x²+y³",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
    "for (int i = 0; i < 10; ++i) {\n\tprintf(\"%d\\n\", values[i]);\n}\n",
    "fn main() { let x: Vec<u8> = vec![0; 16]; println!(\"{x:?}\"); }",
    "SELECT * FROM users WHERE id = 42 AND name LIKE '%ann%'; -- comment",
    "https://example.com/path/to/page?query=1&other=two#part",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case HTTPServerError iPhone",
    "你好，世界。今天天气很好。",
    "日本語のテキストです。カタカナとひらがな。",
    "한국어 문장입니다. 안녕하세요!",
    "中文English混合123文本，标点！？",
    "Привет, мир! Как дела? ЗАГЛАВНЫЕ буквы",
    "مرحبا بالعالم ١٢٣ و שלום עולם",
    "नमस्ते दुनिया สวัสดีชาวโลก កម្ពុជា",
    "😀 😃😄 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ❤️ ✅",
    "cafe\u0301 re\u0301sume\u0301 A\u030angstro\u0308m \u1e69 s\u0323\u0307 \ufb01n \u212b",
    "zero\u200bwidth no\u00a0break soft\u00adhyphen \u2028line\u2029par \u3000wide \ufeffbom",
    "!!! ... ??? --- === *** /// \\\\\\ ((())) [[]] {{}} <<>> $$$ ^^ ~~ ``` |||",
    "“quotes” ‘single’ «guillemets» — dash – en … dots • bullet € £ ¥ © ®",
    "a.b,c;d:e!f?g/h\\i|j&k%l#m@n$o^p*q(r)s[t]u{v}w<x>y~z`",
    "supercalifragilisticexpialidocious" * 4,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 33 + "b" + "=" * 21,
    "ctrl \x00\x01\x1b[0m\x7f bytes",
    "{bos}text after{eos}",
    "{turn}user\nHi there{eos} \n {turn}  assistant\n",
    "before {tool}between{tool} after{turn}{turn}end",
    "almost {turn} but <|not_a_token|> <s <unk> </s> [INST] <0x0A>",
]

SENTENCES = """The quick brown fox jumps over the lazy dog and they're saying it isn't what we've seen.
Hello, world! How are you today? I'm fine, thank you; she'd say he'll be there.
It's what they're saying: I'm sure we've won, he'll go, she'd stay, don't you think?
THE GENERAL TEXT IN CAPITALS: IT'S WHAT THEY'RE SAYING, WE'VE WON, DON'T STOP.
def function(name: str, value: int = 0) -> None:
    if value < 10:
        return self.values[value]
    for item in range(100):
        print(item, end="")
for (int i = 0; i < 10; ++i) {\n\tprintf("%d\\n", values[i]);\n}
fn main() { let value: Vec<u8> = vec![0; 16]; println!("{value:?}"); }
SELECT * FROM users WHERE id = 42 AND name LIKE 'value';
https://example.com/path/to/page?query=value&other=text
snake_case camelCase PascalCase SCREAMING_CASE HTTPServerError
你好，世界。今天天气很好，我们去公园。中文文本和标点。
日本語のテキストです。カタカナとひらがなを書きます。
한국어 문장입니다. 안녕하세요! 오늘 날씨가 좋습니다.
Привет, мир! Как дела? Сегодня хорошая погода.
مرحبا بالعالم، كيف حالك اليوم؟ שלום עולם
नमस्ते दुनिया सभी लोग สวัสดีชาวโลก
😀 😃 👍 👨‍👩‍👧‍👦 ❤️ ✅ 🇩🇪
1 12 123 1234 12345 2026 1999 100 1000 3.14 0x1F 42
café résumé naïve Ångström œuvre straße
!!! ... ??? --- === *** /// (()) [[]] {{}} <<>> `` || && ++
""".split("\n")


def corpus():
    chance = random.Random(7)
    words = sorted({word for line in SENTENCES for word in line.split(" ") if word})
    for line in SENTENCES * 12:
        yield line + "\n"
    for _ in range(600):
        count = chance.randint(3, 14)
        yield " " * chance.choice([0, 0, 2, 4, 8]) + " ".join(chance.choice(words) for _ in range(count)) + "\n"


def train(pre_tokenizer, normalizer=None):
    """The vocabulary (token to id) and merges of a byte-level BPE trained behind a reference's own pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_ranks(vocabulary):
    """A vocabulary as tiktoken has it: bytes to rank, the 256 single bytes first."""
    bytes_of = {char: byte for byte, char in bytes_to_unicode().items()}
    tokens = sorted(vocabulary, key=lambda token: (len(token) > 1, vocabulary[token]))
    tokens = [bytes(bytes_of[char] for char in token) for token in tokens]
    singles = [bytes([byte]) for byte in range(256)]
    return {token: rank for rank, token in enumerate(singles + [token for token in tokens if len(token) > 1])}


class Kind:
    """One fixture: a reference tokenizer, and what a converter would write about it into a GGUF file."""

    def __init__(self, name, tokenizer, reference, *, model="gpt2", pre=None, special=(), user=(), bos=None, eos=None,
                 turn, tool, metadata=None, tokens=None, scores=None, types=None, plain=None, add_bos=False, write_add_bos=True):
        self.name, self.tokenizer, self.reference = name, tokenizer, reference
        self.model, self.pre, self.metadata = model, pre, metadata or {}
        self.special, self.user = set(special), set(user)
        self.bos, self.eos, self.turn, self.tool = bos, eos, turn, tool
        self.tokens, self.scores, self.types, self.plain = tokens, scores, types, plain
        self.add_bos, self.write_add_bos = add_bos, write_add_bos

    def text(self, template):
        text = template.replace("{bos}", self.bos or self.turn).replace("{eos}", self.eos)
        return text.replace("{turn}", self.turn).replace("{tool}", self.tool)

    def write(self):
        self.write_gguf()
        cases = []
        for template in TEXTS:
            text = self.text(template)
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            full = self.tokenizer.encode(text, add_special_tokens=True).ids
            if self.plain is not None and not any(token in text for token in self.special):
                assert ids == self.plain(text), (self.name, text, ids, self.plain(text))
            expected = [self.tokenizer.token_to_id(self.bos)] + ids if self.add_bos else ids
            assert full == expected, (self.name, text)
            case = {"text": text, "ids": ids, "bos": self.add_bos}
            decoded = self.tokenizer.decode(ids, skip_special_tokens=False)
            if decoded != text:
                case["decoded"] = decoded
            clean = self.tokenizer.decode(ids, skip_special_tokens=True)
            if clean != decoded:
                case["without_special"] = clean
            cases.append(case)
        out = {"reference": self.reference, "cases": cases}
        lines = json.dumps(out, ensure_ascii=True, separators=(",", ":")).replace('{"text"', '\n{"text"')
        (FOLDER / f"{self.name}.json").write_text(lines + "\n")
        print(f"{self.name}: {self.tokenizer.get_vocab_size()} tokens, {len(cases)} texts, {self.reference}")

    def write_gguf(self):
        state = json.loads(self.tokenizer.to_str())
        by_id = {id: token for token, id in self.tokenizer.get_vocab(with_added_tokens=True).items()}
        tokens = self.tokens or [by_id[id] for id in range(len(by_id))]
        types = self.types or [
            CONTROL if token in self.special else USER_DEFINED if token in self.user else NORMAL for token in tokens
        ]
        writer = gguf.GGUFWriter(FOLDER / f"{self.name}.gguf", self.metadata.get("general.architecture", "llama"))
        writer.add_tokenizer_model(self.model)
        if self.pre:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if self.scores:
            writer.add_token_scores(self.scores)
        else:
            writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
        if self.bos:
            writer.add_bos_token_id(tokens.index(self.bos))
        writer.add_eos_token_id(tokens.index(self.eos))
        if self.write_add_bos:
            writer.add_add_bos_token(self.add_bos)
        for key, value in self.metadata.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif key != "general.architecture":
                writer.add_string(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def with_bos(tokenizer, bos):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def from_class(name, cls, pre, *, special, user=(), reference=None, normalizer=None, **arguments):
    """A kind whose model has a class of its own in transformers."""
    blank = cls(vocab={}, merges=[])
    backend = blank.backend_tokenizer
    vocabulary, merges = train(backend.pre_tokenizer, backend.normalizer)
    named = {"unk_token": None, "bos_token": arguments.get("bos"), "eos_token": arguments["eos"]}
    named |= {"pad_token": None, "cls_token": None, "sep_token": None, "mask_token": None}
    tokenizer = cls(vocab=vocabulary, merges=merges, **named)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    reference = reference or f"transformers {cls.__name__}"
    return Kind(name, tokenizer.backend_tokenizer, reference, pre=pre, special=special, user=user, **arguments)


def from_published(name, pre, steps, *, special, user=(), normalizer=None, **arguments):
    """A kind that is published as tokenizer.json only: `steps` is the pre_tokenizer part of that file."""
    if len(steps) > 1:
        steps = [pre_tokenizers.Sequence(steps)]
    vocabulary, merges = train(steps[0], normalizer)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = steps[0]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    return Kind(name, tokenizer, "published tokenizer.json", pre=pre, special=special, user=user, **arguments)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def digits(individual=True):
    return pre_tokenizers.Digits(individual_digits=individual)


def from_tiktoken(name, pre, pattern, *, special, user=(), convert=None, original=None, **arguments):
    """A kind whose model ships ranks for tiktoken: its encoder and transformers' converter must agree.

    `original` is tiktoken's own spelling of the pattern, where it has one: possessive repetitions such as `{1,3}+` mean
    something else to the regex engine of the tokenizers library.
    """
    vocabulary, _ = train(pre_tokenizers.Sequence([split(pattern), byte_level()]))
    ranks = byte_ranks(vocabulary)
    encoding = tiktoken.Encoding(name, pat_str=original or pattern, mergeable_ranks=ranks, special_tokens={})
    with tempfile.TemporaryDirectory() as folder:
        if convert is None:
            path = Path(folder) / "tokenizer.model"
            lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
            path.write_text("".join(lines))
            tokenizer = TikTokenConverter(str(path), pattern, extra_special_tokens=list(special)).converted()
            shift = 0
        else:
            tokenizer, shift = convert(Path(folder), pattern, ranks, special)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    if arguments.get("add_bos"):
        with_bos(tokenizer, arguments["bos"])

    def plain(text):
        return [id + shift for id in encoding.encode(text, disallowed_special=())]

    reference = "tiktoken and transformers " + ("TikTokenConverter" if convert is None else "MistralConverter")
    return Kind(name, tokenizer, reference, pre=pre, special=special, user=user, plain=plain, **arguments)


def tekken(folder, pattern, ranks, special):
    vocabulary = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for token, rank in ranks.items()]
    named = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special)]
    config = {"pattern": pattern, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + len(special)}
    config["default_num_special_tokens"] = len(special)
    path = folder / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocabulary, "special_tokens": named}))
    return MistralConverter(str(path)).converted(), len(special)


def openai_pattern(name):
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    return getattr(openai_public, name)()["pat_str"]


class ScoreConverter(LlamaConverter):
    """transformers' converter for Llama's sentencepiece files, ordering the merges by score as it did for Llama 2."""

    user = ()

    def SpmExtractor(self, _path):
        return self

    def extract(self, scores):
        vocabulary = {piece: id for id, (piece, _) in enumerate(scores)}
        return vocabulary, generate_merges(vocabulary, scores, skip_tokens=self.user)



def sentence_pieces(name, *, prefix=True, control=(), user=(), added=(), rstrip=(), plain=(), **arguments):
    """A SentencePiece BPE with byte fallback, trained with the settings that Llama's was."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.rstrip("\n") for line in corpus()), model_writer=model, model_type="bpe",
        vocab_size=VOCABULARY + 150, byte_fallback=True, character_coverage=0.995, split_digits=True,
        allow_whitespace_only_pieces=True, remove_extra_whitespaces=False, normalization_rule_name="identity",
        add_dummy_prefix=prefix, control_symbols=list(control), user_defined_symbols=list(user), num_threads=1,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(model.getvalue())
        slow = SimpleNamespace(
            vocab_file=str(path), legacy=True, add_prefix_space=prefix, convert_ids_to_tokens=pieces.id_to_piece
        )
        # User-defined pieces as they stand in text: they are found before spaces become `▁`.
        converter = ScoreConverter(slow)
        converter.user = {piece.replace("▁", " ") for piece in user}
        for piece in converter.proto.pieces:
            piece.type = USER_DEFINED if piece.piece in plain else piece.type
            piece.piece = piece.piece.replace("▁", " ") if piece.type == USER_DEFINED else piece.piece
        tokenizer = converter.converted()
    named = ["<unk>", "<s>", "</s>", *added]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=t not in plain, rstrip=t in rstrip) for t in named])
    with_bos(tokenizer, "<s>")
    scores = [pieces.get_score(id) for id in range(pieces.get_piece_size())] + [-1000.0] * len(added)

    def kind_of(id):
        if id >= pieces.get_piece_size() or pieces.is_control(id):
            return USER_DEFINED if tokens[id] in plain else CONTROL
        if pieces.is_unknown(id):
            return UNKNOWN
        if pieces.is_byte(id):
            return BYTE
        return USER_DEFINED if pieces.id_to_piece(id) in user else NORMAL

    tokens = [pieces.id_to_piece(id) for id in range(pieces.get_piece_size())] + list(added)
    types = [kind_of(id) for id in range(len(scores))]
    special = {"<unk>", "<s>", "</s>", *control, *added}
    reference = "sentencepiece and transformers LlamaConverter"
    return Kind(name, tokenizer, reference, model="llama", pre="default", special=special, user=user, bos="<s>",
                tokens=tokens, scores=scores, types=types, plain=pieces.encode, add_bos=True, **arguments)


LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
TEKKEN = r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
CHAT = {"turn": "<|im_start|>", "tool": "<tool_call>", "eos": "<|im_end|>"}
CHAT_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def kinds():
    llama3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
              "<|eot_id|>", "<|python_tag|>"]
    # transformers' TikTokenConverter has Llama 3's pattern as its default; that the one here is the same is asserted.
    assert TikTokenConverter().pattern == LLAMA3
    yield from_tiktoken("llama-bpe", "llama-bpe", LLAMA3, special=llama3, bos="<|begin_of_text|>", eos="<|eot_id|>",
                        turn="<|start_header_id|>", tool="<|python_tag|>", add_bos=True, write_add_bos=False)
    mistral = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    yield from_tiktoken("tekken", "tekken", TEKKEN, special=mistral, bos="<s>", eos="</s>", turn="[INST]",
                        tool="[TOOL_CALLS]", convert=tekken, add_bos=True, write_add_bos=False)
    phi4 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"]
    yield from_tiktoken("dbrx", "dbrx", LLAMA3, special=phi4, eos="<|im_end|>", original=openai_pattern("cl100k_base"),
                        turn="<|im_start|>", tool="<|im_sep|>", metadata={"general.architecture": "phi3"})
    phi4_mini = ["<|endoftext|>", "<|user|>", "<|end|>", "<|tool_call|>"]
    yield from_tiktoken("gpt-4o", "gpt-4o", openai_pattern("o200k_base"), special=phi4_mini, eos="<|end|>",
                        turn="<|user|>", tool="<|tool_call|>", metadata={"general.architecture": "phi3"})

    gpt2 = {"eos": "<|endoftext|>", "bos": "<|endoftext|>", "turn": "<|endoftext|>", "tool": "<|pad|>"}
    yield from_class("gpt-2", GPT2Tokenizer, "gpt-2", special=["<|endoftext|>"], user=["<|pad|>"], **gpt2)
    # Phi-2 adds runs of spaces and tabs as plain tokens that are matched before anything else.
    runs = [" " * count for count in range(31, 1, -1)] + ["\t" * count for count in range(9, 1, -1)]
    gpt2["tool"] = "    "
    yield from_class("phi-2", CodeGenTokenizer, "phi-2", special=["<|endoftext|>"], user=runs, **gpt2)
    user = ["<tool_call>", "</tool_call>"]
    yield from_class("qwen2", Qwen2Tokenizer, "qwen2", special=CHAT_SPECIAL, user=user, **CHAT)
    yield from_class("qwen35", Qwen3_5Tokenizer, "qwen35", special=CHAT_SPECIAL, user=user, **CHAT)
    yield from_class("olmo", GPTNeoXTokenizer, "olmo", special=CHAT_SPECIAL, user=user, **CHAT)
    cohere = {"eos": "<|END_OF_TURN_TOKEN|>", "bos": "<BOS_TOKEN>", "turn": "<|START_OF_TURN_TOKEN|>", "tool": "<tool>"}
    yield from_class("command-r", CohereTokenizer, "command-r", user=["<tool>"], **cohere,
                     special=["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"])

    # Published as tokenizer.json only.
    yield from_published("smollm", "smollm", [digits(), byte_level(True)], special=CHAT_SPECIAL, user=user, **CHAT)
    cjk = split("[一-龥\u3040-ゟ゠-ヿ]+")
    yield from_published("deepseek-v3", "deepseek-v3", [split(r"\p{N}{1,3}"), cjk, split(DEEPSEEK3), byte_level()],
                         special=CHAT_SPECIAL, user=user, **CHAT)
    han = split("[一-龥ࠀ-一가-\ud7ff]+")
    steps = [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), han, digits(), byte_level()]
    yield from_published("deepseek-coder", "deepseek-coder", steps, special=CHAT_SPECIAL, user=user, **CHAT)
    steps = [pre_tokenizers.Punctuation("contiguous"), byte_level(True), digits(False), split("[0-9][0-9][0-9]")]
    yield from_published("falcon", "falcon", steps, special=CHAT_SPECIAL, user=user, **CHAT)
    bloom = " ?[^(\\s|[.,!?…。，、।۔،])]+"
    yield from_published("bloom", "bloom", [split(bloom), byte_level()], special=CHAT_SPECIAL, user=user, **CHAT)

    yield sentence_pieces("llama-spm", eos="</s>", turn="<s>", tool="</s>", write_add_bos=False)
    phi3 = ["<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>"]
    # Phi-3 lists `</s>` as a plain token that swallows whitespace, like its turns.
    yield sentence_pieces("phi-3-spm", added=phi3, rstrip=[*phi3[1:], "</s>"], plain=["</s>"], eos="<|end|>",
                          turn="<|user|>", tool="<|assistant|>",
                          metadata={"general.architecture": "phi3", "tokenizer.ggml.add_space_prefix": True})
    yield sentence_pieces("no-prefix-spm", prefix=False, control=["<start_of_turn>", "<end_of_turn>"],
                          user=["<tool>", "\t\t", "▁▁▁▁"], eos="</s>", turn="<start_of_turn>", tool="<tool>",
                          metadata={"tokenizer.ggml.add_space_prefix": False})


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind in kinds():
        kind.write()
