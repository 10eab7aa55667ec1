"""How much of their speed text streams keep beside requests with images, over HTTP.

    pensieve serve --listen 127.0.0.1:9102 --model eyes=eyes/text.gguf
    python tests/real/beside_images.py http://127.0.0.1:9102 eyes

The model may have random weights (tests/reference/random_model.py FILE qwen3vl). Streams run alone, then beside all requests
at once, each with a picture of its own; what they write is never an end of text, so that none has to start again.
"""

import argparse
import base64
import json
import random
import struct
import threading
import time
import urllib.request
import zlib

EVENTS = []


def picture(side, seed):
    """A PNG of squares in random colors."""
    rng = random.Random(seed)
    row = lambda: b"\0" + b"".join(rng.randbytes(3) * 32 for _ in range(side // 32))
    rows = b"".join(row() * 32 for _ in range(side // 32))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def post(arguments, content, **rest):
    body = {"model": arguments.model, "messages": [{"role": "user", "content": content}], **rest}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(arguments.server + "/v1/chat/completions", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=600)


def stream(arguments, index):
    ends = {str(token): -100 for token in arguments.ends}
    with post(arguments, f"{index} tell me", max_tokens=16_000, stream=True, temperature=1.0, seed=index, logit_bias=ends) as lines:
        for line in lines:
            if line.startswith(b"data: {"):
                EVENTS.append(time.time())


def show(arguments, image, answered):
    part = {"type": "image_url", "image_url": {"url": image}}
    with post(arguments, [part, {"type": "text", "text": "What is this?"}], max_tokens=4) as reply:
        reply.read()
    answered.append(time.time())


def start(target, *given):
    threading.Thread(target=target, args=given, daemon=True).start()


def speed(seconds):
    """Tokens a second of all streams from now on."""
    begun = time.time()
    time.sleep(seconds)
    return sum(begun <= event for event in EVENTS) / (time.time() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--ends", type=int, nargs="*", default=[2, 31_996], help="tokens that end a text")
    arguments = parser.parse_args()
    images = [picture(arguments.side, f"{time.time()} {index}") for index in range(arguments.images)]
    for index in range(arguments.streams):
        start(stream, arguments, index)
    time.sleep(4)
    alone, answered = speed(arguments.seconds), []
    for image in images:
        start(show, arguments, image, answered)
    beside = speed(arguments.seconds)
    print(f"alone {alone:.1f} tokens/s, beside {len(images)} images {beside:.1f}: {beside / alone:.2f}; {len(answered)} answered")


if __name__ == "__main__":
    main()
