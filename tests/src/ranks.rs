//! Documents ranked by cross-encoders and by a decoder that was made for it, and texts put into classes, by a server.

use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    artifacts::plugin,
    driver::{self, Driver},
    families::rewritten,
    http::{
        client::{Reply, post},
        server::{Options, Server},
    },
    reference::{EXACT, fixture},
};

const QUERY: &str = "what is a fox";
const DOCUMENTS: [&str; 4] = ["a fox is an animal", "the lazy search", "no", "the quick fox searched and searched"];
/// Rankers, and the longest pair that each reads.
const RANKERS: [(&str, u64); 3] = [("bert_rank", 160), ("xlm_roberta_rank", 160), ("qwen3-reranker", 1024)];

fn serve(more: &[(&str, &Path)]) -> Server {
    let names = RANKERS.iter().map(|(name, _)| *name).chain(["modern_bert_classify"]);
    let mut models: Vec<_> = names.map(|name| (name.to_owned(), fixture(&format!("encoders/{name}")))).collect();
    models.extend(more.iter().map(|(id, path)| ((*id).to_owned(), path.to_path_buf())));
    Options { plugins: ["pensieve-bert", "pensieve-qwen"].map(plugin).to_vec(), models, ..Options::default() }.start()
}

fn ask(server: &Server, path: &str, body: &Value) -> Reply {
    let reply = post(server.address, path, body);
    assert_eq!(reply.status(), 200, "{path} {body}: {reply:?}");
    reply
}

/// The scores of documents, in their order, and the tokens read.
fn scores(server: &Server, model: &str, documents: &[&str], more: &Value) -> (Vec<f32>, u64) {
    let mut body = json!({"model": model, "text_1": QUERY, "text_2": documents});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = ask(server, "/v1/score", &body).json();
    let scores = answer["data"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap() as f32);
    (scores.collect(), answer["usage"]["prompt_tokens"].as_u64().unwrap())
}

#[test]
fn documents_are_ranked_by_models_made_for_it() {
    let server = serve(&[]);
    for (model, context) in RANKERS {
        the_best_come_first(&server, model);
        a_document_is_cut_at_its_end_alone(&server, model, context);
    }
    let warned = ask(
        &server,
        "/v1/rerank",
        &json!({"model": "bert_rank", "query": "a", "documents": ["b"], "instruction": "find foxes"}),
    );
    let warning = warned.header("warning").unwrap_or_default().to_owned();
    assert!(warning.contains("instruction: model 'bert_rank' takes none"), "{warned:?}");
    let unnamed = post(server.address, "/v1/rerank", &json!({"query": "a", "documents": ["b"]}));
    assert_eq!(unnamed.status(), 400, "{unnamed:?}");
    assert!(
        unnamed
            .text()
            .contains("several models that rank documents are served: bert_rank, xlm_roberta_rank, qwen3-reranker"),
        "{unnamed:?}"
    );
}

/// The server repeats the query and the instruction for each pair in its memory.
#[test]
fn what_stands_around_documents_is_bounded() {
    let server = serve(&[]);
    let check = |path: &str, body: Value, words: &str| {
        let began = Instant::now();
        let refused = post(server.address, path, &body);
        assert!(refused.status() == 400 && refused.text().contains(words), "{refused:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{path} took {:?}", began.elapsed());
    };
    let many = vec!["a"; 2000];
    for model in ["qwen3-reranker", "bert_rank"] {
        let body = json!({"model": model, "query": "q", "instruction": "word ".repeat(52_428), "documents": many});
        check("/v1/rerank", body, "instruction: has 262140 bytes, more than 16384");
        let body = json!({"model": model, "query": "q ".repeat(20_000), "documents": many});
        check("/v1/rerank", body, "the documents, each with its query and instruction, take ");
        // It leaves no room, which the first document shows.
        let body = json!({"model": model, "query": "what is a fox ".repeat(500), "documents": many});
        check("/v1/rerank", body, "documents.0: has no room: what stands around it takes ");
        let body = json!({"model": model, "query": "q".repeat(4 << 20), "documents": ["a"]});
        check("/v1/rerank", body, "documents.0: has no room: what stands around it takes 4194");
    }
    let body = json!({"model": "qwen3-reranker", "query": "q", "instruction": "find ".repeat(3000), "documents": many});
    check("/v1/rerank", body, "shorten query or the instruction");
    // An unknown adapter is an error as in chats, and no other model's answer.
    let body = json!({"model": "bert_rank:poet", "query": "q", "documents": ["a"]});
    let refused = post(server.address, "/v1/rerank", &body);
    assert!(
        refused.status() == 404 && refused.text().contains("model 'bert_rank' has no adapter 'poet' (it has: none)")
    );
}

