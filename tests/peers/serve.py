"""Serves a model by a peer's Python package, with OpenAI's API: serve.py PEER MODEL PORT THREADS. It ends with its standard input."""

import json
import os
import pathlib
import sys


def llama(model, port, threads):
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.port = model, port
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    # Room for 32 streams of 1,024 tokens in a cache that they share.
    parameters.n_ctx, parameters.n_parallel, parameters.kv_unified, parameters.n_gpu_layers = 32768, 32, True, 0
    server = xllamacpp.Server(parameters)
    sys.stdin.read()
    del server


def mistral(model, port, threads):
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    import http.server

    import mistralrs

    path = pathlib.Path(model)
    which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
    runner = mistralrs.Runner(which=which, max_seqs=32, prefix_cache_n=0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(json.dumps({"data": [{"id": "default"}]}).encode())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            request = mistralrs.ChatCompletionRequest(
                model="default",
                messages=body["messages"],
                max_tokens=body["max_tokens"],
                temperature=body["temperature"],
                stream=True,
            )
            self.send_response(200)
            self.end_headers()
            usage = None
            for chunk in runner.send_chat_completion_request(request):
                usage = chunk.usage or usage
                deltas = [{"delta": {"content": choice.delta.content}} for choice in chunk.choices]
                self.event({"choices": deltas})
            counts = {name: getattr(usage, name) for name in ("prompt_tokens", "completion_tokens")}
            self.event({"choices": [], "usage": counts})

        def reply(self, body):
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def event(self, event):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    peer, model, port, threads = sys.argv[1:]
    {"llama.cpp": llama, "mistral.rs": mistral}[peer](model, int(port), int(threads))
