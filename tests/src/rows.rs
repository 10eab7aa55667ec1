//! Hidden rows from a checkpoint's folder to the clients' APIs. What transformers computed of the fixtures is logits; as
//! an output layer is linear, those of a pooled row are the pooled logits, and so they check rows of every pooling.

use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Connection, Reply, get, post},
        server::{Options, PATIENCE, Server},
    },
    reference::{EXACT, Reference, fixture},
    scripted,
};

/// The fixture, whose output layer is its own tensor.
const FIXTURE: &str = "families/qwen3";

/// The fixture as a checkpoint of sentence-transformers: pooling, and whether rows are normalized.
fn made_for_embedding(root: &Path, name: &str, pooling: &str, normalize: bool) -> PathBuf {
    let folder = copy(root, name);
    let module = |index: usize, path: &str, kind: &str| json!({"idx": index, "name": index.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")});
    let mut modules = vec![module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")];
    modules.extend(normalize.then(|| module(2, "2_Normalize", "Normalize")));
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    let write = |name: &str, value: Value| fs::write(folder.join(name), value.to_string()).unwrap();
    write("modules.json", json!(modules));
    write("1_Pooling/config.json", json!({"pooling_mode": pooling}));
    let prompts = json!({"prompts": {"query": "find: ", "document": ""}});
    write("config_sentence_transformers.json", prompts);
    folder
}

fn copy(root: &Path, name: &str) -> PathBuf {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture(FIXTURE).join(file), folder.join(file)).unwrap();
    }
    folder
}

/// A server with the fixture under every pooling, as a chat model, and beside a model without rows.
fn serve(root: &Path) -> Server {
    options(root).start()
}

/// A chat model beside one for each pooling and one that normalizes.
pub fn options(root: &Path) -> Options {
    let mut models = vec![("chat".to_owned(), copy(root, "chat"))];
    for (name, pooling) in [("last", "lasttoken"), ("first", "cls"), ("mean", "mean")] {
        models.push((name.to_owned(), made_for_embedding(root, name, pooling, false)));
    }
    models.push(("unit".to_owned(), made_for_embedding(root, "unit", "mean", true)));
    let words = root.join("words");
    scripted::checkpoint(&words, &[("hello", "Hello.")]);
    models.push(("words".to_owned(), words));
    let plugins = vec![plugin("pensieve-qwen"), test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, models, ..Options::default() }
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

fn embeddings(server: &Server, body: &Value) -> Vec<Vec<f32>> {
    let reply = post(server.address, "/v1/embeddings", body);
    assert_eq!(reply.status(), 200, "{reply:?}");
    let answer = reply.json();
    let data = answer["data"].as_array().unwrap();
    assert!(
        data.iter().enumerate().all(|(index, one)| one["index"] == index && one["object"] == "embedding"),
        "{answer}"
    );
    data.iter().map(|one| floats(&one["embedding"])).collect()
}

/// The output layer's product with a row.
fn logits(row: &[f32]) -> Vec<f32> {
    let bytes = fs::read(fixture(FIXTURE).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let head = file.tensor("lm_head.weight").or_else(|_| file.tensor("model.embed_tokens.weight")).unwrap();
    let values: Vec<f32> = head.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let product =
        |weights: &[f32]| weights.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
    values.chunks_exact(row.len()).map(product).collect()
}

/// The bytes of base64.
fn unpacked(text: &str) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = |letter: u8| LETTERS.iter().position(|known| *known == letter).unwrap_or_else(|| panic!("{letter}"));
    let letters: Vec<u8> = text.trim_end_matches('=').bytes().collect();
    let group = |group: &[u8]| {
        let bits = group.iter().fold(0, |all, letter| all << 6 | bits(*letter)) << (6 * (4 - group.len()));
        [bits >> 16, bits >> 8, bits][..group.len() - 1].iter().map(|byte| *byte as u8).collect::<Vec<_>>()
    };
    letters.chunks(4).flat_map(group).collect()
}

fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let sum = |column: usize| rows.iter().map(|row| f64::from(row[column])).sum::<f64>();
    (0..rows[0].len()).map(|column| (sum(column) / rows.len() as f64) as f32).collect()
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn unit(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    row.iter().map(|value| (f64::from(*value) / length) as f32).collect()
}

#[test]
fn rows_are_those_of_transformers_and_reach_every_api() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    rows_are_pooled_as_the_checkpoint_says(&server);
    openais_form_has_its_options(&server);
    texts_get_their_prompts_and_keep_their_order(&server);
    other_apis_give_the_same_vectors(&server);
    documents_are_ranked_by_an_embedding_model(&server);
    streams_go_on_beside_texts(&server);
    many_requests_take_turns_and_leave_room_to_others(&server);
    a_big_text_is_cut_before_it_is_tokenized(&server);
    what_cannot_be_is_said(&server);
    lists_say_what_a_model_is_for(&server);
    let listed = get(server.address, "/v1/requests").json();
    let row = listed["data"].as_array().unwrap().iter().find(|ended| ended["stop_reason"] == "row");
    let row = row.unwrap_or_else(|| panic!("{listed}"));
    assert!(row["context_window"].is_null() && row["input_tokens"].as_u64() > Some(0), "{row}");
    let metrics = get(server.address, "/metrics").text();
    assert!(metrics.contains(r#"pensieve_requests_total{model="unit",outcome="row"}"#), "{metrics}");
}

fn rows_are_pooled_as_the_checkpoint_says(server: &Server) {
    let reference = Reference::of(FIXTURE);
    let (tokens, expected) = (reference.tokens("tokens"), reference.logits("logits"));
    for (model, expected) in
        [("last", expected.last().unwrap().clone()), ("first", expected[0].clone()), ("mean", mean(&expected))]
    {
        // The second time, the last token's row needs only what is not cached.
        for _ in 0..2 {
            let row = embeddings(server, &json!({"model": model, "input": tokens})).remove(0);
            let apart = worst(&logits(&row), &expected);
            println!("{model}: {apart:.2e}");
            assert!(apart <= EXACT, "{model} is off by {apart}");
        }
    }
    let chat = embeddings(server, &json!({"model": "chat", "input": tokens})).remove(0);
    let last = embeddings(server, &json!({"model": "last", "input": tokens})).remove(0);
    assert!(worst(&chat, &unit(&last)) < 1e-6, "a chat model's row is its last one, normalized");
}

fn openais_form_has_its_options(server: &Server) {
    let ask = |more: Value| {
        let mut body = json!({"model": "unit", "input": "a fine text"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.address, "/v1/embeddings", &body)
    };
    let whole = floats(&ask(json!({})).json()["data"][0]["embedding"]);
    assert!(worst(&whole, &unit(&whole)) < 1e-6);
    let coded = ask(json!({"encoding_format": "base64"})).json()["data"][0]["embedding"].clone();
    let coded: Vec<f32> =
        unpacked(coded.as_str().unwrap()).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(coded, whole, "the same to the last bit");
    let cut = ask(json!({"dimensions": 8}));
    assert!(cut.header("warning").is_some_and(|warning| warning.contains("does not say that its vectors may be cut")));
    assert!(worst(&floats(&cut.json()["data"][0]["embedding"]), &unit(&whole[..8])) < 1e-6);
    let usage = ask(json!({})).json()["usage"].clone();
    assert!(usage["prompt_tokens"].as_u64().unwrap() > 0 && usage["prompt_tokens"] == usage["total_tokens"], "{usage}");
}

fn texts_get_their_prompts_and_keep_their_order(server: &Server) {
    let texts: Vec<String> = (0..70).map(|number| format!("text {number} {}", "x ".repeat(number % 7))).collect();
    let together = embeddings(server, &json!({"model": "unit", "input": texts}));
    for number in [0, 33, 69] {
        let alone = embeddings(server, &json!({"model": "unit", "input": texts[number]})).remove(0);
        assert!(worst(&alone, &together[number]) < 1e-5, "text {number}");
    }
    let one = |body: Value| embeddings(server, &body).remove(0);
    let prompted = one(json!({"model": "unit", "input": "words", "prompt_name": "query"}));
    assert!(worst(&prompted, &one(json!({"model": "unit", "input": "find: words"}))) < 1e-6);
    assert_eq!(prompted, one(json!({"model": "unit", "input": "words", "input_type": "search_query"})));
    let plain = one(json!({"model": "unit", "input": "words"}));
    assert_eq!(plain, one(json!({"model": "unit", "input": "words", "input_type": "document"})));
    assert!(worst(&plain, &prompted) > 1e-3);
}

fn other_apis_give_the_same_vectors(server: &Server) {
    let expected = embeddings(server, &json!({"model": "unit", "input": ["one", "two three"]}));
    let both =
        post(server.address, "/api/embed", &json!({"model": "unit:latest", "input": ["one", "two three"]})).json();
    assert_eq!([floats(&both["embeddings"][0]), floats(&both["embeddings"][1])], expected[..]);
    assert!(both["prompt_eval_count"].as_u64().unwrap() > 0 && both["total_duration"].as_u64().unwrap() > 0, "{both}");
    let old = post(server.address, "/api/embeddings", &json!({"model": "unit", "prompt": "one"})).json();
    assert_eq!(floats(&old["embedding"]), expected[0]);
    let loaded = post(server.address, "/api/embed", &json!({"model": "unit", "input": "", "keep_alive": "5m"})).json();
    assert_eq!(loaded["embeddings"], json!([]));
    let content = |text: &str| json!({"content": {"parts": [{"text": text}]}});
    let one = post(server.address, "/v1beta/models/unit:embedContent", &content("one")).json();
    assert_eq!(floats(&one["embedding"]["values"]), expected[0]);
    let requests = json!({"requests": [content("one"), content("two three")]});
    let several = post(server.address, "/v1beta/models/unit:batchEmbedContents", &requests).json();
    assert_eq!(floats(&several["embeddings"][1]["values"]), expected[1]);
}

fn documents_are_ranked_by_an_embedding_model(server: &Server) {
    let documents = json!(["find: the very words", "else", {"text": "something"}]);
    let body = json!({"model": "unit", "query": "the very words", "documents": documents, "top_n": 2, "return_documents": true});
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let ranked = post(server.address, path, &body).json();
        let results = ranked["results"].as_array().unwrap_or_else(|| panic!("{ranked}"));
        assert_eq!((results.len(), &results[0]["index"]), (2, &json!(0)), "{ranked}");
        assert_eq!(results[0]["document"]["text"], "find: the very words");
        let score = |index: usize| results[index]["relevance_score"].as_f64().unwrap();
        assert!(
            (score(0) - 1.0).abs() < 1e-5 && score(0) > score(1),
            "the query's prompt makes the texts equal: {ranked}"
        );
    }
    let bare = post(server.address, "/rerank", &json!({"query": "a", "texts": ["b", "c"], "model": "unit"})).json();
    assert_eq!(bare.as_array().map(Vec::len), Some(2), "{bare}");
    let scores = json!({"model": "unit", "text_1": "the very words", "text_2": ["find: the very words", "else"]});
    let scored = post(server.address, "/v1/score", &scores).json();
    assert!((scored["data"][0]["score"].as_f64().unwrap() - 1.0).abs() < 1e-5, "{scored}");
}

fn streams_go_on_beside_texts(server: &Server) {
    let write = || {
        let body = json!({"model": "unit", "prompt": "a beginning", "max_tokens": 48, "temperature": 0});
        let answer = post(server.address, "/v1/completions", &body).json();
        answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let texts: Vec<String> = (0..64).map(|number| format!("{number} ").repeat(40)).collect();
    let embed = || embeddings(server, &json!({"model": "unit", "input": texts}));
    let (alone, vectors) = (write(), embed());
    std::thread::scope(|scope| {
        let beside = scope.spawn(embed);
        assert_eq!(write(), alone, "a stream does not feel what it shares a step with");
        let beside = beside.join().unwrap();
        let apart = beside.iter().zip(&vectors).map(|(one, other)| worst(one, other)).fold(0.0, f32::max);
        assert!(apart < 1e-5, "{apart}");
    });
    // A client that goes cancels what is left of its texts.
    let many: Vec<&str> = texts.iter().map(String::as_str).cycle().take(2000).collect();
    let body = json!({"model": "unit", "input": many}).to_string();
    let until = |what: &str, is_there: bool| {
        let began = Instant::now();
        while get(server.address, "/metrics").text().contains(what) != is_there {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::yield_now();
        }
    };
    let idle = "pensieve_requests_active{model=\"unit\"} 0\n";
    until(idle, true);
    let mut connection = Connection::open(server.address);
    connection.ask("POST", "/v1/embeddings", &[("content-type", "application/json")], body.as_bytes());
    until(idle, false);
    connection.leave();
    until(idle, true);
    until(r#"pensieve_requests_total{model="unit",outcome="cancelled"}"#, true);
}

/// More texts than a worker may have, from clients that do not wait for each other.
fn many_requests_take_turns_and_leave_room_to_others(server: &Server) {
    let texts: Vec<String> = (0..64).map(|number| format!("{number} of many")).collect();
    let body = json!({"model": "unit", "input": texts});
    let chat = json!({"model": "unit", "prompt": "a beginning", "max_tokens": 4});
    std::thread::scope(|scope| {
        let bulk = || scope.spawn(|| post(server.address, "/v1/embeddings", &body));
        let bulk: Vec<_> = (0..40).map(|_| bulk()).collect();
        for _ in 0..3 {
            assert_eq!(post(server.address, "/v1/completions", &chat).status(), 200);
        }
        for reply in bulk {
            let reply = reply.join().unwrap();
            assert_eq!(reply.status(), 200, "{reply:?}");
        }
    });
}

fn what_cannot_be_is_said(server: &Server) {
    let check = |path: &str, body: Value, status: u16, words: &str| {
        let reply: Reply = post(server.address, path, &body);
        let text = reply.text();
        assert_eq!(reply.status(), status, "{path} {body}: {text}");
        assert!(text.contains(words), "{path} {body}: {text}");
    };
    let long = "word ".repeat(4000);
    let embed = "/v1/embeddings";
    check(embed, json!({"model": "words", "input": "x"}), 400, "gives no hidden rows to make vectors of");
    check(embed, json!({"model": "unit", "input": []}), 400, "input: is empty");
    check(embed, json!({"model": "unit", "input": ""}), 400, "input: should not be empty");
    check(embed, json!({"model": "unit", "input": ["a", &long]}), 400, "input.1: has ");
    check(embed, json!({"model": "unit", "input": [[1, 99999]]}), 400, "input.0: token 99999 is outside");
    check(embed, json!({"model": "unit", "input": "a", "dimensions": 65}), 400, "gives 32 dimensions, not 65");
    check(embed, json!({"model": "unit", "input": "a", "prompt_name": "x"}), 400, "it has document, query");
    check("/v1/rerank", json!({"model": "chat", "query": "a", "documents": ["b"]}), 400, "does not score pairs");
    check("/v1/rerank", json!({"model": "unit", "query": "a", "documents": []}), 400, "documents: is empty");
    check("/v1/classify", json!({"model": "unit", "input": "a"}), 400, "embeds texts and has no classes");
    check("/v1/score", json!({"model": "unit", "text_1": ["a", "b"], "text_2": ["c"]}), 400, "do not pair with 2");
    check(embed, json!({"model": "unit", "input": 12}), 400, "input: should be a text, a list of texts, or token ids");
    // No default model answers for a name that is unknown: its vectors would be of another space.
    let several =
        "there is no model 'text-embedding-3-small', and several models that embed texts are served: last, first,";
    check(embed, json!({"model": "text-embedding-3-small", "input": "a"}), 404, several);
    check("/api/embed", json!({"model": "nomic-embed-text", "input": ""}), 404, "there is no model 'nomic-embed-text'");
    let none = "no model that ranks documents is served; these may be named instead: last, first, mean, unit";
    check("/v1/rerank", json!({"model": "bge-reranker", "query": "a", "documents": ["b"]}), 404, none);
    check("/v1/classify", json!({"model": "x", "input": "a"}), 404, "is served; serve a classifier");
    let cut = post(server.address, "/api/embed", &json!({"model": "unit", "input": long}));
    assert_eq!(cut.status(), 200, "{cut:?}");
    check("/api/embed", json!({"model": "unit", "input": long, "truncate": false}), 400, "input: has ");
    let one_token = json!({"model": "unit", "input": "a", "truncate_prompt_tokens": 1});
    check(embed, one_token.clone(), 400, "input: has no room: what stands around it takes ");
    check(embed, one_token, 400, "in all; allow for more tokens");
    check(embed, json!({"model": "unit", "input": [[]]}), 400, "input.0: is an empty list of token ids");
    check(
        embed,
        json!({"model": "unit", "input": ["a", null]}),
        400,
        "input.1: should be a text or token ids, not null",
    );
    check("/v1/rerank", json!({"model": "words", "query": "a", "documents": ["b"]}), 400, "serve a reranker");
    check(embed, json!({"model": "unit:poet", "input": "a"}), 404, "model 'unit' has no adapter 'poet' (it has: none)");
    ollamas_form_has_its_own(server, &check);
    check_google(server);
    let warned = post(server.address, embed, &json!({"model": "chat", "input": "x"}));
    assert!(warned.header("warning").is_some_and(|warning| warning.contains("was made to write text")), "{warned:?}");
    let fields = json!({"model": "unit", "input": "x", "user": "me", "late_chunking": true, "dimensions": null});
    let warned = post(server.address, embed, &fields);
    assert!(warned.header("warning").is_some_and(|warning| warning.contains("late_chunking: this server does not")));
    assert!(!warned.header("warning").is_some_and(|warning| warning.contains("user")), "{warned:?}");
}

fn ollamas_form_has_its_own(server: &Server, check: &dyn Fn(&str, Value, u16, &str)) {
    let vectors = |input: Value| {
        let reply = post(server.address, "/api/embed", &json!({"model": "unit", "input": input}));
        assert_eq!(reply.status(), 200, "{input}: {reply:?}");
        reply.json()["embeddings"].as_array().unwrap().len()
    };
    // Only a text by itself asks for nothing if it is empty.
    assert_eq!([json!(""), json!([]), json!([""]), json!(["a", ""])].map(vectors), [0, 0, 1, 2]);
    let several = json!({"model": "unit", "prompt": ["a", "b"]});
    check("/api/embeddings", several, 400, "prompt: should be one text, not a list");
    for unknown in [json!({"model": "unit:poet"}), json!({"model": "nomic-embed-text", "prompt": ""})] {
        check("/api/embeddings", unknown, 404, "model");
    }
    let own = |own: Value| json!({"model": "unit", "input": "a", "pensieve": own});
    check("/api/embed", own(json!(5)), 400, "pensieve: should be an object, not 5");
    check(
        "/api/embed",
        own(json!({"seed": 5})),
        400,
        "pensieve.seed: unknown field; 'prompt_name', 'input_type', 'task'",
    );
    check(
        "/api/embed",
        own(json!({"prompt_name": "x"})),
        400,
        "pensieve.prompt_name: 'unit' has no prompt of that name",
    );
    let options = json!({"model": "unit", "input": "a", "options": {"num_ctx": 4096, "temperature": 0, "magic": 1}});
    let warned = post(server.address, "/api/embed", &options);
    let warning = warned.header("warning").unwrap_or_default();
    assert!(warning.contains("options.magic: this server does not") && !warning.contains("num_ctx"), "{warned:?}");
}

fn check_google(server: &Server) {
    let content = json!({"parts": [{"text": "a"}]});
    let one = json!({"content": content, "model": "models/unit", "outputDimensionality": 8, "novelty": 1});
    let reply = post(server.address, "/v1beta/models/unit:batchEmbedContents", &json!({"requests": [one]}));
    // There is a header for each warning.
    let warning = format!("{:?}", reply.head);
    assert!(warning.contains("requests.0.novelty: this server does not"), "{reply:?}");
    assert!(warning.contains("outputDimensionality: model 'unit' does not say"), "{reply:?}");
    assert!(!warning.contains("requests.0.model"), "{reply:?}");
}

/// Only what decides a vector is tokenized of a text that is cut: the whole would take seconds and a gigabyte.
fn a_big_text_is_cut_before_it_is_tokenized(server: &Server) {
    let words = |count: usize| "a word and another ".repeat(count);
    let ask = |text: &str, more: Value| {
        let mut body = json!({"model": "unit", "input": [text, "short"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let began = Instant::now();
        let reply = post(server.address, "/v1/embeddings", &body);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        reply
    };
    let expected = ask(&words(1 << 10), json!({"truncate_prompt_tokens": -1})).json();
    let big = ask(&words(1 << 20), json!({"truncate_prompt_tokens": -1}));
    assert_eq!(big.status(), 200, "{big:?}");
    let vectors = |answer: &Value| [0, 1].map(|index| floats(&answer["data"][index]["embedding"]));
    for (one, other) in vectors(&big.json()).iter().zip(&vectors(&expected)) {
        assert!(worst(one, other) < 1e-5);
    }
    assert_eq!(big.json()["usage"], expected["usage"]);
    // Few tokens of many bytes are looked for in more of the text.
    let spaced = ask(&format!("{}end", " ".repeat(16 << 10)), json!({"truncate_prompt_tokens": 16}));
    assert_eq!(spaced.status(), 200, "{spaced:?}");
    let refused = ask(&words(8 << 10), json!({}));
    assert!(refused.status() == 400 && refused.text().contains("input.0: has more than "), "{refused:?}");
    let refused = ask(&words(1 << 20), json!({}));
    assert!(refused.status() == 400 && refused.text().contains("input.0: has at least "), "{refused:?}");
}

fn lists_say_what_a_model_is_for(server: &Server) {
    let show = |model: &str| post(server.address, "/api/show", &json!({"model": model})).json();
    assert_eq!(show("unit")["capabilities"], json!(["completion", "tools", "embedding", "logprobs"]));
    assert_eq!(show("unit")["model_info"]["qwen.embedding_length"], 32);
    assert_eq!(show("chat")["capabilities"], json!(["completion", "tools", "logprobs"]));
    let models = get(server.address, "/v1/models").json();
    let unit = models["data"].as_array().unwrap().iter().find(|model| model["id"] == "unit").unwrap().clone();
    assert_eq!(unit["capabilities"], json!(["completion", "tools", "embedding", "logprobs"]));
}
