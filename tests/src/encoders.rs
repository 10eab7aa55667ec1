//! Models made for embeddings, scores and classes: a batch of texts of many lengths against the rows of transformers, and
//! what a server answers against sentence-transformers, from folders and GGUF files.

use pensieve_laws::Outcome;
use pensieve_plugin_api::{Batch, Output, Outputs, PluginError, Span, Want};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

use crate::{
    artifacts::plugin,
    conformance,
    driver::{Driver, Options, Sequence},
    families::rewritten,
    http::{
        client::{get, post},
        server,
    },
    reference::{EXACT, Reference, distance, fixture},
};

/// A fixture of `encoders/` and the plugin that serves it.
struct Case {
    name: &'static str,
    plugin: &'static str,
    has_gguf: bool,
    gives: Gives,
}

#[derive(Clone, Copy, PartialEq)]
enum Gives {
    Vectors,
    /// Scores of pairs, before a sigmoid.
    Scores,
    /// Logits of labels, before a softmax.
    Classes,
}

use Gives::{Classes, Scores, Vectors};

const CASES: &[Case] = &[
    Case { name: "bert", plugin: "pensieve-bert", has_gguf: true, gives: Vectors },
    Case { name: "bert_rank", plugin: "pensieve-bert", has_gguf: false, gives: Scores },
    Case { name: "xlm_roberta", plugin: "pensieve-bert", has_gguf: true, gives: Vectors },
    Case { name: "xlm_roberta_rank", plugin: "pensieve-bert", has_gguf: true, gives: Scores },
    Case { name: "modern_bert", plugin: "pensieve-bert", has_gguf: true, gives: Vectors },
    Case { name: "modern_bert_classify", plugin: "pensieve-bert", has_gguf: false, gives: Classes },
    Case { name: "distilbert", plugin: "pensieve-bert", has_gguf: false, gives: Vectors },
    Case { name: "distilbert_classify", plugin: "pensieve-bert", has_gguf: false, gives: Classes },
    Case { name: "mpnet", plugin: "pensieve-bert", has_gguf: false, gives: Vectors },
    Case { name: "nomic_bert", plugin: "pensieve-bert", has_gguf: true, gives: Vectors },
    Case { name: "qwen3_embedding", plugin: "pensieve-qwen", has_gguf: true, gives: Vectors },
    Case { name: "qwen3-reranker", plugin: "pensieve-qwen", has_gguf: false, gives: Scores },
    Case { name: "embedding_gemma", plugin: "pensieve-gemma", has_gguf: true, gives: Vectors },
];

impl Case {
    fn fixture(&self) -> String {
        format!("encoders/{}", self.name)
    }

    /// The folder, and the GGUF file if there is one.
    fn checkpoints(&self) -> Vec<PathBuf> {
        let folder = fixture(&self.fixture());
        if self.has_gguf { vec![folder.clone(), folder.join("f32.gguf")] } else { vec![folder] }
    }

    /// The texts as token ids.
    fn texts(&self) -> Vec<Vec<u32>> {
        let reference = Reference::of(&self.fixture());
        let tokens = reference.tokens("tokens");
        let mut tokens = &tokens[..];
        let texts = reference.tokens("lengths").into_iter().map(|len| {
            let (text, rest) = tokens.split_at(len as usize);
            tokens = rest;
            text.to_vec()
        });
        texts.collect()
    }
}

