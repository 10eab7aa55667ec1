//! Models that other servers compute: vLLM, SGLang, llama.cpp, Ollama, another Pensieve, or a vendor. One more kind of worker behind
//! the same router, ids, keys and dialects (ADR 20).
//!
//! A request is written in its upstream's words ([`wire`]) and sent ([`client`]) to one of the model's servers ([`balancer`]
//! decides, [`replicas`] knows how they are); the answer is read as [`Delta`](crate::chat::Delta)s ([`call`]), which dialects write as they
//! write a worker's. Everything that an upstream sends is bounded, and its errors are put in this server's terms
//! ([`failure`]).

mod balancer;
mod call;
mod client;
mod count;
mod estimate;
mod events;
mod facts;
mod failure;
mod known;
mod replicas;
mod retry_after;
mod tls;
mod wire;

pub use count::Count;
pub use replicas::UpstreamState;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde_json::Value;

use crate::{
    chat::{Delta, Form, Image, Input, Request, prompt_too_long},
    fleet::{Elsewhere, Upstream, UpstreamKind, UpstreamUrl},
};
use call::Call;
use facts::Facts;
use known::Known;
use pensieve_protocol::job::{Failure, FailureCode};
use replicas::Replicas;
use wire::{Addressee, chat_answer::Expected, chat_request, messages_request};

/// The upstreams of a server, by the ids of their models. One whose settings change is replaced; what it answers may finish.
#[derive(Debug, Default)]
pub struct Upstreams(Mutex<HashMap<String, Arc<Remote>>>);

#[derive(Debug)]
struct Remote {
    id: String,
    replicas: Arc<Replicas>,
    known: Known,
}

/// A request in its upstream's words, which has not been sent.
#[derive(Clone, Debug)]
pub struct RemoteCall {
    call: Call,
    input_tokens: u32,
    context: u32,
}

impl Upstreams {
    /// Writes a request in its upstream's words. Nothing of it has left this machine then.
    pub async fn prepare(&self, elsewhere: &Elsewhere, request: &Request) -> Result<RemoteCall, Failure> {
        let remote = self.remote(elsewhere)?;
        let facts = remote.facts().await?;
        let mut count = Count { tokens: estimate::tokens(&request.input), is_estimate: true };
        let mut limit = Limit { tokens: wanted(request, facts), clamped: false };
        if let (Some(context), Some(wanted)) = (facts.context, limit.tokens) {
            // Engines refuse what does not fit. It is counted only where it may not.
            if count.tokens.saturating_mul(2).saturating_add(wanted) > context {
                count = count::count(&remote, facts, request).await?;
                limit = fitting(wanted, context, count, request.limit_is_usual)
                    .ok_or_else(|| prompt_too_long(count.tokens, context.saturating_sub(1)))?;
            }
        }
        let (prompt, max_tokens) = (count.tokens, limit.tokens);
        let to = remote.addressee(facts.kind, &request.images);
        let (path, mut body) = match facts.kind {
            UpstreamKind::Anthropic => messages_request::write(request, &to, max_tokens)?,
            _ => chat_request::write(request, &to, max_tokens)?,
        };
        let settings = remote.replicas.settings();
        let expected = Expected {
            model: remote.id.clone(),
            key: settings.key.clone(),
            stops: request.stops.clone(),
            // Without a limit the context is what ends an answer, but where the API requires one.
            clamped: limit.clamped || (max_tokens.is_none() && facts.kind != UpstreamKind::Anthropic),
            logprobs: request.logprobs.is_some(),
            prompt,
            passes_unknown: match request.form {
                Form::Other => false,
                Form::Chat => facts.kind != UpstreamKind::Anthropic,
                Form::Messages => facts.kind == UpstreamKind::Anthropic,
            },
        };
        let seed = body.shift_remove("seed").as_ref().and_then(Value::as_u64);
        let mut body = Value::Object(body).to_string();
        body.truncate(body.len() - 1);
        let call = Call {
            replicas: remote.replicas.clone(),
            kind: facts.kind,
            path,
            body: body.into(),
            seed,
            conversation: estimate::conversation(request),
            tokens: u64::from(prompt)
                + u64::from(max_tokens.map_or(estimate::ANSWER_USUAL, |limit| limit.min(estimate::ANSWER_USUAL))),
            expected,
        };
        Ok(RemoteCall { call, input_tokens: prompt, context: facts.context.unwrap_or(0) })
    }

