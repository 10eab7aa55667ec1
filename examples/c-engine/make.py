"""Writes a checkpoint of random weights: python make.py FOLDER"""
import json, os, random, struct, sys

folder, vocabulary, width = sys.argv[1], 300, 64
os.makedirs(folder, exist_ok=True)
random.seed(1)
spread = [(vocabulary * width, 1.0), (6 * width * width, 2.0 / width**0.5)]
with open(os.path.join(folder, "weights.bin"), "wb") as file:
    file.write(b"CGRU" + struct.pack("<2I", vocabulary, width))
    for count, largest in spread:
        file.write(struct.pack(f"<{count}f", *(random.uniform(-largest, largest) for _ in range(count))))
with open(os.path.join(folder, "config.json"), "w") as file:
    json.dump({"architectures": ["CGruForCausalLM"], "max_position_embeddings": 512}, file)
# A word for each token, its number, and the space before it.
spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
words = {"type": "WordLevel", "vocab": {f"▁{token}": token for token in range(vocabulary)}, "unk_token": "▁0"}
tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": spaces, "decoder": spaces, "model": words}
with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump(tokenizer, file, ensure_ascii=False)
print(f"{folder}: {vocabulary} tokens, a state of {width}")
