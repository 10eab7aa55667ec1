"""Has Hugging Face transformers compute the logits of a text: python reference.py FOLDER GGUF TEXT

GGUF is a file in the folder, or "" for its safetensors. Writes reference.safetensors here: the text's `tokens`, and a row of
`logits` for each. It takes torch, transformers and safetensors, and gguf and accelerate for GGUF files.
"""
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, gguf, text = sys.argv[1], sys.argv[2] or None, sys.argv[3]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32).eval()
tokens = tokenizer(text, return_tensors="pt").input_ids
with torch.no_grad():
    logits = model(tokens).logits
save_file({"tokens": tokens[0], "logits": logits[0].float().contiguous()}, "reference.safetensors")
