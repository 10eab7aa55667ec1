"""Fixtures of encoders and of other models made for embeddings, scores and classes: folders as sentence-transformers publishes
them, and GGUF files as llama.cpp's converter writes them.

What they are held to is what transformers computes for each token and sentence-transformers for each text, from the same
folder. Texts have lengths from one token to many, and are computed alone, without padding; a plugin has them in one
batch. A fixture is refused if single precision is far from double, or if a tenth more of any one tensor would not show.
Run it with no arguments to write tests/fixtures/encoders again; report.txt says what each fixture can catch.
"""

import functools
import json
import shutil
from dataclasses import dataclass, field

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer

import encoder_gguf
import text_tokenizers
from fixture import distance, run

TEXTS = [
    "a",
    "the quick fox",
    "what is the lazy fox searching for, and where did it go?",
    "fox! " * 3,
    "the search is over. " * 5 + "what now",
    "quick",
    "it's 7 o'clock, the lazier foxes slept 12.5 hours; what is searched is the den - or 3 dens",
]
PAIRS = [
    ("what is a fox", "a fox is an animal"),
    ("search", "the lazy search for the quick fox ended, and the fox is what it is: quick. " * 2),
    ("the quick fox searched and searched and searched", "no"),
    ("a", "b"),
]
F32_ERROR_MAX = 2e-5
SENSITIVITY_MIN = 1e-3
POSITIONS = 160


@dataclass(frozen=True)
class Variant:
    name: str
    seed: int
    model: type
    config: object
    tokenizer: object = text_tokenizers.wordpiece
    modules: tuple = ()  # Of sentence-transformers after the transformer: their classes with their settings.
    pairs: bool = False  # A cross-encoder.
    prompts: dict = field(default_factory=dict)
    published_as: str = ""  # The class in `architectures`, if it is not that of the weights.
    question: str = ""  # What a decoder is asked about a pair.
    gguf: object = None


def pooling(mode, width=64):
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    flags = {f"pooling_mode_{name}": name == mode for name in modes}
    return ("Pooling", {"word_embedding_dimension": width, **flags, "include_prompt": True})


NORMALIZE = ("Normalize", None)


def dense(inputs, outputs, activation="torch.nn.modules.linear.Identity", bias=False):
    names = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation}
    return ("Dense", names)


def bert(**rest):
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    return sizes | {"max_position_embeddings": POSITIONS, "vocab_size": 96} | rest


def _labels(*names):
    return {"id2label": dict(enumerate(names)), "label2id": {name: id for id, name in enumerate(names)}}


def xlm(**rest):
    return transformers.XLMRobertaConfig(
        **bert(max_position_embeddings=POSITIONS + 2, vocab_size=90, type_vocab_size=1, layer_norm_eps=1e-5, **rest),
        pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )


def modern(**rest):
    return transformers.ModernBertConfig(
        **bert(vocab_size=192, local_attention=16, global_attn_every_n_layers=3, **rest) | {"num_hidden_layers": 4},
        global_rope_theta=160_000.0, local_rope_theta=10_000.0,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
    )


def distilled(**rest):
    return transformers.DistilBertConfig(
        dim=64, n_layers=3, n_heads=4, hidden_dim=96, vocab_size=96, max_position_embeddings=POSITIONS, **rest
    )


def nomic():
    return transformers.NomicBertConfig(**bert(layer_norm_eps=1e-6), rope_parameters={"rope_theta": 1000.0, "rope_type": "default"})


def qwen(**rest):
    return transformers.Qwen3Config(
        **bert(vocab_size=200, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, **rest)
        | {"max_position_embeddings": 1024},
        bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )


def gemma():
    return transformers.Gemma3TextConfig(
        **bert(vocab_size=192, num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16, rms_norm_eps=1e-6)
        | {"num_hidden_layers": 6},
        sliding_window=20, use_bidirectional_attention=True, bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )


# What Qwen3-Reranker asks, as its authors publish it.
QUESTION = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, '
    "retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def closed_tokens(folder):
    return text_tokenizers.byte_level(folder, 200, "$A {eot}", "$A {eot} $B {eot}")


def question_tokens(folder):
    tokenizer, names = text_tokenizers.byte_level(folder, 196, "$A", "$A $B")
    tokenizer.add_tokens(["yes", "no"])
    return tokenizer, names


def modern_tokens(folder):
    return text_tokenizers.byte_level(folder, 192, "{bos} $A {eot}", "{bos} $A {eot} $B {eot}")


