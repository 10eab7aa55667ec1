"""Embeddings and ranks through the clients that people use: OpenAI's SDK, Ollama's, Google's, Cohere's, and LangChain's packages for three
of them. The model `unit` is a decoder made for embedding, with a prompt for queries, `encoder` a BERT; the vectors of both
have length 1. `ranker` is a BERT that reads pairs.
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

WIDTHS = {"unit": 32, "encoder": 64}
RANKER = "ranker"
TEXTS = ["the first text", "and another", "blåbær 🫐"]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)


def close(found, expected):
    equal(len(found), len(expected))
    worst = max(abs(a - b) for a, b in zip(found, expected))
    assert worst < 1e-6, f"{worst} apart"


def vectors(model, texts, **more):
    # Unless it is told otherwise, this SDK asks for base64 and unpacks it.
    answer = client.embeddings.create(model=model, input=texts, **more)
    equal([one.index for one in answer.data], list(range(len(texts))))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return [one.embedding for one in answer.data]


@call
def openais_sdk():
    for model, width in WIDTHS.items():
        found = vectors(model, TEXTS)
        equal([len(one) for one in found], [width] * 3)
        assert all(abs(sum(value * value for value in one) - 1) < 1e-5 for one in found)
        for one, other in zip(found, vectors(model, TEXTS, encoding_format="float")):
            close(one, other)
        equal(len(vectors(model, TEXTS, dimensions=8)[0]), 8)
        error = refused(openai.BadRequestError, lambda: vectors(model, ["word " * 5000]))
        assert "input.0: has " in str(error), error
        equal(error.code, "context_length_exceeded")
        # vLLM's field, which this SDK has no name for.
        cut = vectors(model, ["word " * 5000], extra_body={"truncate_prompt_tokens": -1})
        equal(len(cut[0]), width)


@call
def ollamas_client():
    for model in WIDTHS:
        answer = ollama.Client(host=URL).embed(model, TEXTS)
        for one, other in zip(answer.embeddings, vectors(model, TEXTS)):
            close(one, other)
        close(ollama.Client(host=URL).embeddings(model, TEXTS[0]).embedding, vectors(model, TEXTS)[0])


@call
def googles_sdk():
    google = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
    for model in WIDTHS:
        answer = google.models.embed_content(model=model, contents=TEXTS)
        for one, other in zip(answer.embeddings, vectors(model, TEXTS)):
            close(one.values, other)


@call
def langchain_embeds():
    for model in WIDTHS:
        # Its own tokenizer is for OpenAI's models: texts go as they are.
        chains = OpenAIEmbeddings(model=model, base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False)
        for one, other in zip(chains.embed_documents(TEXTS), vectors(model, TEXTS)):
            close(one, other)
        close(OllamaEmbeddings(model=model, base_url=URL).embed_query(TEXTS[1]), vectors(model, TEXTS)[1])


def coheres(rank):
    """The results of both of its clients as pairs of an index and a score."""
    for client in (cohere.ClientV2(KEY, base_url=URL), cohere.Client(KEY, base_url=URL)):
        yield [(one.index, one.relevance_score) for one in rank(client).results]


def chained(model, documents, query, top):
    chain = CohereRerank(model=model, cohere_api_key=KEY, base_url=URL, top_n=top)
    return [(one["index"], one["relevance_score"]) for one in chain.rerank(documents, query)]


@call
def an_embedding_model_ranks_by_coheres_sdk_and_langchain():
    documents, query = ["something else", "find: the very words", "more"], "the very words"
    ranked = list(coheres(lambda client: client.rerank(model="unit", query=query, documents=documents, top_n=2)))
    for results in [*ranked, chained("unit", documents, query, 2)]:
        equal((len(results), results[0][0]), (2, 1))
        assert results[0][1] > results[1][1] and abs(results[0][1] - 1) < 1e-5, results


@call
def a_cross_encoder_ranks_by_coheres_sdk_and_langchain():
    documents, query = ["a fox is an animal", "the lazy search", "no"], "what is a fox"
    alone = []
    for document in documents:
        answer = cohere.ClientV2(KEY, base_url=URL).rerank(model=RANKER, query=query, documents=[document])
        alone.append(answer.results[0].relevance_score)
    assert max(alone) - min(alone) > 1e-4 and all(0 < one < 1 for one in alone), alone
    order = sorted(range(3), key=lambda index: -alone[index])
    ranked = list(coheres(lambda client: client.rerank(model=RANKER, query=query, documents=documents)))
    for results in [*ranked, chained(RANKER, documents, query, 3)]:
        equal([index for index, _ in results], order)
        assert all(abs(score - alone[index]) < 1e-5 for index, score in results), (results, alone)


main()
