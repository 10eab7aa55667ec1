//! `pensieve bench`: how fast a model is here, measured through the fleet and a worker as a server uses them.
//!
//! Prompts are random tokens, so that nothing is reused, and generations go on past the end of a turn, so that all are equally
//! long. Every figure is the median of several rounds; the gaps between tokens are those of all rounds.

use clap::Args;
use serde::Serialize;
use std::{
    io::Write,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

use super::{
    exit::{Complaint, Exit, Outcome},
    given::{Adapters, Given},
    progress::Loading,
};
use crate::{
    card::{Card, State},
    fleet::{Config, EventStream, Fleet, Update},
    job::{AdapterUse, Event, Failure, Job},
    wire,
};

/// Measure how fast a model is on this machine.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve bench
  pensieve bench --model ./model.gguf --prompt 512 --generate 128 --concurrency 1,8
  pensieve bench --model starter --json | jq '.rounds[].decode_tokens_per_s'")]
pub(super) struct Bench {
    /// A configured model's id, a .gguf file, a folder, hf:OWNER/REPO[/FILE], or 'starter' [default: the first that is
    /// configured, else the starter].
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    /// Tokens of every prompt.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt: u32,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    generate: u32,
    /// How many streams at once; several numbers, each measured on its own.
    #[arg(long, value_name = "A,B", value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: Vec<u32>,
    /// How often each is measured.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// Streams take turns with the adapters that are given, and run under none where none is.
    #[command(flatten)]
    adapters: Adapters,
    #[command(flatten)]
    given: Given,
}

/// What was measured, of what.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    architecture: String,
    device: String,
    note: String,
    weight_bytes: u64,
    load_s: f64,
    prompt_tokens: u32,
    generated_tokens: u32,
    /// Adapters that streams took turns with.
    adapters: Vec<String>,
    rounds: Vec<Row>,
}

/// What was measured at one concurrency.
#[derive(Debug, Serialize)]
struct Row {
    concurrency: u32,
    /// All prompts' tokens by the time until the last stream had its first token.
    prompt_tokens_per_s: f64,
    /// Of a stream, from its start.
    first_token_ms: f64,
    /// Of all streams together, while all of them were generating.
    decode_tokens_per_s: f64,
    /// Between two tokens of a stream.
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    /// Of the time in steps, what the engine took besides the model.
    engine_share: f64,
    /// Of the whole time, what was not spent in the model: engine, socket, and waiting for each other.
    outside_model_share: f64,
}

/// One stream as it went.
#[derive(Debug)]
struct Stream {
    /// When tokens came, and how many.
    arrivals: Vec<(Instant, usize)>,
}

/// One round.
struct Round {
    begun: Instant,
    streams: Vec<Stream>,
    /// Microseconds in the model and in steps besides.
    forward_us: u64,
    overhead_us: u64,
}

impl Bench {
    pub(super) fn run(self) -> Outcome {
        let (mut settled, model) = self.given.settle_one(self.model.as_deref())?;
        self.adapters.add_to(&mut settled.config, Some(&model))?;
        // What the disk gives back is not computed.
        settled.config.cache.budget = 0;
        let config = settled.fleet()?;
        let report = super::runtime()?.block_on(self.measure(config, &model))?;
        let text = if self.json {
            let line =
                serde_json::to_string(&report).map_err(|error| Complaint::system("the report", &error.into()))?;
            format!("{line}\n")
        } else {
            table(&report)
        };
        std::io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .map_err(|error| Complaint::system("standard output", &error))
    }

    async fn measure(&self, mut config: Config, model: &str) -> Result<Report, Complaint> {
        let most = self.concurrency.iter().copied().max().unwrap_or(1);
        let card = Fleet::start(config.clone()).await?.card(model).await?;
        self.fit(&mut config, model, &card, most)?;
        let fleet = Fleet::start(config).await?;
        let begun = Instant::now();
        let mut loading = Loading::default();
        let mut warm = self.submit(&fleet, model, &card, (16, 2), 0)?;
        while let Some(update) = warm.next().await {
            match update {
                Update::Loading { done, total, what } => loading.reach(done, total, &what),
                Update::Event(Event::Failed(failure)) => {
                    loading.end();
                    return Err(failure.into());
                }
                Update::Event(_) => {}
            }
        }
        loading.end();
        let load = begun.elapsed();
        let loaded = loaded(&fleet).await;
        let mut rows = Vec::new();
        for &concurrency in &self.concurrency {
            let mut rounds = Vec::new();
            for number in 1..=self.rounds {
                eprintln!("{concurrency} at once, round {number} of {}", self.rounds);
                rounds.push(self.round(&fleet, model, &card, concurrency).await?);
            }
            rows.push(self.row(concurrency, &rounds));
        }
        fleet.shutdown(Duration::ZERO).await;
        Ok(Report {
            model: model.to_owned(),
            architecture: loaded.architecture,
            device: loaded.device,
            note: loaded.note,
            weight_bytes: loaded.weight_bytes,
            load_s: rounded(load.as_secs_f64()),
            prompt_tokens: self.prompt,
            generated_tokens: self.generate,
            adapters: self.adapters.names(),
            rounds: rows,
        })
    }

