//! The sampling stages in the real loader: a chain as an engine runs it, and which chain a request gets.

use pensieve_plugin_api::{Candidates, ErrorCode, History, StageBox};
use pensieve_worker::plugin::LoadedPlugin;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    checkpoints::bigram,
    http::{
        client::post,
        server::{Options, Server},
    },
    scripted,
};

fn chain(stages: &[(&str, &str)], seed: u64) -> Vec<StageBox> {
    let plugin = LoadedPlugin::open(&plugin("pensieve-samplers")).unwrap();
    let stage = |(name, parameters): &(&str, &str)| {
        plugin.sampler(name).unwrap().create((*parameters).into(), 1000, seed).into_result().unwrap()
    };
    stages.iter().map(stage).collect()
}

/// Runs the chain on logits that fall by a tenth from token 0 on.
fn pick(chain: &mut [StageBox], history: &[u32]) -> (Option<u32>, usize) {
    let mut ids: Vec<u32> = (0..1000).collect();
    let mut logits: Vec<f32> = (0..1000).map(|id| id as f32 * -0.1).collect();
    let mut candidates =
        Candidates { ids: ids.as_mut_slice().into(), logits: logits.as_mut_slice().into(), len: 1000, sorted: false };
    let history = History { tokens: history.into(), prompt: 0 };
    for stage in chain {
        if let Some(token) = stage.sample(&mut candidates, history).into_result().unwrap().into_option() {
            return (Some(token), candidates.len);
        }
    }
    (None, candidates.len)
}

