//! A conversation in the words of four APIs, and where the answer says that its prompt came from.

use serde_json::{Value, json};
use std::net::SocketAddr;

use crate::http::client::{Reply, request};

pub const APIS: [Api; 4] = [Api::Messages, Api::Chat, Api::Responses, Api::Ollama];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Messages,
    Chat,
    Responses,
    Ollama,
}

#[derive(Clone, Debug)]
pub enum Said {
    User(String),
    Answer(String),
    /// Reasoning, and the answer that followed.
    Thought(String, String),
    /// A call of `read` with this path, and its result.
    Call(String, String),
}

/// A conversation as its client sends it.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    pub model: String,
    pub key: String,
    pub system: String,
    /// Names and descriptions.
    pub tools: Vec<(String, String)>,
    pub said: Vec<Said>,
    /// The body field `pensieve`.
    pub own: Value,
}

/// Where the tokens of a prompt came from, as the answer says.
#[derive(Clone, Debug)]
pub struct Told {
    /// The request's id.
    pub id: String,
    pub memory: u64,
    pub disk: u64,
    pub computed: u64,
    /// Null if nothing was lost.
    pub miss: Value,
}

impl Told {
    pub fn kind(&self) -> Option<&str> {
        self.miss["kind"].as_str()
    }
}

impl Talk {
    pub fn ask(&self, address: SocketAddr, api: Api) -> Told {
        let (path, body) = match api {
            Api::Messages => ("/v1/messages", self.messages()),
            Api::Chat => ("/v1/chat/completions", self.chat()),
            Api::Responses => ("/v1/responses", self.responses()),
            Api::Ollama => ("/api/chat", self.ollama()),
        };
        let reply = self.send(address, path, body);
        assert_eq!(reply.status(), 200, "{api:?}: {reply:?}");
        let answer = reply.json();
        let own = if api == Api::Ollama { &answer["pensieve"] } else { &answer["usage"]["pensieve"] };
        let count = |name: &str| own["prompt"][name].as_u64().unwrap_or_else(|| panic!("{api:?}: {answer}"));
        let id = reply.header("request-id").unwrap_or_default().to_owned();
        let (memory, disk, computed) = (count("memory"), count("disk"), count("computed"));
        Told { id, memory, disk, computed, miss: own["cache_miss"].clone() }
    }

    pub fn send(&self, address: SocketAddr, path: &str, mut body: Value) -> Reply {
        body["model"] = self.model.as_str().into();
        if !self.own.is_null() {
            body["pensieve"] = self.own.clone();
        }
        let key = format!("Bearer {}", self.key);
        let headers = [("content-type", "application/json"), ("authorization", key.as_str())];
        request(address, "POST", path, &headers, body.to_string().as_bytes())
    }

    pub fn messages(&self) -> Value {
        let tools: Vec<Value> = self
            .tools
            .iter()
            .map(|(name, description)| {
                json!({ "name": name, "description": description, "input_schema": { "type": "object" } })
            })
            .collect();
        let turn = |(place, said): (usize, &Said)| match said {
            Said::User(text) => vec![json!({ "role": "user", "content": text })],
            Said::Answer(text) => vec![json!({ "role": "assistant", "content": text })],
            Said::Thought(thinking, text) => {
                let thinking = json!({ "type": "thinking", "thinking": thinking, "signature": "x" });
                vec![json!({ "role": "assistant", "content": [thinking, { "type": "text", "text": text }] })]
            }
            Said::Call(path, result) => {
                let id = format!("toolu_{place}");
                let call = json!({ "type": "tool_use", "id": id, "name": "read", "input": { "path": path } });
                let result = json!({ "type": "tool_result", "tool_use_id": id, "content": result });
                vec![json!({ "role": "assistant", "content": [call] }), json!({ "role": "user", "content": [result] })]
            }
        };
        let messages: Vec<Value> = self.said.iter().enumerate().flat_map(turn).collect();
        json!({ "max_tokens": 8, "system": self.system, "messages": messages, "tools": tools })
    }

    fn chat(&self) -> Value {
        let tools: Vec<Value> = self
            .tools
            .iter()
            .map(|(name, description)| {
                let parameters = json!({ "type": "object" });
                let function = json!({ "name": name, "description": description, "parameters": parameters });
                json!({ "type": "function", "function": function })
            })
            .collect();
        let turn = |(place, said): (usize, &Said)| match said {
            Said::User(text) => vec![json!({ "role": "user", "content": text })],
            Said::Answer(text) => vec![json!({ "role": "assistant", "content": text })],
            Said::Thought(thinking, text) => {
                vec![json!({ "role": "assistant", "content": text, "reasoning_content": thinking })]
            }
            Said::Call(path, result) => {
                let id = format!("call_{place}");
                let function = json!({ "name": "read", "arguments": json!({ "path": path }).to_string() });
                let call = json!({ "id": id, "type": "function", "function": function });
                let call = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
                vec![call, json!({ "role": "tool", "tool_call_id": id, "content": result })]
            }
        };
        let turns = self.said.iter().enumerate().flat_map(turn);
        let messages: Vec<Value> =
            [json!({ "role": "system", "content": self.system })].into_iter().chain(turns).collect();
        json!({ "max_tokens": 8, "messages": messages, "tools": tools })
    }

    fn responses(&self) -> Value {
        let tools: Vec<Value> = self
            .tools
            .iter()
            .map(|(name, description)| {
                let parameters = json!({ "type": "object" });
                json!({ "type": "function", "name": name, "description": description, "parameters": parameters })
            })
            .collect();
        let text = |text: &str| json!({ "role": "assistant", "content": [{ "type": "output_text", "text": text }] });
        let turn = |(place, said): (usize, &Said)| match said {
            Said::User(text) => vec![json!({ "role": "user", "content": text })],
            Said::Answer(answer) => vec![text(answer)],
            Said::Thought(thinking, answer) => {
                let content = json!([{ "type": "reasoning_text", "text": thinking }]);
                let reasoning =
                    json!({ "type": "reasoning", "id": format!("rs_{place}"), "summary": [], "content": content });
                vec![reasoning, text(answer)]
            }
            Said::Call(path, result) => {
                let (id, arguments) = (format!("call_{place}"), json!({ "path": path }).to_string());
                let call = json!({ "type": "function_call", "call_id": id, "name": "read", "arguments": arguments });
                vec![call, json!({ "type": "function_call_output", "call_id": id, "output": result })]
            }
        };
        let input: Vec<Value> = self.said.iter().enumerate().flat_map(turn).collect();
        json!({ "max_output_tokens": 16, "instructions": self.system, "input": input, "tools": tools, "store": false })
    }

    fn ollama(&self) -> Value {
        let chat = self.chat();
        let mut messages = chat["messages"].clone();
        for message in messages.as_array_mut().into_iter().flatten() {
            if let Some(thinking) = message.get("reasoning_content").cloned() {
                message["thinking"] = thinking;
            }
            if message["content"].is_null() {
                message["content"] = "".into();
            }
            if let Some(arguments) = message["tool_calls"][0]["function"]["arguments"].as_str() {
                message["tool_calls"][0]["function"]["arguments"] = serde_json::from_str(arguments).unwrap();
            }
        }
        json!({ "messages": messages, "tools": chat["tools"], "stream": false, "options": { "num_predict": 8 } })
    }
}