    /// Gives the model memory for all streams at once, or tells why that cannot be.
    fn fit(&self, config: &mut Config, model: &str, card: &Card, concurrency: u32) -> Outcome {
        let tokens = u64::from(self.prompt) + u64::from(self.generate);
        let configured = config.models.iter().find(|known| known.id == model).or(config.models.first());
        let context = configured.map_or(0, |known| known.context);
        let context = if context == 0 { card.context } else { context.min(card.context) };
        if tokens > u64::from(context) {
            let line = format!(
                "prompt and answer have {tokens} tokens, the model's context {context}; lower --prompt or --generate"
            );
            return Err(Complaint::new(Exit::Usage, line));
        }
        let streams = u64::from(concurrency);
        let bytes = match card.state {
            State::Paged { tokens: block, bytes } => (tokens.div_ceil(u64::from(block)) + 1) * streams * bytes,
            State::PerSequence { bytes } => streams * bytes,
        };
        for model in &mut config.models {
            model.state_bytes = Some(bytes.max(1 << 20).max(model.state_bytes.unwrap_or(0)));
            model.limits.sequences_max = model.limits.sequences_max.max(concurrency);
            model.limits.waiting_max = model.limits.waiting_max.max(concurrency);
        }
        Ok(())
    }

    fn submit(
        &self,
        fleet: &Fleet,
        model: &str,
        card: &Card,
        (prompt, generate): (u32, u32),
        place: u32,
    ) -> Result<EventStream, Failure> {
        let tokens = (0..prompt).map(|_| fastrand::u32(..card.vocabulary)).collect();
        let name = self.adapters.names().into_iter().cycle().nth(place as usize);
        let adapter = name.map(|name| AdapterUse { name, scale: 1.0 });
        fleet.submit(model, Job { tokens, max_tokens: generate, ignore_end_of_turn: true, adapter, ..Job::default() })
    }

    async fn round(&self, fleet: &Fleet, model: &str, card: &Card, concurrency: u32) -> Result<Round, Complaint> {
        let before = times(fleet).await;
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for place in 0..concurrency {
            running.spawn(follow(self.submit(fleet, model, card, (self.prompt, self.generate), place)?));
        }
        let mut streams = Vec::new();
        while let Some(joined) = running.join_next().await {
            let stream = joined.map_err(|error| Complaint::new(Exit::Failed, error.to_string()))?;
            streams.push(stream?);
        }
        let after = times(fleet).await;
        let (forward_us, overhead_us) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        Ok(Round { begun, streams, forward_us, overhead_us })
    }

    fn row(&self, concurrency: u32, rounds: &[Round]) -> Row {
        let mut gaps: Vec<f64> = rounds.iter().flat_map(|round| round.streams.iter().flat_map(Stream::gaps)).collect();
        gaps.sort_by(f64::total_cmp);
        let firsts = rounds.iter().flat_map(|round| round.streams.iter().map(|stream| stream.first(round.begun)));
        let prompts = u64::from(concurrency) * u64::from(self.prompt);
        Row {
            concurrency,
            prompt_tokens_per_s: median(rounds.iter().map(|round| round.prompt_rate(prompts))),
            first_token_ms: median(firsts),
            decode_tokens_per_s: median(rounds.iter().map(Round::decode_rate)),
            gap_p50_ms: quantile(&gaps, 0.5),
            gap_p99_ms: quantile(&gaps, 0.99),
            engine_share: median(rounds.iter().map(Round::engine_share)),
            outside_model_share: median(rounds.iter().map(Round::outside_share)),
        }
    }
}

async fn follow(mut events: EventStream) -> Result<Stream, Failure> {
    let mut stream = Stream { arrivals: Vec::new() };
    while let Some(update) = events.next().await {
        match update {
            Update::Event(Event::Tokens(tokens)) => stream.arrivals.push((Instant::now(), tokens.ids.len())),
            Update::Event(Event::Failed(failure)) => return Err(failure),
            Update::Event(_) | Update::Loading { .. } => {}
        }
    }
    Ok(stream)
}

/// Microseconds that the worker has spent in the model, and in steps besides.
async fn times(fleet: &Fleet) -> (u64, u64) {
    let stats = fleet.stats(true).await;
    let workers = stats.models.iter().filter_map(|model| model.worker.as_ref());
    workers.fold((0, 0), |sum, worker| (sum.0 + worker.forward_us, sum.1 + worker.overhead_us))
}

async fn loaded(fleet: &Fleet) -> wire::Loaded {
    fleet.stats(false).await.models.into_iter().find_map(|model| model.loaded).unwrap_or_default()
}

impl Stream {
    /// Milliseconds until its first token.
    fn first(&self, begun: Instant) -> f64 {
        self.arrivals.first().map_or(0.0, |(at, _)| ms(*at - begun))
    }

    /// Milliseconds between its tokens. Tokens that came together share the time since those before.
    fn gaps(&self) -> Vec<f64> {
        let pairs = self.arrivals.windows(2);
        let gaps = pairs.flat_map(|pair| std::iter::repeat_n(ms(pair[1].0 - pair[0].0) / count(pair[1].1), pair[1].1));
        gaps.collect()
    }
}

