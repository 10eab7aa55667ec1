"""Serves a model by a peer's Python package, with OpenAI's API, until it is terminated: serve.py PEER MODEL PORT THREADS."""

import http.server
import itertools
import json
import os
import pathlib
import queue
import sys
import threading
import time
import traceback


def llama(model, port, threads):
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.port = model, port
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    # Room for 32 streams of 1,024 tokens in a cache that they share.
    parameters.n_ctx, parameters.n_parallel, parameters.kv_unified, parameters.n_gpu_layers = 32768, 32, True, 0
    # It serves for as long as it is referred to.
    _server = xllamacpp.Server(parameters)
    threading.Event().wait()


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
    from openvino_genai import GenerationStatus as Status

    settings = openvino_genai.SchedulerConfig()
    # In GiB, and the tokens of a step.
    settings.cache_size, settings.max_num_batched_tokens = 2, 2048
    settings.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU", {"INFERENCE_NUM_THREADS": threads})
    tokenizer = pipeline.get_tokenizer()
    asked, numbers = queue.SimpleQueue(), itertools.count()

    def run():
        try:
            step()
        except Exception:
            # Nobody else would answer.
            traceback.print_exc()
            os._exit(1)

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
            statuses = [(handle.get_status(), handle, answered) for handle, answered in running]
            for status, _, answered in statuses:
                if status != Status.RUNNING:
                    answered.put(status)
            running = [(handle, answered) for status, handle, answered in statuses if status == Status.RUNNING]
            # A step may hold the interpreter, and its tokens are to be sent before the next one.
            time.sleep(1e-4)

    def answer(body):
        text = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        tokens = tokenizer.encode(text, add_special_tokens=False).input_ids
        limits = openvino_genai.GenerationConfig(max_new_tokens=body["max_tokens"], do_sample=False)
        answered, written = queue.SimpleQueue(), 0
        asked.put((tokens, limits, answered))
        while not isinstance(some := answered.get(), Status):
            written += len(some)
            yield tokenizer.decode(some)
        if some != Status.FINISHED:
            raise RuntimeError(f"the request ended as {some}")
        return tokens.shape[1], written

    threading.Thread(target=run, daemon=True).start()
    listen(port, answer)


def vllm(model, port, threads):
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    context = min(8192, config.get("max_position_embeddings", 8192))
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--max-model-len", str(context), "--max-num-seqs", "32", "--no-enable-prefix-caching"]
    os.execve(sys.executable, command, environment)


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
