"""Serves a model by a peer's Python package, with OpenAI's API: serve.py PEER MODEL PORT THREADS. It ends with its standard input."""

import http.server
import itertools
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading


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

    import mistralrs

    path = pathlib.Path(model)
    which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
    runner = mistralrs.Runner(which=which, max_seqs=32, prefix_cache_n=0)

    def answer(body):
        request = mistralrs.ChatCompletionRequest(
            model="default",
            messages=body["messages"],
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            stream=True,
        )
        usage = None
        for chunk in runner.send_chat_completion_request(request):
            usage = chunk.usage or usage
            yield "".join(choice.delta.content or "" for choice in chunk.choices)
        return usage.prompt_tokens, usage.completion_tokens

    listen(port, answer)


def openvino(model, port, threads):
    import openvino_genai

    settings = openvino_genai.SchedulerConfig()
    # In GiB, and the tokens of a step.
    settings.cache_size, settings.max_num_batched_tokens = 2, 2048
    settings.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU", {"INFERENCE_NUM_THREADS": threads})
    tokenizer = pipeline.get_tokenizer()
    asked, numbers = queue.SimpleQueue(), itertools.count()

    def step():
        running = []
        while True:
            while not asked.empty() or not running:
                tokens, limits, answered = asked.get()
                running.append((pipeline.add_request(next(numbers), tokens, limits), answered))
            pipeline.step()
            for handle, answered in running:
                while handle.can_read():
                    answered.put([token for output in handle.read().values() for token in output.generated_ids])
            for _, answered in [one for one in running if is_finished(one[0])]:
                answered.put(None)
            running = [one for one in running if not is_finished(one[0])]

    def is_finished(handle):
        return handle.get_status() != openvino_genai.GenerationStatus.RUNNING

    def answer(body):
        text = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        tokens = tokenizer.encode(text, add_special_tokens=False).input_ids
        limits = openvino_genai.GenerationConfig(max_new_tokens=body["max_tokens"], do_sample=False)
        answered, written = queue.SimpleQueue(), 0
        asked.put((tokens, limits, answered))
        while (some := answered.get()) is not None:
            written += len(some)
            yield tokenizer.decode(some)
        return tokens.shape[1], written

    threading.Thread(target=step, daemon=True).start()
    listen(port, answer)


def vllm(model, port, threads):
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--max-model-len", "8192", "--max-num-seqs", "32", "--no-enable-prefix-caching"]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    threading.Thread(target=lambda: os._exit(server.wait()), daemon=True).start()
    sys.stdin.read()
    server.terminate()


def listen(port, answer):
    """Answers requests by a generator of texts, which returns the tokens of the prompt and of the answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(json.dumps({"data": [{"id": "default"}]}).encode())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()
            answering = answer(body)
            while True:
                try:
                    self.event({"choices": [{"delta": {"content": next(answering)}}]})
                except StopIteration as ended:
                    counts = dict(zip(("prompt_tokens", "completion_tokens"), ended.value))
                    break
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

    class Listener(http.server.ThreadingHTTPServer):
        # All streams connect at once.
        request_queue_size = 64

    Listener(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    peer, model, port, threads = sys.argv[1:]
    {"llama.cpp": llama, "mistral.rs": mistral, "openvino": openvino, "vllm": vllm}[peer](model, int(port), int(threads))