fn the_best_come_first(server: &Server, model: &str) {
    let (alone, _) = scores(server, model, &DOCUMENTS, &json!({}));
    let mut order: Vec<usize> = (0..DOCUMENTS.len()).collect();
    order.sort_by(|one, other| alone[*other].total_cmp(&alone[*one]));
    assert!(alone[order[0]] - alone[order[3]] > 1e-4, "{model}: {alone:?}");
    for top in [4, 2] {
        let body =
            json!({"model": model, "query": QUERY, "documents": DOCUMENTS, "top_n": top, "return_documents": true});
        let answer = ask(server, "/v1/rerank", &body).json();
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), top, "{model}: {answer}");
        for (result, index) in results.iter().zip(&order) {
            assert_eq!((&result["index"], &result["document"]["text"]), (&json!(index), &json!(DOCUMENTS[*index])));
            let score = result["relevance_score"].as_f64().unwrap() as f32;
            assert!((score - alone[*index]).abs() < 1e-5, "{model}: {answer}");
        }
    }
}

/// The template's end stays behind a document that is cut: the score is that of the part that is left.
fn a_document_is_cut_at_its_end_alone(server: &Server, model: &str, context: u64) {
    let kept = DOCUMENTS[0];
    let (expected, tokens) = scores(server, model, &[kept], &json!({}));
    let long = format!("{kept} {}", "the lazy search for the quick fox ended, and ".repeat(300));
    let (cut, read) = scores(server, model, &[&long], &json!({"truncate_prompt_tokens": tokens}));
    assert_eq!(read, tokens, "{model}");
    assert!((cut[0] - expected[0]).abs() < 1e-5, "{model}: {cut:?} is not {expected:?}");
    let (whole, read) = scores(server, model, &[&long], &json!({}));
    assert_eq!(read, context, "{model}");
    let (named, _) = scores(server, model, &[&long], &json!({"truncate_prompt_tokens": context}));
    assert!((whole[0] - named[0]).abs() < 1e-5, "{model}: {whole:?} is not {named:?}");
    let body = json!({"model": model, "text_1": QUERY, "text_2": long, "truncate": false});
    let refused = post(server.address, "/v1/score", &body);
    assert!(refused.status() == 400 && refused.text().contains("text_2: has "), "{model}: {refused:?}");
    let body = json!({"model": model, "text_1": long, "text_2": kept});
    let refused = post(server.address, "/v1/score", &body);
    assert!(refused.status() == 400 && refused.text().contains("text_2: has no room"), "{model}: {refused:?}");
}

/// A Qwen with a row of `score` for each label, which are the first of its output layer's.
#[test]
fn classes_have_the_labels_of_the_checkpoint() {
    let labels = ["good", "bad", "odd"];
    let folder = rewritten("encoders/qwen3-reranker", |name, (shape, data)| {
        let table = (name.to_owned(), (shape.clone(), data.clone()));
        if name != "model.embed_tokens.weight" {
            return vec![table];
        }
        let rows = data[..4 * labels.len() * shape[1]].to_vec();
        vec![table, ("score.weight".to_owned(), (vec![labels.len(), shape[1]], rows))]
    });
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
    config["id2label"] = json!({"0": labels[0], "1": labels[1], "2": labels[2]});
    fs::write(&path, config.to_string()).unwrap();
    let server = serve(&[("decoder", folder.path())]);

    let tokens = [5, 17, 40, 66, 8];
    let options = driver::Options::with_settings(r#"{"kv": "f32"}"#);
    let logits = Driver::load(&plugin("pensieve-qwen"), folder.path(), &options).unwrap().logits(&tokens).unwrap();
    let raised: Vec<f32> = logits[tokens.len() - 1][..labels.len()].iter().map(|logit| logit.exp()).collect();
    let expected: Vec<f32> = raised.iter().map(|one| one / raised.iter().sum::<f32>()).collect();
    let probabilities = |answer: &Value| -> Vec<f32> {
        answer["data"][0]["probs"].as_array().unwrap().iter().map(|one| one.as_f64().unwrap() as f32).collect()
    };
    let answer = ask(&server, "/v1/classify", &json!({"model": "decoder", "input": [tokens]})).json();
    let apart = probabilities(&answer).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart <= EXACT, "{answer}: off by {apart}");

    for (model, input) in [("decoder", "the quick fox"), ("modern_bert_classify", "what is the lazy fox searching for")]
    {
        let answer = ask(&server, "/v1/classify", &json!({"model": model, "input": input})).json();
        let found = probabilities(&answer);
        let best = (0..3).max_by(|one, other| found[*one].total_cmp(&found[*other])).unwrap();
        assert_eq!((&answer["data"][0]["label"], &answer["data"][0]["num_classes"]), (&json!(labels[best]), &json!(3)));
        assert!((found.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{answer}");
    }
    let refused = post(server.address, "/v1/rerank", &json!({"model": "decoder", "query": "a", "documents": ["b"]}));
    assert!(refused.status() == 400 && refused.text().contains("does not score pairs"), "{refused:?}");
}
