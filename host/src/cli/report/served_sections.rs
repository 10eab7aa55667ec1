//! The sections that measure answers: by the prompt's length, of 20 streams, after idling, and for ten minutes.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

use super::{
    super::{
        bench::figures::{Round, median, quantile, rounded},
        common_args::CommonArgs,
        error::{CliError, Exit},
    },
    event::SectionEvent,
    served::{Answer, Log, Served, configure},
    system,
};
use pensieve_server::fleet::footprint;

type Say<'a> = &'a mut dyn FnMut(SectionEvent);

const STREAMS: u32 = 20;
/// Prompts of the section about speed.
const PROMPTS: [u32; 5] = [64, 512, 2_048, 8_192, 18_000];
const QUICK_PROMPTS: [u32; 2] = [16, 64];
const SOAK_STREAMS: u32 = 4;
const SOAK_PROMPT: u32 = 64;
const SOAK_ANSWER: u32 = 192;
const SAMPLES: u32 = 60;

/// How much each section asks for.
struct Amounts {
    prompts: &'static [u32],
    answer: u32,
    rounds: usize,
    /// Tokens that the streams share, and those that each has of its own.
    shared: u32,
    own: u32,
    idle: Duration,
    soak: Duration,
}

impl Amounts {
    fn new(quick: bool) -> Self {
        let seconds = Duration::from_secs;
        if quick {
            let (idle, soak) = (seconds(1), seconds(5));
            Self { prompts: &QUICK_PROMPTS, answer: 8, rounds: 1, shared: 64, own: 8, idle, soak }
        } else {
            let (idle, soak) = (seconds(60), seconds(600));
            Self { prompts: &PROMPTS, answer: 64, rounds: 3, shared: 1_024, own: 64, idle, soak }
        }
    }
}

pub(super) fn measure(
    common: &CommonArgs,
    model: Option<&str>,
    name: &str,
    quick: bool,
    say: Say<'_>,
) -> Result<SectionEvent, CliError> {
    let amounts = Amounts::new(quick);
    let (config, log) = (configure(common, model)?, Log::begin()?);
    super::super::runtime()?.block_on(async {
        let (streams, tokens) = match name {
            "speed" | "idle" => (1, amounts.prompts.last().copied().unwrap_or_default() + amounts.answer),
            "streams" => (STREAMS, amounts.shared + amounts.own + amounts.answer),
            "soak" => (SOAK_STREAMS, SOAK_PROMPT + SOAK_ANSWER),
            _ => return Err(CliError::new(Exit::Usage, format!("there is no section '{name}'"))),
        };
        let served = Arc::new(Served::start(config, streams, tokens).await?);
        let started = Instant::now();
        served.warm().await?;
        let load_s = rounded(started.elapsed().as_secs_f64());
        let mut result = match name {
            "speed" => speed(&served, &amounts, say).await,
            "streams" => streams_over_a_prefix(&served, &amounts).await,
            "idle" => idle(&served, &amounts, say).await,
            _ => soak(&served, &amounts, say).await,
        };
        let loaded =
            served.fleet.stats(false).await.models.into_iter().find_map(|model| model.loaded).unwrap_or_default();
        result["load_s"] = json!(load_s);
        result["device"] = json!(loaded.device);
        result["note"] = json!(loaded.note);
        result["deaths"] = json!(served.worker().await.1);
        if let Ok(served) = Arc::try_unwrap(served) {
            served.end().await;
        }
        let lines = log.lines();
        result["missing_pools_at_least"] = json!(lines.missing_pools);
        result["log"] = json!(lines.kept);
        Ok(SectionEvent::Found(result))
    })
}

/// One stream: prompts of growing length, and the tokens after each.
async fn speed(served: &Served, amounts: &Amounts, say: Say<'_>) -> Value {
    let fit = |&&prompt: &&u32| prompt + amounts.answer <= served.card.context;
    let prompts: Vec<u32> = amounts.prompts.iter().filter(fit).copied().collect();
    let mut rows = Vec::new();
    for (done, &prompt) in prompts.iter().enumerate() {
        let what = format!("a prompt of {prompt} tokens");
        say(SectionEvent::Reaches { done: done as u64, total: prompts.len() as u64, what });
        let (mut rounds, mut failures) = (Vec::new(), Vec::new());
        // What takes minutes on a small machine is not repeated.
        for _ in 0..if prompt > 2_048 { 1 } else { amounts.rounds } {
            let started = Instant::now();
            let Answer { stream, failure, .. } = served.answer(served.random(prompt), amounts.answer, |_| ()).await;
            failures.extend(failure);
            rounds.push(Round { started, streams: vec![stream], forward_us: 0, overhead_us: 0 });
        }
        let firsts = rounds.iter().map(|round| round.streams[0].first(round.started));
        rows.push(json!({
            "prompt_tokens": prompt,
            "generated_tokens": amounts.answer,
            "first_token_ms": median(firsts),
            "prompt_tokens_per_s": median(rounds.iter().map(|round| round.prompt_rate(u64::from(prompt)))),
            "decode_tokens_per_s": median(rounds.iter().map(Round::decode_rate)),
            "failures": failures,
        }));
        say(SectionEvent::Found(json!({ "rows": rows })));
    }
    json!({ "rows": rows })
}

