//! Rows instead of text: embeddings, scores of pairs, classes. Tokenizes the texts with what belongs around them, checks
//! their lengths, and has one job for each run, several at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::Semaphore;

use super::{Chats, pair_template::INSTRUCTION, pieces, rows_model::RowsModel, rows_request::RowsRequest};
use crate::{answers::row, fleet::Target};
use pensieve_protocol::{
    job::{Failure, FailureCode, Job, RowWish},
    rows::{Kind, RowsUse},
    wire::Limits,
};

/// Texts of one request that are computed at the same time.
const REQUEST_TEXTS_MAX: usize = 64;
const RERANKER: &str = "serve a reranker beside it";
const CLASSIFIER: &str = "serve a classifier beside it";
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
        let RowsModel { id: model, warning } = self.rows_model(&request.client, &request.model, kind).await?;
        self.permit(&request.client, &model)?;
        let target = self.fleet.target(&model).await?;
        let rows = checked(&target, kind)?;
        let mut warnings = Vec::from_iter(warning);
        if !rows.made_for {
            let message = "was made to write text; its last token's hidden row is returned as an embedding";
            warnings.push(format!("model '{}' {message}", target.id));
        }
        let takes_instruction = rows.pair_template.as_ref().is_some_and(|template| template.contains(INSTRUCTION));
        if request.instruction.is_some() && !takes_instruction {
            warnings.push(format!("instruction: model '{}' takes none, so it was ignored", target.id));
        }
        let width = width(&target, &rows, &request, &mut warnings)?;
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
        let compute = |tokens: Vec<u32>| {
            let (job, target) = (job(tokens), &target);
            async move { row(self.fleet.submit(target, job)?, &target.id).await }
        };
        let turns = self.turns.of(&target.id, worker_texts_max(&target.limits, rows.generates));
        let done = all(texts, &turns, compute).await?;
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

/// The turns of each model's texts, by its id. A worker has only so many texts at a time, over all requests: the others wait
/// here, first come, first served, and each request only for one at a time, so that one with many texts does not hold up
/// one with a few. What is written beside them finds a place at once.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Turns {
    /// The turns of a model whose worker takes `texts_max` at a time.
    fn of(&self, model: &str, texts_max: usize) -> Arc<Semaphore> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A configuration that has changed counts once nobody waits by the old one.
        known.retain(|_, turns| Arc::strong_count(turns) > 1);
        known.entry(model.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(texts_max))).clone()
    }
}

/// The texts that a worker has at a time: half of its places. A model that does nothing else has all of them, as far as
/// others of its texts may wait.
fn worker_texts_max(limits: &Limits, generates: bool) -> usize {
    let (running, waiting) = (limits.sequences_max as usize, limits.waiting_max as usize);
    let places = if generates { running } else { running + waiting.min(running) };
    (places / 2).max(1)
}

/// Computes all texts, as many at once as get a turn, in their order.
async fn all<T, F>(texts: Vec<Vec<u32>>, turns: &Semaphore, compute: impl Fn(Vec<u32>) -> F) -> Result<Vec<T>, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let asking = tokio::sync::Mutex::new(());
    let in_turn = texts.into_iter().map(|tokens| async {
        let turn = {
            let _only_one_asks = asking.lock().await;
            turns.acquire().await
        };
        let computed = compute(tokens).await;
        drop(turn);
        computed
    });
    stream::iter(in_turn).buffered(REQUEST_TEXTS_MAX).try_collect().await
}

/// The description of a model's rows, if they are for `kind`; otherwise the error says what the model can do.
fn checked(target: &Target, kind: Kind) -> Result<RowsUse, Failure> {
    let id = &target.id;
    let cannot =
        |message: String, help: &str| Err(Failure::new(FailureCode::Unsupported, message).at("model").with_help(help));
    let rows = match &target.card.rows {
        Err(why) => return cannot(format!("the hidden rows of '{id}' cannot be used: {why}"), ""),
        Ok(None) => {
            let (wanted, help) = match kind {
                Kind::Embed => ("make vectors of", "serve a model for embeddings beside it"),
                Kind::Rank => ("score pairs by", RERANKER),
                Kind::Classify => ("find classes by", CLASSIFIER),
            };
            return cannot(format!("'{id}' writes text, and its plugin gives no hidden rows to {wanted}"), help);
        }
        Ok(Some(rows)) => rows,
    };
    let does = if rows.made_for { rows.kind.verb() } else { "writes text" };
    match (kind, rows.kind) {
        _ if kind == rows.kind => Ok((**rows).clone()),
        (Kind::Embed, other) => {
            let path = if other == Kind::Rank { "/v1/rerank" } else { "/v1/classify" };
            cannot(format!("'{id}' {does}, which gives scores instead of vectors"), &format!("use {path}"))
        }
        (Kind::Rank, _) => cannot(format!("'{id}' {does} and does not score pairs"), RERANKER),
        (Kind::Classify, _) => cannot(format!("'{id}' {does} and has no classes"), CLASSIFIER),
    }
}