/// The rows of whole texts, computed in one step.
fn rows(driver: &mut Driver, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, PluginError> {
    let width = driver.card.hidden as usize;
    let mut sequences: Vec<Sequence> = Vec::new();
    for text in texts {
        let mut sequence = driver.begin();
        driver.reserve(&mut sequence, text.len() as u32)?;
        sequences.push(sequence);
    }
    let tables: Vec<_> = sequences.iter().map(|sequence| driver.tables(sequence)).collect();
    let (mut tokens, mut positions, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for ((text, sequence), tables) in texts.iter().zip(&sequences).zip(&tables) {
        let (start, len) = (tokens.len() as u32, text.len() as u32);
        tokens.extend(text);
        positions.extend(0..len);
        let (adapter, adapter_scale) = sequence.adapter;
        spans.push(Span {
            sequence: sequence.id,
            start,
            len,
            past: 0,
            want: Want::ALL,
            output: Output::HIDDEN,
            mask: [][..].into(),
            adapter,
            adapter_scale,
            caches: tables[..].into(),
        });
    }
    let batch = Batch { tokens: tokens[..].into(), positions: positions[..].into(), spans: spans[..].into(), top: 0 };
    let mut hidden = vec![f32::NAN; tokens.len() * width];
    let mut outputs = Outputs {
        logits: (&mut [][..]).into(),
        ids: (&mut [][..]).into(),
        scores: (&mut [][..]).into(),
        totals: (&mut [][..]).into(),
        hidden: (&mut hidden[..]).into(),
    };
    driver.model.forward(&batch, &mut outputs).into_result()?;
    drop(tables);
    sequences.into_iter().for_each(|sequence| driver.release(sequence));
    Ok(hidden.chunks_exact(width).map(<[f32]>::to_vec).collect())
}

#[test]
fn every_token_has_the_row_of_transformers_alone_and_in_company() {
    for case in CASES {
        let (texts, expected) = (case.texts(), Reference::of(&case.fixture()).logits("rows"));
        for checkpoint in case.checkpoints() {
            for kernels in ["auto", "generic"] {
                let options = Options::with_settings(format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#));
                let mut driver = Driver::load(&plugin(case.plugin), &checkpoint, &options)
                    .unwrap_or_else(|error| panic!("{}: {error}", checkpoint.display()));
                let together = rows(&mut driver, &texts).unwrap();
                let worst = distance(&together, &expected);
                println!("{} ({kernels}): {worst:.1e}", checkpoint.display());
                assert!(worst <= EXACT, "{} ({kernels}): off by {worst}", checkpoint.display());
                let alone: Vec<_> =
                    texts.iter().flat_map(|text| rows(&mut driver, std::slice::from_ref(text)).unwrap()).collect();
                let apart = distance(&alone, &together);
                assert!(apart <= if kernels == "auto" { 0.0 } else { 1e-5 }, "{}: {apart}", checkpoint.display());
            }
        }
    }
}

/// Checkpoints that were converted from TensorFlow, such as the first BERTs.
#[test]
fn norms_are_read_under_their_old_names_as_well() {
    let folder = rewritten("encoders/bert_rank", |name, tensor| {
        let old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        vec![(old, tensor)]
    });
    let options = Options::with_settings(r#"{"kv": "f32"}"#);
    let mut driver = Driver::load(&plugin("pensieve-bert"), folder.path(), &options).unwrap();
    let texts = CASES[1].texts();
    let worst = distance(&rows(&mut driver, &texts).unwrap(), &Reference::of("encoders/bert_rank").logits("rows"));
    assert!(worst <= EXACT, "off by {worst}");
}

#[test]
fn encoders_obey_their_laws() {
    for case in CASES.iter().filter(|case| case.plugin != "pensieve-qwen") {
        for kernels in ["auto", "generic"] {
            let report = conformance::check(&plugin(case.plugin), &case.fixture(), kernels);
            // Its laws are those of texts, and texts alone are computed like those in company.
            let is_exact = matches!(report.outcome("company"), Some(Outcome::Exact));
            assert!(is_exact || kernels == "generic", "{}\n{report}", case.name);
        }
    }
}

#[test]
fn a_server_answers_as_sentence_transformers_does() {
    let named = CASES.iter().flat_map(|case| case.checkpoints().into_iter().map(move |path| (case, path)));
    let named: Vec<(&Case, String, PathBuf)> = named
        .map(|(case, path)| {
            let form = if path.is_file() { "gguf" } else { "folder" };
            (case, format!("{}-{form}", case.name), path)
        })
        .collect();
    let models = named.iter().map(|(_, id, path)| (id.clone(), path.clone())).collect();
    let plugins = ["pensieve-bert", "pensieve-qwen", "pensieve-gemma", "pensieve-samplers"].map(plugin).to_vec();
    let server = server::Options { plugins, models, ..server::Options::default() }.start();
    for (case, id, path) in &named {
        let pinned = post(server.address, &format!("/v1/models/{id}/pin"), &json!({}));
        assert_eq!(pinned.status(), 200, "a model that writes no text is loaded, too: {pinned:?}");
        let texts = fs::read(fixture(&case.fixture()).join("texts.json")).unwrap();
        let texts: Vec<Value> = serde_json::from_slice(&texts).unwrap();
        let expected = Reference::of(&case.fixture()).logits("vectors");
        let ask = |path: &str, body: Value| {
            let reply = post(server.address, path, &body);
            assert_eq!(reply.status(), 200, "{id}: {reply:?}");
            reply.json()["data"].as_array().unwrap().clone()
        };
        let found: Vec<Vec<f32>> = match case.gives {
            Vectors => ask("/v1/embeddings", json!({"model": id, "input": texts}))
                .iter()
                .map(|one| floats(&one["embedding"]))
                .collect(),
            Classes => ask("/v1/classify", json!({"model": id, "input": texts}))
                .iter()
                .map(|one| floats(&one["probs"]))
                .collect(),
            Scores => {
                let score = |pair: &Value| {
                    let data = ask("/v1/score", json!({"model": id, "text_1": pair[0], "text_2": pair[1]}));
                    vec![data[0]["score"].as_f64().unwrap() as f32]
                };
                texts.iter().map(score).collect()
            }
        };
        let expected: Vec<Vec<f32>> = expected.iter().map(|row| case.gives.activated(row, path.is_file())).collect();
        let worst = distance(&found, &expected);
        println!("{id}: {worst:.1e}");
        assert!(worst <= EXACT, "{id}: off by {worst}");
    }
    lists_say_how_long_texts_may_be(&server);
    let chat = json!({"model": "bert-folder", "messages": [{"role": "user", "content": "hello"}]});
    let refused = post(server.address, "/v1/chat/completions", &chat);
    assert_eq!(refused.status(), 400, "{refused:?}");
}

/// Less than the model's own positions, if `sentence_bert_config.json` says so.
fn lists_say_how_long_texts_may_be(server: &server::Server) {
    let models = get(server.address, "/v1/models").json();
    let bert = models["data"].as_array().unwrap().iter().find(|model| model["id"] == "bert-folder").unwrap().clone();
    assert_eq!(bert["max_model_len"], 152);
    let shown = post(server.address, "/api/show", &json!({"model": "bert-folder"})).json();
    assert_eq!(shown["model_info"]["bert.context_length"], 152);
    let long = json!({"model": "bert-folder", "input": [vec![5; 152], vec![5; 153]]});
    let refused = post(server.address, "/v1/embeddings", &long);
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("input.1: has 153 tokens"), "{refused:?}");
}

impl Gives {
    /// Turns a model's last row into the answer that a client gets. A GGUF file does not say whether vectors are to be
    /// normalized, so that those of all of them are, as in llama.cpp.
    fn activated(self, row: &[f32], is_gguf: bool) -> Vec<f32> {
        match self {
            Vectors if is_gguf => {
                let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
                row.iter().map(|value| value / length).collect()
            }
            Vectors => row.to_vec(),
            Scores => row.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
            Classes => {
                let total: f32 = row.iter().map(|logit| logit.exp()).sum();
                row.iter().map(|logit| logit.exp() / total).collect()
            }
        }
    }
}

fn floats(value: &Value) -> Vec<f32> {
    let values = value.as_array().unwrap_or_else(|| panic!("{value}"));
    values.iter().map(|value| value.as_f64().unwrap() as f32).collect()
}