    /// Counts the tokens of a request's prompt.
    pub async fn count(&self, elsewhere: &Elsewhere, request: &Request) -> Result<Count, Failure> {
        let remote = self.remote(elsewhere)?;
        let facts = remote.facts().await?;
        count::count(&remote, facts, request).await
    }

    /// The longest sequence in tokens, if the servers or the configuration say it.
    pub async fn context(&self, elsewhere: &Elsewhere) -> Option<u32> {
        self.remote(elsewhere).ok()?.facts().await.ok()?.context
    }

    pub async fn reads_images(&self, elsewhere: &Elsewhere) -> bool {
        match self.remote(elsewhere) {
            Ok(remote) => remote.facts().await.is_ok_and(|facts| facts.images),
            Err(_) => false,
        }
    }

    /// True if the servers report log-probabilities.
    pub async fn gives_logprobs(&self, elsewhere: &Elsewhere) -> bool {
        match self.remote(elsewhere) {
            Ok(remote) => remote.facts().await.is_ok_and(|facts| facts.logprobs),
            Err(_) => false,
        }
    }

    /// The servers that have been used so far.
    pub fn states(&self) -> Vec<UpstreamState> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut states: Vec<UpstreamState> =
            all.values().flat_map(|remote| remote.replicas.states(&remote.id)).collect();
        states.sort_by(|a, b| (&a.model, &a.url).cmp(&(&b.model, &b.url)));
        states
    }

    /// Forgets the upstreams that are not to be kept: their servers are not probed any more, and their key is gone once the
    /// last answer has ended.
    pub fn keep(&self, is_kept: impl Fn(&str, &Upstream) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id, remote| is_kept(id, remote.replicas.settings()));
    }

    fn remote(&self, elsewhere: &Elsewhere) -> Result<Arc<Remote>, Failure> {
        let Elsewhere { id, upstream } = elsewhere;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(remote) = all.get(id)
            && *remote.replicas.settings() == *upstream
        {
            return Ok(remote.clone());
        }
        let remote = Arc::new(Remote::new(id, upstream.clone(), all.get(id).map(|remote| &*remote.replicas))?);
        all.insert(id.clone(), remote.clone());
        Ok(remote)
    }
}

impl Remote {
    /// With what `before` knew of the same servers.
    fn new(id: &str, upstream: Arc<Upstream>, before: Option<&Replicas>) -> Result<Self, Failure> {
        let failed = |what: String| {
            let message = format!("model '{id}' cannot be reached: {what}");
            Failure::new(FailureCode::Unreachable, message).with_help("correct its [[models]]")
        };
        let replicas = Arc::new(Replicas::new(id, upstream, before).map_err(failed)?);
        Ok(Self { id: id.to_owned(), replicas, known: Known::default() })
    }

    /// The facts that the servers give about themselves.
    async fn facts(self: &Arc<Self>) -> Result<Facts, Failure> {
        known::facts(self).await
    }

    fn addressee<'a>(&'a self, kind: UpstreamKind, images: &'a [Arc<Image>]) -> Addressee<'a> {
        let settings = self.replicas.settings();
        let is_openai = settings.urls.iter().any(UpstreamUrl::is_openai);
        Addressee { id: &self.id, model: &settings.model, kind, is_openai, images }
    }
}

impl RemoteCall {
    /// The longest sequence in tokens; 0 if it is not known.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// A server would take it now.
    pub fn can_be_taken(&self) -> bool {
        self.call.replicas.can_take(self.call.tokens)
    }

    /// What is sent, but for its last few bytes. It is not charged to anyone.
    pub fn body_mut(&mut self) -> &mut Bytes {
        &mut self.call.body
    }

    /// Of the prompt, as far as they can be told before the answer.
    pub fn input_tokens(&self) -> u32 {
        self.input_tokens
    }

    /// The model's id here.
    pub fn model(&self) -> &str {
        &self.call.expected.model
    }

    /// The request for one of several answers (`n`), from index 0; each has its own seed, and all share the rest.
    #[must_use]
    pub fn choice(&self, index: u32) -> Self {
        let mut choice = self.clone();
        choice.call.seed = self.call.seed.map(|seed| seed.wrapping_add(u64::from(index)) & (i64::MAX as u64));
        choice
    }

    /// Sends it once the stream is read.
    pub fn deltas(self) -> BoxStream<'static, Delta> {
        self.call.deltas()
    }
}

/// A limit of at most this part of a context is small.
const SMALL_SHARE: u32 = 8;

