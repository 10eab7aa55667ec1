//! A third-party family whose GGUF architecture, pre-tokenizer, tool calls and reasoning format no shipped model has
//! (`tests/plugins/newcomer.rs`): neither the SDK nor the server knows any of them, and its model is served like
//! others.

use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Incoming, post},
        server::{Options, Server},
    },
};

/// The tokens that follow each of these words. A token has one successor, so answers do not share tokens.
const ANSWERS: [(&str, &[&str]); 4] = [
    ("tell-weather", &["I ask.", "<<ask ", "get_weather", " :: {", "days:", "2,", "place:~", "Bern~}", ">>"]),
    ("tell-thoughts", &["(thinks: ", "hm, hm", " :thinks)", "Yes."]),
    // A parameter that the tool does not have.
    ("tell-nonsense", &["<<", "ask get_weather :: {", "town:~Bern~}>>"]),
    // Half an opener, and unmatched closers.
    ("tell-rubbish", &["a < b", " >> c", " :thinks) }", "~"]),
];

/// Logits of a token's successor, and of closing tokens, for when a grammar forbids the successor or there is none.
const FOLLOWS: f32 = 60.0;
const CLOSES: [(&str, f32); 4] = [("<end>", 5.0), ("~", 4.0), ("}", 3.0), (">", 2.0)];

const TEMPLATE: &str = "{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}{% for message in messages %}{% if not loop.first \
    %}\n{% endif %}{{ message.role }}: {{ message.content or '' }}{% for call in message.tool_calls or [] %}<<ask {{ \
    call.function.name }} :: {{ call.function.arguments | tojson }}>>{% endfor %}{% endfor %}";

/// The letters for single bytes in byte-level BPE vocabularies, in byte order.
fn letters() -> Vec<String> {
    let is_letter = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let letter = |byte: u32| if is_letter(byte) { Some(byte) } else { others.next() };
    (0..256).map(letter).map(|code| char::from_u32(code.unwrap()).unwrap().to_string()).collect()
}

