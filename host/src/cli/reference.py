"""Has Hugging Face transformers compute the logits of a text: python reference.py FOLDER GGUF TEXT

GGUF is a file in the folder, or "" for its safetensors. Writes reference.safetensors here: the text's `tokens`, and a row of
`logits` for each; of models that have none for each token (encoders, decoders without an output layer or with a head for
scores or classes) the last layer's `hidden` rows. It takes torch, transformers and safetensors, and gguf and accelerate for
GGUF files.
"""
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

folder, gguf, text = sys.argv[1], sys.argv[2] or None, sys.argv[3]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
# The class that the checkpoint names: of models that also see, the automatic one has other names for the weights.
config = AutoConfig.from_pretrained(folder, gguf_file=gguf)
named = (config.architectures or [""])[0]
ENCODERS = (
    "bert", "roberta", "camembert", "xlm-roberta", "distilbert", "mpnet", "nomic_bert", "modernbert", "gemma3_text"
)
is_encoder = config.model_type in ENCODERS and not named.endswith("CausalLM")
# Names of classes whose logits are words, one row for each token. A checkpoint without a name is taken for such.
WRITES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
is_headless = is_encoder or (named != "" and not named.endswith(WRITES))
family = AutoModel if is_headless else getattr(transformers, named, AutoModelForCausalLM)
model, found = family.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32, output_loading_info=True)
# An encoder's pooler follows its rows, and is not there with every head.
missing = sorted(name for name in found["missing_keys"] if not (is_encoder and name.startswith("pooler.")))
if missing:
    sys.exit(f"transformers found no weights for {', '.join(missing[:4])}, so its numbers mean nothing")
context = getattr(config.get_text_config(), "max_position_embeddings", None)
if context and ("roberta" in config.model_type or config.model_type == "mpnet"):
    context -= config.pad_token_id + 1
tokens = tokenizer(text, return_tensors="pt").input_ids[:, :context]
with torch.no_grad():
    output = model.eval()(tokens)
name, rows = ("hidden", output.last_hidden_state) if is_headless else ("logits", output.logits)
save_file({"tokens": tokens[0], name: rows[0].float().contiguous()}, "reference.safetensors")