/// A prefix that one stream computes, then 20 at once that go on from it, each with tokens of its own.
async fn streams_over_a_prefix(served: &Arc<Served>, amounts: &Amounts) -> Value {
    let prefix = served.random(amounts.shared);
    let with_own = || [prefix.clone(), served.random(amounts.own)].concat();
    let started = Instant::now();
    let alone = served.answer(with_own(), amounts.answer, |_| ()).await;
    let alone_first_ms = alone.stream.first(started);
    let mut running = JoinSet::new();
    let started = Instant::now();
    for _ in 0..STREAMS {
        let (served, tokens, generate) = (served.clone(), with_own(), amounts.answer);
        running.spawn(async move { served.answer(tokens, generate, |_| ()).await });
    }
    let answers = running.join_all().await;
    let failures: Vec<&String> = answers.iter().chain([&alone]).filter_map(|answer| answer.failure.as_ref()).collect();
    let mut firsts: Vec<f64> = answers.iter().map(|answer| answer.stream.first(started)).collect();
    firsts.sort_by(f64::total_cmp);
    let mut gaps: Vec<f64> = answers.iter().flat_map(|answer| answer.stream.gaps()).collect();
    gaps.sort_by(f64::total_cmp);
    let reused: u64 = answers.iter().map(|answer| u64::from(answer.reused)).sum();
    let result = json!({
        "streams": STREAMS, "shared_tokens": amounts.shared, "own_tokens": amounts.own, "generated_tokens": amounts.answer,
        "reused_tokens": reused, "alone_first_token_ms": rounded(alone_first_ms),
        "first_token_p50_ms": quantile(&firsts, 0.5), "first_token_last_ms": quantile(&firsts, 1.0),
        "gap_p50_ms": quantile(&gaps, 0.5), "gap_p99_ms": quantile(&gaps, 0.99), "failures": failures,
    });
    let streams = answers.into_iter().map(|answer| answer.stream).collect();
    let round = Round { started, streams, forward_us: 0, overhead_us: 0 };
    let mut result = result;
    result["decode_tokens_per_s"] = json!(rounded(round.decode_rate()));
    result
}

/// The first token of a short prompt: one right after another, after a pause, and once more.
async fn idle(served: &Served, amounts: &Amounts, say: Say<'_>) -> Value {
    let first = async || {
        let started = Instant::now();
        let answer = served.answer(served.random(32), 2, |_| ()).await;
        rounded(answer.stream.first(started))
    };
    let mut busy = Vec::new();
    for _ in 0..5 {
        busy.push(first().await);
    }
    say(SectionEvent::Reaches { done: 0, total: 1, what: format!("{} s without work", amounts.idle.as_secs()) });
    tokio::time::sleep(amounts.idle).await;
    let after = first().await;
    let again = first().await;
    json!({
        "idle_s": amounts.idle.as_secs(), "prompt_tokens": 32, "busy_first_token_ms": median(busy.into_iter()),
        "idle_first_token_ms": after, "next_first_token_ms": again,
    })
}

