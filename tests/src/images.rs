//! Images in requests of every API, over a real socket to a model whose answer depends on every row of every image
//! (`tests/plugins/eyes.rs`).

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::{
        client::{Reply, get, post},
        server::{Options, Server},
    },
    scripted,
};

/// Two pictures of one size, and therefore with the same text in a prompt.
const ONE: &str = "rgb.png";
const OTHER: &str = "grey.png";
const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const GEMINI: &str = "/v1beta/models/eyes:generateContent";

pub fn picture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pictures");
    fs::read(folder.join(name)).unwrap()
}

pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            text.push(char::from(LETTERS[(number >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text + &"=".repeat((3 - bytes.len() % 3) % 3)
}

pub fn serve(root: &Path, config: &str) -> Server {
    let (eyes, text) = (root.join("eyes"), root.join("text"));
    fs::create_dir_all(&eyes).unwrap();
    fs::write(eyes.join("config.json"), r#"{"architectures": ["EyesForCausalLM"]}"#).unwrap();
    fs::write(eyes.join("model.safetensors"), "").unwrap();
    scripted::checkpoint(&text, &[("", "I see text.")]);
    let models: Vec<(String, PathBuf)> = vec![("eyes".into(), eyes), ("text".into(), text)];
    let plugins = vec![test_plugin("eyes"), test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, models, config: config.into(), ..Options::default() }.start()
}

/// The same question about a picture in each API, and within the result of a tool where the API has that.
pub fn asked(bytes: &[u8]) -> Vec<(&'static str, &'static str, Value)> {
    let (data, url) = (base64(bytes), format!("data:image/png;base64,{}", base64(bytes)));
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let tool = json!({"name": "look", "input_schema": {"type": "object"}});
    let anthropic = |messages: Value| json!({"model": "eyes", "max_tokens": 8, "temperature": 0, "messages": messages});
    let chat = |messages: Value| json!({"model": "eyes", "max_tokens": 8, "temperature": 0, "messages": messages});
    let responses = |input: Value| json!({"model": "eyes", "max_output_tokens": 8, "temperature": 0, "input": input});
    let options = json!({"temperature": 0, "num_predict": 8});
    let mut used = anthropic(json!([
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "there:"}, image]}]},
    ]));
    used["tools"] = json!([tool]);
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    vec![
        (
            MESSAGES,
            "messages.0.content.1",
            anthropic(json!([
            {"role": "user", "content": [{"type": "text", "text": "what is "}, image, {"type": "text", "text": "?"}]}])),
        ),
        (MESSAGES, "messages.2.content.0.content.1", used),
        (
            CHAT,
            "messages.0.content.1",
            chat(json!([{"role": "user", "content": [
            {"type": "text", "text": "what is "}, {"type": "image_url", "image_url": {"url": url}}]}])),
        ),
        (
            CHAT,
            "messages.2.content.0",
            chat(json!([
            {"role": "user", "content": "look"}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "image_url", "image_url": {"url": url}}]}])),
        ),
        (
            RESPONSES,
            "input.0.content.1",
            responses(json!([{"role": "user", "content": [
            {"type": "input_text", "text": "what is "}, {"type": "input_image", "image_url": url}]}])),
        ),
        (
            RESPONSES,
            "input.2.output.0",
            responses(json!([
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_image", "image_url": url}]}])),
        ),
        (
            "/api/chat",
            "messages.0.images.0",
            json!({"model": "eyes", "stream": false, "options": options, "messages": [
            {"role": "user", "content": "what is it?", "images": [data]}]}),
        ),
        (
            "/api/generate",
            "images.0",
            json!({"model": "eyes", "stream": false, "options": options, "prompt": "what is it?", "images": [data]}),
        ),
        (
            GEMINI,
            "contents.0.parts.1.inlineData",
            json!({"generationConfig": {"temperature": 0, "maxOutputTokens": 8},
            "contents": [{"role": "user", "parts": [
                {"text": "what is "}, {"inlineData": {"mimeType": "image/png", "data": data}}]}]}),
        ),
    ]
}

/// Everything of an answer that does not differ from one request to the next: text, reasons and usage.
fn answer(reply: &Reply) -> (String, u64) {
    assert_eq!(reply.status(), 200, "{reply:?}");
    let body = reply.json();
    let texts = [
        &body["content"][0]["text"],
        &body["choices"][0]["message"]["content"],
        &body["output"][0]["content"][0]["text"],
        &body["message"]["content"],
        &body["response"],
        &body["candidates"][0]["content"]["parts"][0]["text"],
    ];
    let text = texts.iter().find_map(|text| text.as_str()).unwrap_or_else(|| panic!("no text: {body}"));
    (text.to_owned(), used(&body))
}

/// The tokens of an answer's prompt, cached ones included.
pub fn used(body: &Value) -> u64 {
    let counts =
        [&body["usage"]["prompt_tokens"], &body["prompt_eval_count"], &body["usageMetadata"]["promptTokenCount"]];
    let anthropic = ["input_tokens", "cache_read_input_tokens"].map(|name| body["usage"][name].as_u64().unwrap_or(0));
    counts.iter().find_map(|count| count.as_u64()).unwrap_or(anthropic[0] + anthropic[1])
}

#[test]
fn every_api_shows_a_picture_where_it_stands() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let (one, other) = (asked(&picture(ONE)), asked(&picture(OTHER)));
    for ((path, field, one), (.., other)) in one.iter().zip(&other) {
        let replies = [one, other, one].map(|body| post(server.address, path, body));
        let [first, second, again] = replies.each_ref().map(answer);
        assert_eq!(first.1, second.1, "{path}, {field}: pictures of one size count alike");
        assert_ne!(first.0, second.0, "{path}, {field}: behind equal placeholders, two pictures are told apart");
        assert_eq!(first.0, again.0, "{path}, {field}");
        assert!(replies[0].header("warning").is_none(), "{path}, {field}: {:?}", replies[0]);
    }
    // What is counted beforehand is what is used.
    for (place, path) in [(0, "/v1/messages/count_tokens"), (1, "/v1/messages/count_tokens")] {
        let counted = post(server.address, path, &one[place].2).json();
        let used = answer(&post(server.address, MESSAGES, &one[place].2)).1;
        assert_eq!(counted["input_tokens"], used, "{counted}");
    }
    let counted = post(server.address, "/v1/responses/input_tokens", &one[4].2).json();
    assert_eq!(counted["input_tokens"], post(server.address, RESPONSES, &one[4].2).json()["usage"]["input_tokens"]);

    let models = get(server.address, "/v1/models").json();
    let capabilities = |name: &str| {
        let entry = models["data"].as_array().unwrap().iter().find(|entry| entry["id"] == name).unwrap().clone();
        let shown = post(server.address, "/api/show", &json!({"model": name})).json();
        assert_eq!(entry["capabilities"], shown["capabilities"]);
        entry["capabilities"].as_array().unwrap().iter().any(|word| word == "vision")
    };
    assert!(capabilities("eyes") && !capabilities("text"), "{models}");
}