VARIANTS = [
    Variant(
        "bert", 11, transformers.BertModel, transformers.BertConfig(**bert()),
        modules=(pooling("mean_tokens"), NORMALIZE), gguf=gguf.MODEL_ARCH.BERT,
    ),
    Variant(
        "bert_rank", 12, transformers.BertForSequenceClassification,
        transformers.BertConfig(**bert(), **_labels("LABEL_0")), pairs=True,
    ),
    Variant(
        "xlm_roberta", 13, transformers.XLMRobertaModel, xlm(), text_tokenizers.unigram,
        modules=(pooling("cls_token"), NORMALIZE), prompts={"query": "query: ", "document": "passage: "},
        gguf=gguf.MODEL_ARCH.BERT,
    ),
    Variant(
        "xlm_roberta_rank", 14, transformers.XLMRobertaForSequenceClassification, xlm(**_labels("LABEL_0")),
        text_tokenizers.unigram, pairs=True, gguf=gguf.MODEL_ARCH.BERT,
    ),
    Variant(
        "modern_bert", 15, transformers.ModernBertModel, modern(), modern_tokens,
        modules=(pooling("mean_tokens"),), gguf=gguf.MODEL_ARCH.MODERN_BERT,
    ),
    Variant(
        "modern_bert_classify", 16, transformers.ModernBertForSequenceClassification,
        modern(classifier_pooling="mean", **_labels("good", "bad", "odd")), modern_tokens,
    ),
    Variant("distilbert", 20, transformers.DistilBertModel, distilled(), modules=(pooling("mean_tokens"), NORMALIZE)),
    Variant(
        "distilbert_classify", 21, transformers.DistilBertForSequenceClassification,
        distilled(**_labels("good", "bad", "odd")),
    ),
    Variant(
        "mpnet", 22, transformers.MPNetModel,
        transformers.MPNetConfig(
            **bert(max_position_embeddings=POSITIONS + 2, layer_norm_eps=1e-5), pad_token_id=1, bos_token_id=0, eos_token_id=2
        ),
        text_tokenizers.mpnet,
        modules=(pooling("mean_tokens"), NORMALIZE),
    ),
    Variant(
        "nomic_bert", 23, transformers.NomicBertModel, nomic(), modules=(pooling("mean_tokens"),),
        prompts={"query": "search_query: ", "document": "search_document: "}, gguf=gguf.MODEL_ARCH.NOMIC_BERT,
    ),
    Variant(
        "qwen3_embedding", 17, transformers.Qwen3Model, qwen(), closed_tokens,
        modules=(pooling("lasttoken"), NORMALIZE), published_as="Qwen3ForCausalLM",
        prompts={"query": "Instruct: find what is asked for\nQuery:", "document": ""}, gguf=gguf.MODEL_ARCH.QWEN3,
    ),
    Variant("qwen3-reranker", 18, transformers.Qwen3ForCausalLM, qwen(), question_tokens, pairs=True, question=QUESTION),
    Variant(
        "embedding_gemma", 19, transformers.Gemma3TextModel, gemma(), modern_tokens,
        modules=(pooling("mean_tokens"), dense(64, 96), dense(96, 48), NORMALIZE),
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
        gguf=gguf.MODEL_ARCH.GEMMA_EMBEDDING,
    ),
]


def main():
    run(__doc__, "encoders", {variant.name: functools.partial(make, variant) for variant in VARIANTS})


def make(variant, root):
    """Writes the fixture's folder and returns its report."""
    folder = root / variant.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(variant.seed)
    takes_folder = variant.tokenizer.__code__.co_varnames[:1] == ("folder",)
    tokenizer, names = variant.tokenizer(folder) if takes_folder else variant.tokenizer()
    assert tokenizer.get_vocab_size() <= variant.config.vocab_size
    model = variant.model._from_config(variant.config, attn_implementation="eager").eval()
    weights = {name: _draw(name, tuple(value.shape), rng) for name, value in model.state_dict().items() if value.is_floating_point()}
    _load(model, weights)
    model.save_pretrained(folder)
    if variant.published_as:
        config = json.loads((folder / "config.json").read_text()) | {"architectures": [variant.published_as]}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    text_tokenizers.write(folder, tokenizer, names, POSITIONS)
    heads = _write_modules(folder, variant, rng)
    texts = PAIRS if variant.pairs else TEXTS
    (folder / "texts.json").write_text(json.dumps(texts, indent=1) + "\n")
    if variant.question:
        asked = [variant.question.format(query=query, document=document) for query, document in texts]
        encoded = [tokenizer.encode(text) for text in asked]
    else:
        encoded = [tokenizer.encode(*text) if variant.pairs else tokenizer.encode(text) for text in texts]
    reference = _reference(variant, model, encoded)
    reference["vectors"] = _vectors(folder, variant, texts, model, tokenizer, encoded)
    save_file(reference, folder / "reference.safetensors")
    report = _power(variant, model, weights, encoded, reference)
    if variant.gguf:
        kinds = [settings for kind, settings in variant.modules if kind == "Pooling"]
        mode = next((name for name in encoder_gguf.POOLING if kinds and kinds[0][f"pooling_mode_{name}"]), None)
        pooled = encoder_gguf.POOLING[mode] if mode else encoder_gguf.RANK
        stored = load_file(folder / "model.safetensors") | heads
        encoder_gguf.write(folder / "f32.gguf", variant.gguf, variant.config, stored, tokenizer, names, pooled)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return report


