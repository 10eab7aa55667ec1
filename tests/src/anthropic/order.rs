//! Checks the order of events that all clients of Anthropic's API accept, for any stream, and assembles the message as
//! such a client does. Also used by the dialect's unit tests.

use serde_json::{Value, json};

/// Parses the events in a stream's text.
pub fn events(text: &str) -> Result<Vec<(String, Value)>, String> {
    let frames = text.strip_suffix("\n\n").ok_or("the last frame does not end")?.split("\n\n");
    frames
        .map(|frame| {
            let (event, data) = frame.split_once('\n').ok_or_else(|| format!("a frame of one line: {frame}"))?;
            let name = event.strip_prefix("event: ").ok_or_else(|| format!("no event: {frame}"))?;
            let data = data.strip_prefix("data: ").ok_or_else(|| format!("no data: {frame}"))?;
            let data: Value = serde_json::from_str(data).map_err(|error| format!("{error}: {frame}"))?;
            if data["type"] != name {
                Err(format!("event and type differ: {frame}"))
            } else {
                Ok((name.to_owned(), data))
            }
        })
        .collect()
}

/// Checks the order of a stream's events and assembles the message; returns it, or the error that ended the stream.
pub fn message(events: &[(String, Value)]) -> Result<Value, String> {
    let (first, rest) = events.split_first().ok_or("there are no events")?;
    if first.0 != "message_start" {
        return Err(format!("begins with {}", first.0));
    }
    let mut reader = Reader { message: first.1["message"].clone(), ..Reader::default() };
    reader.start()?;
    for (place, (name, data)) in rest.iter().enumerate() {
        let is_last = place + 1 == rest.len();
        if (name == "message_stop" || name == "error") != is_last {
            return Err(format!("{name} at place {} of {}", place + 1, rest.len()));
        }
        if name == "error" {
            let whole = data["error"]["type"].is_string() && data["error"]["message"].is_string();
            return if whole { Ok(data.clone()) } else { Err(format!("an error without a word: {data}")) };
        }
        reader.event(name, data).map_err(|why| format!("place {}: {why}: {data}", place + 1))?;
    }
    if reader.has_ended { Ok(reader.message) } else { Err("there is no message_delta".to_owned()) }
}

#[derive(Default)]
struct Reader {
    message: Value,
    open: Option<Open>,
    has_ended: bool,
}

struct Open {
    block: Value,
    text: String,
    signature: String,
}

impl Reader {
    fn start(&mut self) -> Result<(), String> {
        let message = &self.message;
        let id = message["id"].as_str().unwrap_or_default();
        let is_blank = message["content"] == json!([]) && message["stop_reason"].is_null();
        if !id.starts_with("msg_") || message["role"] != "assistant" || message["type"] != "message" || !is_blank {
            return Err(format!("not the start of a message: {message}"));
        }
        total(&message["usage"]).map(drop)
    }

    fn event(&mut self, name: &str, data: &Value) -> Result<(), String> {
        if name == "ping" {
            return Ok(());
        }
        if self.has_ended {
            return if name == "message_stop" { Ok(()) } else { Err("after message_delta".to_owned()) };
        }
        let blocks = self.message["content"].as_array().map_or(0, Vec::len);
        if name.starts_with("content_block") && data["index"] != blocks {
            return Err(format!("the index should be {blocks}"));
        }
        match (name, &mut self.open) {
            ("content_block_start", None) => {
                let block = data["content_block"].clone();
                if block["type"] == "tool_use" && !block["id"].as_str().is_some_and(|id| id.starts_with("toolu_")) {
                    return Err("a call without a name of its own".to_owned());
                }
                self.open = Some(Open { block, text: String::new(), signature: String::new() });
            }
            ("content_block_delta", Some(open)) => open.add(&data["delta"])?,
            ("content_block_stop", Some(_)) => {
                let block = self.open.take().map(Open::whole).transpose()?;
                self.message["content"].as_array_mut().into_iter().for_each(|content| content.extend(block.clone()));
            }
            ("message_delta", None) => self.end(data)?,
            _ => {
                return Err(format!("{name} while a block is {}", if self.open.is_some() { "open" } else { "closed" }));
            }
        }
        Ok(())
    }

    fn end(&mut self, data: &Value) -> Result<(), String> {
        let (start, end) = (total(&self.message["usage"])?, total(&data["usage"])?);
        if start != end {
            return Err(format!("{start} tokens of input became {end}"));
        }
        let reason = data["delta"]["stop_reason"].as_str().unwrap_or_default();
        if (reason == "stop_sequence") != data["delta"]["stop_sequence"].is_string() {
            return Err("reason and sequence do not fit".to_owned());
        }
        for field in ["stop_reason", "stop_sequence"] {
            self.message[field] = data["delta"][field].clone();
        }
        self.message["usage"] = data["usage"].clone();
        self.has_ended = true;
        Ok(())
    }
}

impl Open {
    fn add(&mut self, delta: &Value) -> Result<(), String> {
        let (field, text) = match (self.block["type"].as_str(), delta["type"].as_str()) {
            (Some("text"), Some("text_delta")) => ("text", &mut self.text),
            (Some("thinking"), Some("thinking_delta")) if self.signature.is_empty() => ("thinking", &mut self.text),
            (Some("thinking"), Some("signature_delta")) => ("signature", &mut self.signature),
            (Some("tool_use"), Some("input_json_delta")) => ("partial_json", &mut self.text),
            _ => return Err("a piece of another kind".to_owned()),
        };
        let more = delta[field].as_str().ok_or("a piece without text")?;
        text.push_str(more);
        if more.is_empty() { Err("an empty piece".to_owned()) } else { Ok(()) }
    }

    fn whole(mut self) -> Result<Value, String> {
        match self.block["type"].as_str() {
            Some("text") => self.block["text"] = self.text.into(),
            Some("thinking") if self.signature.is_empty() => return Err("thoughts without a signature".to_owned()),
            Some("thinking") => {
                self.block["thinking"] = self.text.into();
                self.block["signature"] = self.signature.into();
            }
            _ => self.block["input"] = serde_json::from_str(&self.text).unwrap_or_else(|_| json!({})),
        }
        Ok(self.block)
    }
}

/// Tokens of the prompt, cached or not.
fn total(usage: &Value) -> Result<u64, String> {
    let parts = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    let parts = parts.map(|part| usage[part].as_u64());
    let sum = parts.into_iter().try_fold(0, |sum, part| Some(sum + part?));
    sum.filter(|_| usage["output_tokens"].is_u64()).ok_or_else(|| format!("usage: {usage}"))
}
