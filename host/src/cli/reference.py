"""Has Hugging Face transformers compute the logits of a text: python reference.py FOLDER GGUF TEXT

GGUF is a file in the folder, or "" for its safetensors. Writes reference.safetensors here: the text's `tokens`, and a row of
`logits` for each. It takes torch, transformers and safetensors, and gguf and accelerate for GGUF files.
"""
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

folder, gguf, text = sys.argv[1], sys.argv[2] or None, sys.argv[3]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
# The class that the checkpoint names: of models that also see, the automatic one has other names for the weights.
config = AutoConfig.from_pretrained(folder, gguf_file=gguf)
named = (config.architectures or [""])[0]
family = getattr(transformers, named, AutoModelForCausalLM)
model, found = family.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32, output_loading_info=True)
if found["missing_keys"]:
    sys.exit(f"transformers found no weights for {', '.join(sorted(found['missing_keys'])[:4])}, so its numbers mean nothing")
context = getattr(config.get_text_config(), "max_position_embeddings", None)
tokens = tokenizer(text, return_tensors="pt").input_ids[:, :context]
with torch.no_grad():
    logits = model.eval()(tokens).logits
save_file({"tokens": tokens[0], "logits": logits[0].float().contiguous()}, "reference.safetensors")