def _draw(name, shape, rng):
    """Random values such that attention is far from uniform and every tensor shows."""
    if len(shape) == 1:
        is_norm = "norm" in name.lower() and name.endswith("weight")
        return (rng.uniform(0.5, 1.5, shape) if is_norm else 0.3 * rng.standard_normal(shape)).astype(np.float32)
    gain = 1.0 if "embedding" in name or "embed_tokens" in name else 1.4 / shape[-1] ** 0.5
    return (gain * rng.standard_normal(shape)).astype(np.float32)


def _load(model, weights):
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)


def _write_modules(folder, variant, rng):
    """The files of sentence-transformers, in the layout of published checkpoints; returns the tensors of dense layers."""
    heads = {}
    if not variant.modules:
        return heads
    modules = [("Transformer", "")]
    for index, (kind, settings) in enumerate(variant.modules, 1):
        place = f"{index}_{kind}"
        modules.append((kind, place))
        (folder / place).mkdir()
        if settings is not None:
            (folder / place / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        if kind == "Dense":
            shape = (settings["out_features"], settings["in_features"])
            value = (rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
            save_file({"linear.weight": value}, folder / place / "model.safetensors")
            heads[f"{place}.linear.weight"] = value
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n")
    settings = {"max_seq_length": POSITIONS - 8, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    settings = {"prompts": variant.prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2) + "\n")
    return heads


def _base(model):
    """The transformer without its head."""
    return getattr(model, model.base_model_prefix, model) if model.base_model_prefix else model


@torch.no_grad()
def _rows(model, encoded, dtype=torch.float32):
    """Each token's row, text by text."""
    base = _base(model).to(dtype)
    rows = []
    for one in encoded:
        inputs = {"input_ids": torch.tensor([one.ids])}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = torch.tensor([one.type_ids])
        rows.append(base(**inputs).last_hidden_state[0].to(torch.float64).numpy())
    base.to(torch.float32)
    return np.concatenate(rows)


def _reference(variant, model, encoded):
    return {
        "tokens": np.concatenate([one.ids for one in encoded]).astype(np.uint32),
        "lengths": np.array([len(one.ids) for one in encoded], dtype=np.uint32),
        "rows": _rows(model, encoded).astype(np.float32),
    }


def _vectors(folder, variant, texts, model, tokenizer, encoded):
    """The result for each text, from the folder alone, one text at a time."""
    if variant.question:
        yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
        with torch.no_grad():
            last = [model(torch.tensor([one.ids])).logits[0, -1] for one in encoded]
        return np.array([[float(logits[yes] - logits[no])] for logits in last], dtype=np.float32)
    if variant.modules:
        embedder = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        return np.stack([embedder.encode(text) for text in texts]).astype(np.float32)
    scorer = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity(), local_files_only=True)
    if variant.pairs:
        return np.stack([np.atleast_1d(scorer.predict(pair)) for pair in texts]).astype(np.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0] for text in texts]
    return torch.stack(logits).float().numpy()


def _power(variant, model, weights, encoded, reference):
    """How far single precision is from the truth, and how much of the least felt tensor shows."""
    error = distance(_rows(model, encoded, torch.float64), reference["rows"])
    assert error <= F32_ERROR_MAX, f"f32 is {error:.1e} from float64"
    prefix = model.base_model_prefix + "."
    felt = {}
    for name, value in weights.items():
        if isinstance(_base(model), type(model)) or name.startswith(prefix):
            # A bias of keys adds the same to all scores of a query.
            if "pooler" in name or name.endswith(("key.bias", "k_lin.bias", "attn.k.bias")):
                continue
            _load(model, {name: _half(value)})
            felt[name] = distance(_rows(model, encoded), reference["rows"])
            _load(model, {name: value})
    weakest = min(felt, key=felt.get)
    assert felt[weakest] > SENSITIVITY_MIN, f"{weakest} moves rows by only {felt[weakest]:.1e}"
    return [
        f"rows std {reference['rows'].std():.2f}, f32 is within {error:.1e} of float64",
        f"a tenth more of half of the least felt tensor ({weakest}): {felt[weakest]:.2g}",
    ]


def _half(value):
    """A tenth more in every other column: a norm behind a tensor would hide a common factor."""
    changed = value.copy()
    changed[..., ::2] *= 1.1
    return changed


if __name__ == "__main__":
    main()