/// The width of the rows that a client gets.
fn width(target: &Target, rows: &RowsUse, request: &RowsRequest, warnings: &mut Vec<String>) -> Result<u32, Failure> {
    use pensieve_protocol::rows::Matryoshka;
    let (id, own, field) = (&target.id, rows.dimensions, request.fields.dimensions);
    let Some(width) = request.dimensions.filter(|width| *width != own) else { return Ok(own) };
    let refused = |message: String| Err(Failure::new(FailureCode::Invalid, message).at(field));
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
            warnings.push(format!("{field}: model '{id}' {message}"));
        }
    }
    Ok(width)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Computes texts of several requests at a worker with room for `room`; returns the rows, and the order of requests.
    async fn computed(requests: &[u32], room: usize) -> (Vec<Vec<u32>>, Vec<usize>) {
        let (running, order) = (&Cell::new(0), &RefCell::new(Vec::new()));
        let turns = &Arc::new(Semaphore::new(room));
        let request = |(index, texts): (usize, &u32)| {
            let compute = move |tokens: Vec<u32>| async move {
                running.set(running.get() + 1);
                assert!(running.get() <= room);
                order.borrow_mut().push(index);
                for _ in 0..=tokens[0] % 5 {
                    tokio::task::yield_now().await;
                }
                running.set(running.get() - 1);
                Ok(tokens[0])
            };
            all((0..*texts).map(|text| vec![text]).collect(), turns, compute)
        };
        let rows = futures_util::future::try_join_all(requests.iter().enumerate().map(request)).await.unwrap();
        (rows, order.take())
    }

    #[tokio::test]
    async fn texts_keep_their_order_however_few_are_computed_at_once() {
        for (texts, room) in [(1, 1), (200, 64), (200, 3), (200, 1)] {
            assert_eq!(computed(&[texts], room).await.0, [(0..texts).collect::<Vec<_>>()], "{texts} of {room}");
        }
    }

    #[tokio::test]
    async fn a_request_with_many_texts_does_not_hold_up_one_with_a_few() {
        let (rows, order) = computed(&[500, 4, 500], 2).await;
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [500, 4, 500]);
        let last = order.iter().rposition(|index| *index == 1).unwrap();
        assert!(last < 16, "{:?}", &order[..=last]);
    }

    #[tokio::test]
    async fn the_first_failure_ends_a_request() {
        let turns = Arc::new(Semaphore::new(4));
        let compute = |tokens: Vec<u32>| async move {
            if tokens[0] == 7 { Err(Failure::new(FailureCode::Busy, "too many wait")) } else { Ok(tokens[0]) }
        };
        let found = all((0..100).map(|text| vec![text]).collect(), &turns, compute).await;
        assert_eq!((found.unwrap_err().code, turns.available_permits()), (FailureCode::Busy, 4));
    }

    #[test]
    fn half_of_a_workers_places_are_left_to_what_is_written() {
        let of = |sequences_max, waiting_max, generates| {
            worker_texts_max(&Limits { sequences_max, waiting_max, ..Limits::default() }, generates)
        };
        assert_eq!((of(64, 1024, true), of(64, 1024, false), of(64, 0, false)), (32, 64, 32));
        assert_eq!((of(1, 0, true), of(1, 1024, false), of(3, 0, true)), (1, 1, 1));
    }

    #[test]
    fn turns_are_those_of_the_configuration_once_nobody_waits() {
        let turns = Turns::default();
        let first = turns.of("a", 2);
        assert!(Arc::ptr_eq(&first, &turns.of("a", 5)) && !Arc::ptr_eq(&first, &turns.of("b", 2)));
        drop(first);
        assert_eq!(turns.of("a", 5).available_permits(), 5);
    }
}