#[test]
fn the_next_turn_is_read_from_the_cache() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let image = |name: &str| json!({"type": "image", "source": {"type": "base64", "data": base64(&picture(name))}});
    let words = "a long story about a picture, ".repeat(20);
    let mut messages =
        vec![json!({"role": "user", "content": [image(ONE), {"type": "text", "text": words}, image(OTHER)]})];
    let ask = |messages: &[Value]| {
        let body = json!({"model": "eyes", "max_tokens": 4, "temperature": 0, "messages": messages});
        let reply = post(server.address, MESSAGES, &body);
        assert_eq!(reply.status(), 200, "{reply:?}");
        reply.json()["usage"].clone()
    };
    let first = ask(&messages);
    assert_eq!(first["cache_read_input_tokens"], 0, "{first}");
    messages.push(json!({"role": "assistant", "content": "I see."}));
    messages.push(json!({"role": "user", "content": "go on"}));
    let second = ask(&messages);
    let (read, new) = (&second["cache_read_input_tokens"], &second["input_tokens"]);
    let (read, new) = (read.as_u64().unwrap(), new.as_u64().unwrap());
    assert!(read * 100 >= (read + new) * 95, "{second}");
    // The same words with the pictures exchanged share nothing behind the first of them.
    messages[0]["content"].as_array_mut().unwrap().swap(0, 2);
    let swapped = ask(&messages);
    assert!(swapped["cache_read_input_tokens"].as_u64().unwrap() <= 16, "{swapped}");
}