/// Streams without a pause; samples of seconds, tokens and bytes show what grows and what slows down.
async fn soak(served: &Arc<Served>, amounts: &Amounts, say: Say<'_>) -> Value {
    let (tokens, failures) = (Arc::<AtomicU64>::default(), Arc::<std::sync::Mutex<Vec<String>>>::default());
    let (started, span) = (Instant::now(), amounts.soak);
    let mut running = JoinSet::new();
    for _ in 0..SOAK_STREAMS {
        let (served, tokens, failures) = (served.clone(), tokens.clone(), failures.clone());
        running.spawn(async move {
            while started.elapsed() < span {
                let count = |came: usize| {
                    tokens.fetch_add(came as u64, Ordering::Relaxed);
                };
                let answer = served.answer(served.random(SOAK_PROMPT), SOAK_ANSWER, count).await;
                if let Some(failure) = answer.failure {
                    failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(failure);
                    // A worker that died is started again; asking at once would only count refusals.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
    }
    let (mut samples, mut pids) = (Vec::new(), Vec::new());
    while started.elapsed() < span {
        tokio::time::sleep(span / SAMPLES).await;
        if let Some(pid) = served.worker().await.0 {
            let bytes = footprint(pid);
            samples.push(Sample {
                seconds: started.elapsed().as_secs_f64(),
                tokens: tokens.load(Ordering::Relaxed),
                bytes,
            });
            if pids.last() != Some(&pid) {
                pids.push(pid);
            }
        }
        let done = started.elapsed().as_secs().min(span.as_secs());
        say(SectionEvent::Reaches { done, total: span.as_secs(), what: "answers without a pause".into() });
        say(SectionEvent::Found(soaked(&samples, pids.len(), &failures)));
    }
    running.join_all().await;
    let mut result = soaked(&samples, pids.len(), &failures);
    result["thermal_state"] = json!(system::thermal_state());
    result
}

struct Sample {
    seconds: f64,
    tokens: u64,
    bytes: Option<u64>,
}

fn soaked(samples: &[Sample], workers: usize, failures: &std::sync::Mutex<Vec<String>>) -> Value {
    let failures = failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let mut reasons = BTreeMap::<&str, usize>::new();
    for failure in &failures {
        *reasons.entry(failure).or_default() += 1;
    }
    let rows: Vec<Value> =
        samples.iter().map(|sample| json!([rounded(sample.seconds), sample.tokens, sample.bytes])).collect();
    let quarter = samples.len() / 4;
    json!({
        "streams": SOAK_STREAMS,
        "seconds": samples.last().map_or(0.0, |last| rounded(last.seconds)),
        "tokens": samples.last().map_or(0, |last| last.tokens),
        "first_quarter_tokens_per_s": rate(samples.get(..=quarter).unwrap_or_default()),
        "last_quarter_tokens_per_s": rate(samples.get(samples.len().saturating_sub(quarter + 1)..).unwrap_or_default()),
        // Caches fill in the beginning.
        "bytes_per_1000_tokens": growth(samples.get(quarter..).unwrap_or_default()),
        "workers": workers,
        "failures": failures.len(),
        // A step is one command buffer, whose error fails the answers that were in it.
        "failures_by_reason": reasons,
        "samples": rows,
    })
}

#[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn rate(samples: &[Sample]) -> Option<f64> {
    let (first, last) = (samples.first()?, samples.last()?);
    let seconds = last.seconds - first.seconds;
    (seconds > 0.0).then(|| rounded((last.tokens - first.tokens) as f64 / seconds))
}

/// The slope of a line through bytes by tokens, with least squares, for 1,000 tokens.
#[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn growth(samples: &[Sample]) -> Option<f64> {
    let points: Vec<(f64, f64)> =
        samples.iter().filter_map(|sample| Some((sample.tokens as f64, sample.bytes? as f64))).collect();
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (tokens, bytes) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - tokens).powi(2)).sum();
    let shared: f64 = points.iter().map(|point| (point.0 - tokens) * (point.1 - bytes)).sum();
    (spread > 0.0).then(|| rounded(shared / spread * 1e3))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_samples_after_the_first_quarter() {
        // A cache that fills at once, then 300 bytes a token.
        let sample = |index: u64| {
            let bytes = if index == 0 { 0 } else { 50_000_000 + 300 * 100 * index };
            Sample { seconds: index as f64, tokens: 100 * index, bytes: Some(bytes) }
        };
        let samples: Vec<Sample> = (0..12).map(sample).collect();
        let result = soaked(&samples, 1, &std::sync::Mutex::default());
        assert_eq!(
            (result["bytes_per_1000_tokens"].as_f64(), result["tokens"].as_u64()),
            (Some(300_000.0), Some(1_100))
        );
        assert_eq!(result["first_quarter_tokens_per_s"].as_f64(), Some(100.0));
        let result = soaked(&[], 0, &std::sync::Mutex::new(vec!["lost".into(), "lost".into()]));
        assert_eq!((result["failures"].as_u64(), &result["bytes_per_1000_tokens"]), (Some(2), &Value::Null));
        assert_eq!(result["failures_by_reason"], json!({ "lost": 2 }));
    }
}
