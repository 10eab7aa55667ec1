//! Counting a prompt's tokens where the upstream can: by its tokenizer, or the counting route of its API. Where there is none the
//! number is an estimate, and says so.

use std::{fmt, time::Duration};

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::{
    Remote,
    balancer::Outcome,
    call::TRIES_MAX,
    client::{Broken, COUNT_BYTES_MAX},
    estimate,
    facts::Facts,
    failure, is_chat,
    replicas::Seat,
    wire::{Addressee, chat_request, messages_request},
};
use crate::{
    chat::{Input, Request},
    fleet::UpstreamKind,
};
use pensieve_protocol::job::Failure;

/// Longest that counting may take; an answer may wait for it.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub tokens: u32,
    /// The upstream cannot count.
    pub is_estimate: bool,
}

impl Count {
    /// The number, with a warning for the client if it is an estimate.
    pub fn told(self, warnings: &mut Vec<String>) -> u32 {
        if self.is_estimate {
            warnings.push("the number of tokens is an estimate: the model's upstream does not count".to_owned());
        }
        self.tokens
    }
}

/// A server's answer when it counts. Most of it may be a list of millions of tokens, which is not kept.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counted {
    /// Anthropic's and Pensieve's.
    input_tokens: Option<u32>,
    /// vLLM's.
    count: Option<u32>,
    /// llama.cpp's.
    tokens: Option<Length>,
    /// llama.cpp's: what its template makes of a conversation.
    prompt: Option<String>,
}

/// The length of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length(u32);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting;
        impl<'de> Visitor<'de> for Counting {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Length, A::Error> {
                let mut length = 0u32;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    length = length.saturating_add(1);
                }
                Ok(Length(length))
            }
        }
        deserializer.deserialize_seq(Counting)
    }
}

/// Counts at the conversation's own server, or at another one. A server that cannot is no reason for an error: the request
/// itself tells what is wrong with it.
pub(super) async fn count(remote: &Remote, facts: Facts, request: &Request) -> Result<Count, Failure> {
    let to = remote.addressee(facts.kind, &request.images);
    let replicas = &remote.replicas;
    let conversation = estimate::conversation(request);
    let mut tried = Vec::new();
    while tried.len() < TRIES_MAX {
        let Ok(mut seat) = replicas.take(facts.kind, conversation, 0, &tried) else { break };
        tried.push(seat.replica());
        let counted = tokio::select! {
            counted = timeout(COUNT_TIMEOUT, exact(facts.kind, &seat, request, &to)) => counted.ok(),
            () = seat.lost() => None,
        };
        match counted {
            Some(counted) => match counted? {
                Ok(Some(tokens)) => return Ok(Count { tokens, is_estimate: false }),
                Ok(None) => break,
                Err(why) => seat.note(failure::broken(&remote.id, &why.at(seat.url())).outcome),
            },
            // A long prompt may be the reason.
            None => seat.note(Outcome::Unknown),
        }
    }
    Ok(Count { tokens: estimate::tokens(&request.input), is_estimate: true })
}

/// `None` if this kind of server cannot count such a request.
async fn exact(
    kind: UpstreamKind,
    seat: &Seat,
    request: &Request,
    to: &Addressee<'_>,
) -> Result<Result<Option<u32>, Broken>, Failure> {
    let url = seat.url();
    if let Input::Tokens(tokens) = &request.input {
        return Ok(Ok(u32::try_from(tokens.len()).ok()));
    }
    let ask = |url: String, body: Map<String, Value>| async move {
        let body = Bytes::from(Value::Object(body).to_string());
        let answer = seat.client().post(kind, &url, body).await?;
        if !answer.status.is_success() {
            return Ok(None);
        }
        let whole = answer.whole_of(COUNT_BYTES_MAX).await?;
        Ok::<_, Broken>(serde_json::from_slice::<Counted>(&whole).ok())
    };
    Ok(match kind {
        UpstreamKind::Anthropic | UpstreamKind::Pensieve if is_chat(&request.input) => {
            let body = messages_request::counted(request, to)?;
            let answer = ask(format!("{url}/messages/count_tokens"), body).await;
            answer.map(|answer| answer?.input_tokens)
        }
        UpstreamKind::Vllm => {
            let (_, mut body) = chat_request::write(request, to, None)?;
            body.retain(|name, _| {
                ["model", "messages", "tools", "prompt", "chat_template_kwargs"].contains(&name.as_str())
            });
            let answer = ask(format!("{}/tokenize", url.root()), body).await;
            answer.map(|answer| answer?.count)
        }
        UpstreamKind::LlamaCpp => {
            let (_, mut body) = chat_request::write(request, to, None)?;
            let mut prompt = body.get("prompt").and_then(Value::as_str).map(str::to_owned);
            if is_chat(&request.input) {
                body.retain(|name, _| ["messages", "tools", "chat_template_kwargs"].contains(&name.as_str()));
                match ask(format!("{}/apply-template", url.root()), body).await {
                    Ok(answer) => prompt = answer.and_then(|answer| answer.prompt),
                    Err(why) => return Ok(Err(why)),
                }
            }
            let Some(prompt) = prompt else { return Ok(Ok(None)) };
            let mut body = Map::new();
            body.insert("content".into(), prompt.into());
            body.insert("add_special".into(), json!(true));
            body.insert("parse_special".into(), json!(true));
            let answer = ask(format!("{}/tokenize", url.root()), body).await;
            answer.map(|answer| answer?.tokens.map(|Length(tokens)| tokens))
        }
        _ => Ok(None),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tokens_is_counted_but_not_kept() {
        let of = |text: &str| serde_json::from_str::<Counted>(text).unwrap();
        let list = format!(r#"{{"tokens":[1{}],"count":7}}"#, ",151643".repeat(999_999));
        assert_eq!(of(&list).tokens, Some(Length(1_000_000)));
        assert!(list.len() < COUNT_BYTES_MAX);
        assert_eq!(of(r#"{"tokens": [{"id": 1, "piece": "a"}, {"id": 2}]}"#).tokens, Some(Length(2)));
        assert_eq!(of(r#"{"count": 123, "max_model_len": 4096, "tokens": []}"#).count, Some(123));
        assert_eq!(of(r#"{"input_tokens": 5}"#).input_tokens, Some(5));
        assert!(serde_json::from_str::<Counted>(r#"{"count": -1}"#).is_err());
    }
}