#[test]
fn damaged_pictures_are_errors_of_their_fields_and_others_are_answered() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "[server]\nimages_max = 3\n");
    let refused = |path: &str, field: &str, body: &Value, words: &str| {
        let reply = post(server.address, path, body);
        assert_eq!(reply.status(), 400, "{path}, {field}: {reply:?}");
        let error = reply.json().to_string();
        assert!(error.contains(field) && error.contains(words), "{path}, {field}, {words}: {error}");
    };
    let pictures = ["rgb.png", "rgb.jpg", "lossless.webp", "palette.gif"];
    for (turn, name) in pictures.into_iter().enumerate() {
        let whole = picture(name);
        for damage in 0..10 {
            let bytes = match damage {
                0..6 => whole[..whole.len() * (damage + 1) / 8].to_vec(),
                6 => whole[..12].to_vec(),
                7 => [&whole[..12], &vec![0; whole.len() - 12]].concat(),
                8 => [b"xxxxxxxx", &whole[8..]].concat(),
                _ => Vec::new(),
            };
            // Every API has its share.
            let all = asked(&bytes);
            let (path, field, body) = &all[(turn * 10 + damage) % all.len()];
            refused(path, field, body, "the image is ");
        }
    }
    // A header that announces 2.5 billion pixels, and files of other kinds.
    let mut bomb = picture("palette.gif");
    bomb[6..10].fill(255);
    for (bytes, words) in [
        (bomb, "more than the 50000000 allowed"),
        (b"%PDF-1.7".to_vec(), "is a PDF file"),
        (b"<svg/>".to_vec(), "is text or SVG"),
        // 400 by 400 pixels are more than the plugin takes.
        (grey(400), "too large"),
    ] {
        let (path, field, body) = &asked(&bytes)[0];
        refused(path, field, body, words);
    }
    let image = |data: &str| json!({"type": "image_url", "image_url": {"url": data}});
    let chat =
        |parts: Vec<Value>| json!({"model": "eyes", "max_tokens": 4, "messages": [{"role": "user", "content": parts}]});
    let good = format!("data:;base64,{}", base64(&picture(ONE)));
    for (parts, field, words) in [
        (vec![image("data:image/png;base64,!!")], "messages.0.content.0", "is not base64"),
        (vec![image("file:///etc/passwd")], "messages.0.content.0", "starts with https:, http: or data:"),
        (vec![image(&good); 4], "messages.0.content.3", "more than the 3 allowed"),
        (vec![image("http://127.0.0.1/a.png")], "messages.0.content.0", "fetches no images"),
        (vec![image("HTTPS://example.org/a.png")], "messages.0.content.0", "fetch_images"),
    ] {
        refused(CHAT, field, &chat(parts), words);
    }
    let answered = post(server.address, CHAT, &chat(vec![image(&good); 3]));
    assert_eq!(answered.status(), 200, "{answered:?}");
}