impl Round {
    /// When every stream had its first token, and when the first one ended.
    fn together(&self) -> Option<(Instant, Instant)> {
        let all_begun = self.streams.iter().filter_map(|stream| Some(stream.arrivals.first()?.0)).max()?;
        let one_ended = self.streams.iter().filter_map(|stream| Some(stream.arrivals.last()?.0)).min()?;
        Some((all_begun, one_ended))
    }

    fn prompt_rate(&self, tokens: u64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
        self.together().map_or(0.0, |(all_begun, _)| tokens as f64 / (all_begun - self.begun).as_secs_f64())
    }

    fn decode_rate(&self) -> f64 {
        let Some((from, to)) = self.together() else { return 0.0 };
        // Where streams end before others begin, there is no such time, and the whole round stands for it.
        let (from, to) = if to > from { (from, to) } else { (self.begun, self.end()) };
        let within = |&&(at, _): &&(Instant, usize)| at > from && at <= to;
        let tokens: usize =
            self.streams.iter().flat_map(|stream| stream.arrivals.iter().filter(within)).map(|(_, count)| count).sum();
        count(tokens) / (to - from).as_secs_f64()
    }

    fn end(&self) -> Instant {
        self.streams.iter().filter_map(|stream| Some(stream.arrivals.last()?.0)).max().unwrap_or(self.begun)
    }

    fn engine_share(&self) -> f64 {
        share(self.overhead_us, self.forward_us + self.overhead_us)
    }

    fn outside_share(&self) -> f64 {
        let whole = u64::try_from((self.end() - self.begun).as_micros()).unwrap_or(u64::MAX);
        share(whole.saturating_sub(self.forward_us), whole)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 1e5).round() / 1e5 }
}

#[allow(clippy::cast_precision_loss, reason = "nobody counts so far")]
fn count(number: usize) -> f64 {
    number as f64
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Three digits behind the point.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    quantile(&numbers, 0.5)
}

/// Of sorted numbers; 0 of none.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length is a place")]
    let place = (count(sorted.len().saturating_sub(1)) * part).round() as usize;
    let number = sorted.get(place).copied().unwrap_or(0.0);
    if number.abs() < 1.0 { (number * 1e5).round() / 1e5 } else { rounded(number) }
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{} ({}, {}) on {}, loaded in {:.2} s\nprompts of {} tokens, {} generated; medians\n\n",
        report.model,
        report.architecture,
        crate::config::units::bytes(report.weight_bytes),
        report.device,
        report.load_s,
        report.prompt_tokens,
        report.generated_tokens,
    );
    if !report.adapters.is_empty() {
        text.insert_str(
            text.len() - 1,
            &format!("streams take turns with the adapters {}\n", report.adapters.join(", ")),
        );
    }
    text.push_str(
        "streams  prompt tok/s  first token ms  decode tok/s  gap p50 ms  gap p99 ms  engine  outside model\n",
    );
    for row in &report.rounds {
        text.push_str(&format!(
            "{:>7}  {:>12.1}  {:>14.1}  {:>12.1}  {:>10.2}  {:>10.2}  {:>5.2}%  {:>12.2}%\n",
            row.concurrency,
            row.prompt_tokens_per_s,
            row.first_token_ms,
            row.decode_tokens_per_s,
            row.gap_p50_ms,
            row.gap_p99_ms,
            row.engine_share * 100.0,
            row.outside_model_share * 100.0,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two streams: the first token of each after 100 and 200 ms, then four more, 50 ms apart.
    fn round() -> Round {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let stream = |first: u64| Stream { arrivals: (0..5).map(|step| (at(first + 50 * step), 1)).collect() };
        Round { begun, streams: vec![stream(100), stream(200)], forward_us: 300_000, overhead_us: 3_000 }
    }

    #[test]
    fn rates_are_of_the_time_in_which_all_streams_run() {
        let round = round();
        assert!((round.prompt_rate(1000) - 5000.0).abs() < 1.0);
        // From 200 ms to 300 ms: two tokens of each.
        assert!((round.decode_rate() - 40.0).abs() < 0.1, "{}", round.decode_rate());
        assert!((round.engine_share() - 0.0099).abs() < 1e-4);
        assert!((round.outside_share() - 0.25).abs() < 1e-3);
    }

    #[test]
    fn gaps_are_of_single_tokens() {
        let round = round();
        let mut stream = Stream { arrivals: round.streams[0].arrivals.clone() };
        stream.arrivals[4].1 = 2;
        let gaps = stream.gaps();
        assert_eq!(gaps.len(), 5);
        assert!((gaps[0] - 50.0).abs() < 1e-6 && (gaps[4] - 25.0).abs() < 1e-6, "{gaps:?}");
        assert!((quantile(&[1.0, 2.0, 3.0], 0.5) - 2.0).abs() < 1e-9);
        assert!((quantile(&[], 0.99)).abs() < 1e-9);
    }
}