/// The vocabulary and, as rows, the successor of each token.
fn table() -> (Vec<String>, Vec<f32>) {
    let letters = letters();
    let spelled = |text: &&str| text.bytes().map(|byte| letters[usize::from(byte)].clone()).collect::<String>();
    let chains: Vec<Vec<String>> =
        ANSWERS.iter().map(|(word, said)| std::iter::once(word).chain(*said).map(spelled).collect()).collect();
    let mut tokens = letters.clone();
    tokens.push("<end>".into());
    for token in chains.iter().flatten().filter(|token| token.chars().count() > 1) {
        assert!(!tokens.contains(token), "{token} has two successors");
        tokens.push(token.clone());
    }
    let id: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let mut rows = vec![0.0; tokens.len() * tokens.len()];
    for row in rows.chunks_exact_mut(tokens.len()) {
        CLOSES.iter().for_each(|(token, logit)| row[id[token]] = *logit);
    }
    for chain in &chains {
        for pair in chain.windows(2) {
            rows[id[pair[0].as_str()] * tokens.len() + id[pair[1].as_str()]] = FOLLOWS;
        }
    }
    (tokens, rows)
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Writes a GGUF file of that architecture.
fn write_gguf(path: &Path, architecture: &str) {
    const UINT32: u32 = 4;
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    const INT32: u32 = 5;
    let (tokens, rows) = table();
    let entry = |key: &str, of: u32, value: &[u8]| [&text(key)[..], &of.to_le_bytes(), value].concat();
    let list =
        |of: u32, len: usize, items: Vec<u8>| [&of.to_le_bytes()[..], &(len as u64).to_le_bytes(), &items].concat();
    let kind = |token: &String| if token == "<end>" { 3_i32 } else { 1 };
    let end = tokens.iter().position(|token| token == "<end>").unwrap() as u32;
    let entries = [
        entry("general.architecture", STRING, &text(architecture)),
        entry(&format!("{architecture}.memory.reach"), UINT32, &4096_u32.to_le_bytes()),
        entry("tokenizer.ggml.model", STRING, &text("gpt2")),
        entry("tokenizer.ggml.pre", STRING, &text("newcomer-hyphens")),
        entry(
            "tokenizer.ggml.tokens",
            ARRAY,
            &list(STRING, tokens.len(), tokens.iter().flat_map(|token| text(token)).collect()),
        ),
        entry(
            "tokenizer.ggml.token_type",
            ARRAY,
            &list(INT32, tokens.len(), tokens.iter().flat_map(|token| kind(token).to_le_bytes()).collect()),
        ),
        entry("tokenizer.ggml.merges", ARRAY, &list(STRING, 0, Vec::new())),
        entry("tokenizer.ggml.eos_token_id", UINT32, &end.to_le_bytes()),
        entry("tokenizer.chat_template", STRING, &text(TEMPLATE)),
    ];
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend(1_u64.to_le_bytes());
    file.extend((entries.len() as u64).to_le_bytes());
    file.extend(entries.concat());
    file.extend(text("follows.weight"));
    file.extend(2_u32.to_le_bytes());
    (0..2).for_each(|_| file.extend((tokens.len() as u64).to_le_bytes()));
    // F32, at the start of the data.
    file.extend(0_u32.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(rows.iter().flat_map(|logit| logit.to_le_bytes()));
    fs::write(path, file).unwrap();
}

fn serve(root: &Path) -> Server {
    let model = |architecture: &str| -> (String, PathBuf) {
        let path = root.join(format!("{architecture}.gguf"));
        write_gguf(&path, architecture);
        (architecture.to_owned(), path)
    };
    let models = vec![model("newcomer"), model("newcomer-mute")];
    // The shipped families are installed, too, and none of them claims its files.
    let plugins = vec![test_plugin("newcomer"), plugin("pensieve-llama"), plugin("pensieve-samplers")];
    Options { plugins, models, ..Options::default() }.start()
}

fn request(model: &str, word: &str, max_tokens: u32, stream: bool) -> Value {
    let parameters = json!({
        "type": "object", "required": ["place"], "additionalProperties": false,
        "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    });
    json!({
        "model": model, "messages": [{"role": "user", "content": word}], "temperature": 0, "max_tokens": max_tokens,
        "stream": stream, "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
    })
}

/// An answer, whole or assembled from its stream.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    text: String,
    thoughts: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    finish: String,
}

impl Answer {
    fn add(&mut self, message: &Value) {
        self.text += message["content"].as_str().unwrap_or_default();
        self.thoughts += message["reasoning_content"].as_str().unwrap_or_default();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            if let Some(name) = function["name"].as_str() {
                self.calls.push((name.to_owned(), String::new()));
            }
            let (_, arguments) = self.calls.last_mut().expect("a name before its arguments");
            *arguments += function["arguments"].as_str().unwrap_or_default();
        }
    }

    /// The arguments of the only call.
    fn arguments(&self) -> Value {
        assert!(self.calls.len() == 1 && self.calls[0].0 == "get_weather", "{self:?}");
        serde_json::from_str(&self.calls[0].1).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The answer, which must be the same streamed, and the number of pieces in which the stream's arguments came.
fn ask(server: &Server, model: &str, word: &str, max_tokens: u32) -> (Answer, usize) {
    const CHAT: &str = "/v1/chat/completions";
    let reply = post(server.address, CHAT, &request(model, word, max_tokens, false));
    assert_eq!(reply.status(), 200, "{reply:?}");
    let choice = &reply.json()["choices"][0];
    let mut whole = Answer { finish: choice["finish_reason"].as_str().unwrap().to_owned(), ..Answer::default() };
    whole.add(&choice["message"]);
    let (mut streamed, mut pieces) = (Answer::default(), 0);
    let stream = Incoming::open(server.address, CHAT, &[], &request(model, word, max_tokens, true));
    for event in stream.events().iter().filter(|event| event.data != "[DONE]") {
        let chunk = &event.json()["choices"][0];
        streamed.add(&chunk["delta"]);
        let has_arguments = |call: &Value| call["function"]["arguments"].as_str().is_some_and(|text| !text.is_empty());
        pieces += usize::from(chunk["delta"]["tool_calls"].as_array().into_iter().flatten().any(has_arguments));
        streamed.finish += chunk["finish_reason"].as_str().unwrap_or_default();
    }
    assert_eq!(streamed, whole, "{model}: {word}");
    (whole, pieces)
}

#[test]
fn a_family_that_nobody_knows_brings_its_files_its_words_and_its_calls() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    let (answer, pieces) = ask(&server, "newcomer", "tell-weather", 100);
    assert_eq!(answer.arguments(), json!({"place": "Bern", "days": 2}));
    assert_eq!((answer.text.as_str(), answer.finish.as_str()), ("I ask.", "tool_calls"));
    assert!(pieces > 1, "the arguments came in {pieces} pieces");
    let (answer, _) = ask(&server, "newcomer", "tell-thoughts", 100);
    assert_eq!((answer.thoughts.trim(), answer.text.as_str(), answer.finish.as_str()), ("hm, hm", "Yes.", "stop"));

    // "user: " letter by letter and the word whole, as the pre-tokenizer does not split at the hyphen and the
    // vocabulary has no "tell".
    let plain = json!({"model": "newcomer", "messages": [{"role": "user", "content": "tell-thoughts"}]});
    let reply = post(server.address, "/v1/chat/completions", &plain).json();
    assert_eq!(reply["usage"]["prompt_tokens"], "user: ".len() + 1, "{reply}");

    // The card makes the difference: the same model with a card that does not declare the format writes it as text.
    let (mute, _) = ask(&server, "newcomer-mute", "tell-weather", 100);
    assert_eq!(mute.text, "I ask.<<ask get_weather :: {days:2,place:~Bern~}>>");
    assert!(mute.calls.is_empty() && mute.finish == "stop", "{mute:?}");
    let (mute, _) = ask(&server, "newcomer-mute", "tell-thoughts", 100);
    assert_eq!((mute.text.as_str(), mute.thoughts.as_str()), ("(thinks: hm, hm :thinks)Yes.", ""));
}

#[test]
fn malformed_and_truncated_calls_of_such_a_family_end_as_those_of_others_do() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path());
    // What the schema forbids is never written.
    let (answer, _) = ask(&server, "newcomer", "tell-nonsense", 100);
    let arguments = answer.arguments();
    assert!(arguments["place"].is_string() && arguments.get("town").is_none(), "{answer:?}");
    assert_eq!(answer.finish, "tool_calls");
    // Cut after each of the call's tokens.
    for max_tokens in 2..9 {
        let (cut, _) = ask(&server, "newcomer", "tell-weather", max_tokens);
        assert_eq!((cut.text.as_str(), cut.finish.as_str()), ("I ask.", "length"), "{max_tokens}: {cut:?}");
        let whole = r#"{"days":2,"place":"Bern"}"#;
        let is_begun = |(name, arguments): &(String, String)| {
            name == "get_weather" && whole.starts_with(&arguments.replace([' ', '\n'], ""))
        };
        assert!(cut.calls.len() < 2 && cut.calls.iter().all(is_begun), "{max_tokens}: {cut:?}");
    }
    // Unterminated reasoning is still reasoning.
    let (cut, _) = ask(&server, "newcomer", "tell-thoughts", 2);
    assert_eq!((cut.thoughts.trim(), cut.text.as_str(), cut.finish.as_str()), ("hm, hm", "", "length"));
    // What is not a call is text.
    let (rubbish, _) = ask(&server, "newcomer", "tell-rubbish", 100);
    assert_eq!((rubbish.text.as_str(), rubbish.finish.as_str()), ("a < b >> c :thinks) }~", "stop"));
    assert!(rubbish.calls.is_empty() && rubbish.thoughts.is_empty(), "{rubbish:?}");
}