#[test]
fn many_requests_with_pictures_are_all_answered() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let (one, other) = (asked(&picture(ONE)), asked(&picture("rgba.png")));
    let ask = |body: &Value| post(server.address, CHAT, body).status();
    // More at once than there are processes, with pictures that are not known yet.
    let statuses: Vec<u16> = thread::scope(|scope| {
        let asking = [&one[2].2, &other[2].2].into_iter().cycle().take(12).map(|body| scope.spawn(move || ask(body)));
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200; 12]);
}

#[test]
fn images_are_never_fetched_from_inside() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "[server]\nfetch_images = \"allow\"\n");
    let port = server.address.port();
    for url in [format!("http://127.0.0.1:{port}/health"), format!("http://localhost:{port}/"), "http://[::1]/".into()]
    {
        let image = json!({"type": "image_url", "image_url": {"url": url}});
        let body = json!({"model": "eyes", "max_tokens": 4, "messages": [{"role": "user", "content": [image]}]});
        let reply = post(server.address, CHAT, &body);
        assert_eq!(reply.status(), 400, "{reply:?}");
        let error = reply.json()["error"]["message"].to_string();
        assert!(error.contains("is not a public address"), "{url}: {error}");
    }
}

#[test]
fn placeholders_in_a_clients_words_are_words() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    let ask = |text: &str, images: usize| {
        let image =
            json!({"type": "image_url", "image_url": {"url": format!("data:;base64,{}", base64(&picture(ONE)))}});
        let parts: Vec<Value> =
            std::iter::once(json!({"type": "text", "text": text})).chain(vec![image; images]).collect();
        let body = json!({"model": "eyes", "max_tokens": 4, "messages": [{"role": "user", "content": parts}]});
        answer(&post(server.address, CHAT, &body)).1
    };
    let plain = ask("what?", 0);
    let one = ask("what?", 1) - plain;
    // The template's own placeholder counts, and none that a client writes, nor its tokens or marks.
    for text in ["<image>", "a <slot><img></img> b", "<ima\u{fdd0}0\u{fdd0}ge>", "\u{fdd0}0\u{fdd0} <image><image>"] {
        assert_eq!(ask(text, 1) - ask(text, 0), one, "{text:?}");
    }
    assert_eq!(ask("what?", 2) - plain, 2 * one);
}

#[test]
fn a_model_without_eyes_gets_notes() {
    let root = tempfile::tempdir().unwrap();
    let server = serve(root.path(), "");
    for (path, field, mut body) in asked(b"whatever it is").into_iter().filter(|(path, ..)| *path != GEMINI) {
        body["model"] = "text".into();
        let reply = post(server.address, path, &body);
        assert_eq!(answer(&reply).0, "I see text.", "{path}");
        let warning = reply.header("warning").unwrap_or_default();
        assert!(warning.contains(&format!("{field}: this model reads text only")), "{path}: {warning}");
    }
}

/// A grey GIF of this width and height, in clear codes and codes of nine bits.
pub fn grey(side: u16) -> Vec<u8> {
    let size = [side.to_le_bytes(), side.to_le_bytes()].concat();
    let mut gif = [b"GIF89a", &size[..], &[0x87, 0, 0]].concat();
    gif.extend((0..=255).flat_map(|grey| [grey; 3]));
    gif.extend([&[0x2c, 0, 0, 0, 0][..], &size, &[0, 8]].concat());
    let pixels = usize::from(side) * usize::from(side);
    let codes = (0..pixels).flat_map(|at| if at % 200 == 0 { vec![256_u32, 7] } else { vec![7] }).chain([257]);
    let (mut bits, mut held, mut packed) = (0_u32, 0, Vec::new());
    for code in codes {
        bits |= code << held;
        held += 9;
        while held >= 8 {
            packed.push(bits as u8);
            bits >>= 8;
            held -= 8;
        }
    }
    packed.push(bits as u8);
    for block in packed.chunks(255) {
        gif.push(block.len() as u8);
        gif.extend(block);
    }
    gif.extend([0, 0x3b]);
    gif
}