/// The limit on an answer's tokens as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    tokens: Option<u32>,
    /// It is lower than the one that was asked for, as the context has no room for more.
    clamped: bool,
}

/// The limit that the upstream is asked for. Vendors refuse one that is beyond what their model writes, and others one that
/// is beyond a context which is not known here, so they get the client's, but not this server's default.
fn wanted(request: &Request, facts: Facts) -> Option<u32> {
    let is_vendor = matches!(facts.kind, UpstreamKind::OpenAi | UpstreamKind::Anthropic);
    request.max_tokens.filter(|_| !(request.limit_is_usual && (is_vendor || facts.context.is_none())))
}

/// The limit that fits the context after this prompt; `None` if the prompt itself surely does not fit. An estimate refuses
/// nothing: the upstream counts, and decides. It then gets no limit, unless a small one, which the client may rely on.
fn fitting(wanted: u32, context: u32, prompt: Count, is_usual: bool) -> Option<Limit> {
    let room = context.saturating_sub(prompt.tokens);
    if prompt.is_estimate && (room == 0 || is_usual) {
        let is_small = !is_usual && wanted <= context / SMALL_SHARE;
        return Some(Limit { tokens: Some(wanted).filter(|_| is_small), clamped: !is_small });
    }
    (room > 0).then(|| Limit { tokens: Some(wanted.min(room)), clamped: wanted > room })
}

/// True for a conversation, the only input that is sent to upstreams.
fn is_chat(input: &Input) -> bool {
    matches!(input, Input::Chat(_))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_that_is_not_configured_any_more_is_forgotten() {
        let at = |url: &str| Arc::new(Upstream::new(&[url.to_owned()], "m").unwrap());
        let upstreams = Upstreams::default();
        let (kept, gone) = (at("http://10.0.0.1/v1"), at("http://10.0.0.2/v1"));
        for (id, upstream) in [("kept", &kept), ("gone", &gone)] {
            upstreams.remote(&Elsewhere { id: id.into(), upstream: upstream.clone() }).unwrap();
        }
        let running = Arc::downgrade(&upstreams.0.lock().unwrap()["gone"].replicas);
        upstreams.keep(|id, upstream| id == "kept" && *upstream == *kept);
        let states: Vec<String> = upstreams.states().into_iter().map(|state| state.model).collect();
        assert_eq!(states, ["kept"]);
        assert!(running.upgrade().is_none(), "nothing probes it");
        upstreams.keep(|_, upstream| *upstream == *gone);
        assert!(upstreams.states().is_empty(), "another address under the same id");
    }

    #[test]
    fn a_default_limit_is_not_sent_where_it_may_be_too_high() {
        let check = |kind, context, max_tokens, usual, expected| {
            let request = Request { max_tokens, ..Request::default() }.or_usual_limit(usual);
            assert_eq!(
                wanted(&request, Facts { kind, context, images: true, logprobs: true }),
                expected,
                "{kind:?} {context:?}"
            );
        };
        let usual = Some(32_768);
        check(UpstreamKind::OpenAi, None, None, usual, None);
        check(UpstreamKind::OpenAi, Some(128_000), None, usual, None);
        check(UpstreamKind::Anthropic, Some(200_000), None, usual, None);
        check(UpstreamKind::Vllm, None, None, usual, None);
        check(UpstreamKind::Vllm, Some(4096), None, usual, usual);
        check(UpstreamKind::OpenAi, None, Some(9), usual, Some(9));
        check(UpstreamKind::Vllm, None, Some(32_768), usual, usual);
        check(UpstreamKind::Vllm, Some(4096), None, None, None);
    }

    #[test]
    fn only_a_prompt_that_was_counted_can_be_too_long() {
        let check = |wanted, tokens, is_estimate, is_usual, expected: Option<(Option<u32>, bool)>| {
            let limit = fitting(wanted, 100, Count { tokens, is_estimate }, is_usual);
            assert_eq!(limit.map(|limit| (limit.tokens, limit.clamped)), expected, "{wanted} {tokens} {is_estimate}");
        };
        check(50, 60, false, false, Some((Some(40), true)));
        check(50, 20, false, false, Some((Some(50), false)));
        check(50, 100, false, false, None);
        check(50, 100, false, true, None);
        check(50, 120, true, false, Some((None, true)));
        check(5, 120, true, false, Some((Some(5), false)));
        check(50, 60, true, false, Some((Some(40), true)));
        check(50, 60, true, true, Some((None, true)));
    }
}
