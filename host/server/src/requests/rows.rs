//! Rows instead of text: embeddings, scores of pairs, classes. Tokenizes the texts with what belongs around them, checks
//! their lengths, and has one job for each run, several at a time.

use std::collections::VecDeque;

use futures_util::{StreamExt as _, stream::FuturesUnordered};

use super::{
    Chats,
    pieces::{self, INSTRUCTION, RowsRequest},
};
use crate::{answers::row, fleet::Target};
use pensieve_protocol::{
    job::{Failure, FailureCode, Job, RowWish},
    rows::{Kind, RowsUse},
};

/// Texts of one request that a worker has at the same time.
const AT_ONCE: usize = 64;
/// Values of all rows of a request.
const VALUES_MAX: usize = 1 << 24;

/// The rows of a request, in the order of its texts.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The id of the model, whatever name the client used.
    pub(crate) model: String,
    pub(crate) rows: Vec<Vec<f32>>,
    pub(crate) tokens: u64,
    pub(crate) rows_use: RowsUse,
    /// Warnings for the client about the rows.
    pub(crate) warnings: Vec<String>,
}

impl Chats {
    /// Makes rows of texts by a model for `kind`. Scores come with the model's activation applied. Dropping the future
    /// cancels what is left.
    pub(crate) async fn rows(&self, request: RowsRequest, kind: Kind) -> Result<Rows, Failure> {
        self.permit(&request.client, &request.model)?;
        let target = self.fleet.target(&request.model).await?;
        let rows = checked(&target, kind)?;
        let mut warnings = Vec::new();
        if !rows.made_for {
            let message = "was made to write text; its last token's hidden row is returned as an embedding";
            warnings.push(format!("model '{}' {message}", target.id));
        }
        let takes_instruction = rows.pair_template.as_ref().is_some_and(|template| template.contains(INSTRUCTION));
        if request.instruction.is_some() && !takes_instruction {
            warnings.push(format!("instruction: model '{}' takes none, so it was ignored", target.id));
        }
        let width = width(&target, &rows, request.dimensions, &mut warnings)?;
        if request.texts.len().saturating_mul(width as usize) > VALUES_MAX {
            let message = format!("{} rows of {width} values are more than {VALUES_MAX}", request.texts.len());
            return Err(Failure::new(FailureCode::Invalid, message).with_help("send fewer texts at once"));
        }
        let texts = pieces::tokens(self, &target, &rows, &request).await?;
        let adapter = target.adapter.clone();
        let job = |tokens: Vec<u32>| Job {
            client: request.client.share,
            salt: request.client.salt.clone(),
            tokens,
            adapter: adapter.clone(),
            row: Some(RowWish { width }),
            ..Job::default()
        };
        let target_of = &target;
        let compute = |tokens: Vec<u32>| {
            let job = job(tokens);
            async move { row(self.fleet.submit(target_of, job)?, &target_of.id).await }
        };
        let done = all(texts, compute).await?;
        let (mut found, mut tokens, mut reused) = (Vec::with_capacity(done.len()), 0, 0);
        for (mut values, usage) in done {
            rows.activation.apply(&mut values);
            tokens += u64::from(usage.prompt);
            reused += u64::from(usage.reused);
            found.push(values);
        }
        let span = tracing::Span::current();
        span.record("model", target.id.as_str()).record("outcome", "row");
        span.record("prompt_tokens", tokens).record("reused_tokens", reused);
        Ok(Rows { model: target.id.clone(), rows: found, tokens, rows_use: rows, warnings })
    }

    /// The purpose of a model's rows.
    pub(crate) async fn rows_use(&self, model: &str) -> Result<Option<RowsUse>, Failure> {
        Ok(self.fleet.target(model).await?.card.rows().cloned())
    }
}