#[test]
fn a_chain_narrows_and_picks_across_the_boundary() {
    let stages = [("top_k", r#"{"k": 50}"#), ("top_p", r#"{"p": 0.5}"#), ("seeded", "{}")];
    let picks = |seed| {
        let mut chain = chain(&stages, seed);
        (0..200).map(|_| pick(&mut chain, &[])).collect::<Vec<_>>()
    };
    let (first, again, other) = (picks(7), picks(7), picks(8));
    assert_eq!(first, again, "one seed, one text");
    assert_ne!(first, other, "another seed, another text");
    // The first seven tokens have half of the mass of a geometric series with ratio e^-0.1.
    assert!(first.iter().all(|(token, left)| token.is_some_and(|token| token < 7) && *left == 7), "{first:?}");
    let distinct: std::collections::HashSet<_> = first.iter().map(|(token, _)| token).collect();
    assert!(distinct.len() > 3, "{distinct:?}");
}

#[test]
fn penalties_see_the_history() {
    let mut chain = chain(&[("penalties", r#"{"presence": 2}"#), ("greedy", "{}")], 0);
    assert_eq!(pick(&mut chain, &[]).0, Some(0));
    assert_eq!(pick(&mut chain, &[0, 1, 2]).0, Some(3));
}

#[test]
fn a_wrong_parameter_is_an_error_that_names_it() {
    let plugin = LoadedPlugin::open(&plugin("pensieve-samplers")).unwrap();
    let create = |name: &str, parameters: &str| {
        plugin.sampler(name).unwrap().create(parameters.into(), 1000, 0).into_result().err().unwrap()
    };
    for (name, parameters, named) in [
        ("top_p", r#"{"p": 2}"#, "p"),
        ("top_k", r#"{"kk": 2}"#, "kk"),
        ("temperature", r#"{"temperature": "hot"}"#, "temperature"),
        ("mirostat", "[]", "mirostat"),
    ] {
        let error = create(name, parameters);
        assert_eq!(error.code, ErrorCode::INVALID, "{error}");
        assert!(error.message.contains(name) && error.message.contains(named), "{error}");
    }
    assert!(plugin.sampler("top_z").is_err());
}

/// The texts for one prompt over several seeds, with these fields in the request and the model's configuration.
fn texts(server: &Server, model: &str, more: &Value) -> BTreeSet<String> {
    let text = |seed: u64| {
        let mut body = json!({ "model": model, "prompt": "1 2 3 4 5", "max_tokens": 12, "seed": seed });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = post(server.address, "/v1/completions", &body);
        assert_eq!(reply.status(), 200, "{reply:?}");
        reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    (0..6).map(text).collect()
}

#[test]
fn a_requests_chain_goes_before_its_fields_and_both_before_the_configuration() {
    let checkpoint = bigram(512, 1024);
    let source = checkpoint.path().display();
    let config = format!(
        "[[models]]\nid = \"plain\"\nsource = \"{source}\"\n\
         [[models]]\nid = \"cold\"\nbase = \"plain\"\nsamplers = [{{ sampler = \"temperature\", temperature = 0.001 }}, \"seeded\"]\n"
    );
    let plugins = vec![plugin("bigram"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    let hot = json!({ "temperature": 2.0 });
    assert!(texts(&server, "plain", &hot).len() > 1, "the model leaves nothing to chance");
    let best = texts(&server, "plain", &json!({ "temperature": 0 }));
    assert_eq!(best.len(), 1);
    // The configured chain applies if the client says nothing, and to everything that it does not name.
    assert_eq!(texts(&server, "cold", &json!({})), best);
    assert_eq!(texts(&server, "cold", &json!({ "top_p": 0.99 })), best);
    // A field replaces its stage; a chain in the request replaces everything.
    assert!(texts(&server, "cold", &hot).len() > 1);
    let own = json!({ "temperature": 2.0, "pensieve": { "samplers": ["greedy"] } });
    assert_eq!(texts(&server, "cold", &own), best);
    let wild = json!({ "pensieve": { "samplers": [{ "sampler": "temperature", "temperature": 2.0 }, "seeded"] } });
    assert!(texts(&server, "cold", &wild).len() > 1);
}

#[test]
fn a_wrong_stage_is_told_by_its_field_and_a_wrong_configuration_by_the_server() {
    let checkpoint = bigram(512, 1024);
    let source = checkpoint.path().display();
    let config = format!(
        "[[models]]\nid = \"plain\"\nsource = \"{source}\"\n\
         [[models]]\nid = \"odd\"\nbase = \"plain\"\nsamplers = [\"greedier\"]\n"
    );
    let plugins = vec![plugin("bigram"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    assert!(!texts(&server, "plain", &json!({})).is_empty());
    let ask = |model: &str, samplers: Value, stream: bool| {
        let body = json!({ "model": model, "prompt": "1 2 3", "max_tokens": 4, "stream": stream,
            "pensieve": { "samplers": samplers } });
        post(server.address, "/v1/completions", &body)
    };
    for stream in [false, true] {
        let refused = ask("plain", json!(["greedy", { "sampler": "top_k", "kk": 4 }]), stream);
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status(), &error["param"]), (400, &json!("pensieve.samplers.1")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("'kk'"), "{error}");
        let unknown = ask("plain", json!(["greedier"]), stream);
        let error = unknown.json()["error"].clone();
        assert_eq!((unknown.status(), &error["param"]), (400, &json!("pensieve.samplers.0")), "{error}");
        // Here the client is not at fault.
        let odd = ask("odd", Value::Null, stream);
        let error = odd.json()["error"].clone();
        assert_eq!((odd.status(), &error["param"]), (500, &Value::Null), "{error}");
        assert!(error["message"].as_str().unwrap().contains("'greedier'"), "{error}");
    }
    let log = server.stop();
    assert!(log.contains("model 'odd': no sampler is called 'greedier' (installed: "), "{log}");
}

#[test]
fn a_sampler_that_does_not_end_is_named_and_barred_and_other_streams_go_on() {
    let checkpoint = bigram(512, 1024);
    let config =
        format!("[[models]]\nid = \"plain\"\nsource = \"{}\"\nstep_timeout = \"12s\"\n", checkpoint.path().display());
    for making in [false, true] {
        let plugins = vec![plugin("bigram"), plugin("pensieve-samplers"), test_plugin("faults")];
        let server = Options { plugins, config: config.clone(), ..Options::default() }.start();
        let address = server.address;
        let ask = move |sampler: Value, tokens: u32| {
            let body = json!({ "model": "plain", "prompt": "1 2 3 4 5", "max_tokens": tokens,
                "pensieve": { "samplers": [{ "sampler": "temperature", "temperature": 0.5 }, sampler] } });
            post(address, "/v1/completions", &body)
        };
        let text = move || {
            let reply = ask(json!("greedy"), 500);
            assert_eq!(reply.status(), 200, "{reply:?}");
            reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        let alone = text();
        let began = Instant::now();
        let others: Vec<_> = (0..4).map(|_| thread::spawn(text)).collect();
        let endless = json!({ "sampler": "endless", "made": i32::from(making) });
        for expected in ["'endless' did not end within 1 s", "'endless' is barred"] {
            let error = ask(endless.clone(), 4);
            assert!(error.status() == 500 && error.text().contains(expected), "{error:?}");
        }
        others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), alone));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let health = server.get("/health").json();
        let model = &health["models"][0];
        assert_eq!((&model["loads"], &model["deaths"]), (&json!(1), &json!(0)), "{health:#}");
        let log = server.stop();
        assert!(log.contains("sampling stage 'endless' did not end"), "{log}");
    }
}

#[test]
fn a_device_hands_over_its_best_tokens_where_no_other_matters() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("scripted");
    scripted::checkpoint(&source, &[("", "It is sunny.")]);
    let options = "options = { device = \"test:0\" }";
    let config = format!("[[models]]\nid = \"scripted\"\nsource = \"{}\"\n{options}\n", source.display());
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    let ask = |more: Value| {
        let mut body =
            json!({ "model": "scripted", "temperature": 0, "messages": [{ "role": "user", "content": "so?" }] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.address, "/v1/chat/completions", &body)
    };
    let reply = ask(json!({})).json();
    assert_eq!(reply["choices"][0]["message"]["content"], "It is sunny.", "{reply}");
    // This model's device rejects everything that needs more.
    for more in [
        json!({ "temperature": 1 }),
        json!({ "logprobs": true }),
        json!({ "response_format": { "type": "json_object" } }),
    ] {
        let reply = ask(more.clone());
        assert!(reply.status() == 400 && reply.text().contains("whole logits cross from test:0"), "{more}: {reply:?}");
    }
}
