"""Embeddings and ranks through the clients that people use: OpenAI's SDK, Ollama's, Google's, Cohere's, and LangChain's packages for three
of them. The model `unit` is made for embedding, with a prompt for queries; its vectors have 32 values and length 1.
"""

import cohere
import ollama
import openai
from google import genai
from google.genai import types
from langchain_cohere import CohereRerank
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings

from calls import KEY, URL, call, equal, main, refused

MODEL = "unit"
TEXTS = ["the first text", "and another", "blåbær 🫐"]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)


def close(found, expected):
    equal(len(found), len(expected))
    worst = max(abs(a - b) for a, b in zip(found, expected))
    assert worst < 1e-6, f"{worst} apart"


def vectors(texts, **more):
    # Unless it is told otherwise, this SDK asks for base64 and unpacks it.
    answer = client.embeddings.create(model=MODEL, input=texts, **more)
    equal([one.index for one in answer.data], list(range(len(texts))))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return [one.embedding for one in answer.data]


@call
def openais_sdk():
    found = vectors(TEXTS)
    equal([len(one) for one in found], [32] * 3)
    assert all(abs(sum(value * value for value in one) - 1) < 1e-5 for one in found)
    for one, other in zip(found, vectors(TEXTS, encoding_format="float")):
        close(one, other)
    equal(len(vectors(TEXTS, dimensions=8)[0]), 8)
    error = refused(openai.BadRequestError, lambda: vectors(["word " * 5000]))
    assert "text 0 has" in str(error), error
    equal(error.code, "context_length_exceeded")


@call
def ollamas_client():
    answer = ollama.Client(host=URL).embed(MODEL, TEXTS)
    for one, other in zip(answer.embeddings, vectors(TEXTS)):
        close(one, other)
    close(ollama.Client(host=URL).embeddings(MODEL, TEXTS[0]).embedding, vectors(TEXTS)[0])


@call
def googles_sdk():
    google = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
    answer = google.models.embed_content(model=MODEL, contents=TEXTS)
    for one, other in zip(answer.embeddings, vectors(TEXTS)):
        close(one.values, other)


@call
def langchain_embeds():
    # Its own tokenizer is for OpenAI's models: texts go as they are.
    chains = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False)
    for one, other in zip(chains.embed_documents(TEXTS), vectors(TEXTS)):
        close(one, other)
    close(OllamaEmbeddings(model=MODEL, base_url=URL).embed_query(TEXTS[1]), vectors(TEXTS)[1])


def best(results):
    equal((len(results), results[0][0]), (2, 1))
    assert results[0][1] > results[1][1] and abs(results[0][1] - 1) < 1e-5, results


@call
def coheres_sdk_ranks():
    documents = ["something else", "find: the very words", "more"]
    for client in (cohere.ClientV2(KEY, base_url=URL), cohere.Client(KEY, base_url=URL)):
        answer = client.rerank(model=MODEL, query="the very words", documents=documents, top_n=2)
        best([(one.index, one.relevance_score) for one in answer.results])


@call
def langchain_ranks():
    chain = CohereRerank(model=MODEL, cohere_api_key=KEY, base_url=URL, top_n=2)
    ranked = chain.rerank(["something else", "find: the very words", "more"], "the very words")
    best([(one["index"], one["relevance_score"]) for one in ranked])


main()