/// Computes all texts, several at once, in their order. A text that is refused because too many wait is tried again after
/// one of the others, which then are fewer; without others there is nothing to wait for, and the refusal stands.
async fn all<T, F>(texts: Vec<Vec<u32>>, compute: impl Fn(Vec<u32>) -> F) -> Result<Vec<T>, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut done: Vec<Option<T>> = texts.iter().map(|_| None).collect();
    let mut waiting: VecDeque<(usize, Vec<u32>)> = texts.into_iter().enumerate().collect();
    let (mut running, mut room, mut since) = (FuturesUnordered::new(), AT_ONCE, 0);
    loop {
        while running.len() < room
            && let Some((index, tokens)) = waiting.pop_front()
        {
            let computing = compute(tokens.clone());
            running.push(async move { (index, tokens, computing.await) });
        }
        let Some((index, tokens, computed)) = running.next().await else { break };
        match computed {
            Ok(computed) => {
                done[index] = Some(computed);
                since += 1;
                // The queue may have emptied meanwhile.
                if since >= room {
                    (room, since) = ((room + 1).min(AT_ONCE), 0);
                }
            }
            Err(failure) if failure.code == FailureCode::Busy && !running.is_empty() => {
                (room, since) = (running.len(), 0);
                waiting.push_front((index, tokens));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(done.into_iter().flatten().collect())
}

/// The description of a model's rows, if they are for `kind`; otherwise the error says what the model can do.
fn checked(target: &Target, kind: Kind) -> Result<RowsUse, Failure> {
    let id = &target.id;
    let cannot =
        |message: String, help: &str| Err(Failure::new(FailureCode::Unsupported, message).at("model").with_help(help));
    let rows = match &target.card.rows {
        Err(why) => return cannot(format!("the hidden rows of '{id}' cannot be used: {why}"), ""),
        Ok(None) => {
            let message = format!("'{id}' writes text, and its plugin gives no hidden rows to make vectors of");
            return cannot(message, "serve a model for embeddings beside it");
        }
        Ok(Some(rows)) => rows,
    };
    let does = if rows.made_for { rows.kind.does() } else { "writes text" };
    match (kind, rows.kind) {
        _ if kind == rows.kind => Ok((**rows).clone()),
        (Kind::Embed, other) => {
            let path = if other == Kind::Rank { "/v1/rerank" } else { "/v1/classify" };
            cannot(format!("'{id}' {does}, which gives scores instead of vectors"), &format!("use {path}"))
        }
        (Kind::Rank, _) => cannot(format!("'{id}' {does} and does not score pairs"), "serve a reranker beside it"),
        (Kind::Classify, _) => cannot(format!("'{id}' {does} and has no classes"), "serve a classifier beside it"),
    }
}

/// The width of the rows that a client gets.
fn width(target: &Target, rows: &RowsUse, asked: Option<u32>, warnings: &mut Vec<String>) -> Result<u32, Failure> {
    use pensieve_protocol::rows::Matryoshka;
    let (id, own) = (&target.id, rows.dimensions);
    let Some(width) = asked.filter(|width| *width != own) else { return Ok(own) };
    let refused = |message: String| Err(Failure::new(FailureCode::Invalid, message).at("dimensions"));
    if width > own {
        return refused(format!("'{id}' gives {own} dimensions, not {width}"));
    }
    match &rows.matryoshka {
        Matryoshka::Any => {}
        Matryoshka::Widths(known) if known.contains(&width) => {}
        Matryoshka::Widths(known) => {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            return refused(format!("'{id}' gives {own} dimensions or {}, not {width}", known.join(", ")));
        }
        Matryoshka::Unknown => {
            let message = "does not say that its vectors may be cut: fewer dimensions may find less";
            warnings.push(format!("dimensions: model '{id}' {message}"));
        }
    }
    Ok(width)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Computes texts at a worker with room for `room` of them; returns the rows and how often it refused.
    async fn computed(texts: u32, room: usize) -> (Result<Vec<u32>, Failure>, usize) {
        let (running, refused) = (&Cell::new(0), &Cell::new(0));
        let compute = |tokens: Vec<u32>| async move {
            if running.get() >= room {
                refused.set(refused.get() + 1);
                return Err(Failure::new(FailureCode::Busy, "too many wait"));
            }
            running.set(running.get() + 1);
            for _ in 0..=tokens[0] % 5 {
                tokio::task::yield_now().await;
            }
            running.set(running.get() - 1);
            Ok(tokens[0])
        };
        let found = all((0..texts).map(|text| vec![text]).collect(), compute).await;
        (found, refused.get())
    }

    #[tokio::test]
    async fn texts_wait_for_each_other_where_a_worker_has_little_room() {
        for (texts, room) in [(1, 1), (200, AT_ONCE), (200, 3), (200, 1)] {
            let (found, refused) = computed(texts, room).await;
            assert_eq!(found.unwrap(), (0..texts).collect::<Vec<_>>(), "{texts} of {room}");
            assert!(room < AT_ONCE || refused == 0, "{refused}");
        }
    }

    #[tokio::test]
    async fn a_refusal_stands_where_only_others_are_in_the_way() {
        let (found, refused) = computed(200, 0).await;
        assert_eq!((found.unwrap_err().code, refused), (FailureCode::Busy, AT_ONCE));
    }
}
