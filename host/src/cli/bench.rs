//! `pensieve bench`: measures a model's speed through the fleet and a worker, the path that a server uses.
//!
//! Prompts are random tokens, so that no prefix is reused, and generations run past the end of a turn, so that all have
//! the same length. Every figure is the median of several rounds; gap quantiles are over all rounds. `--quality`
//! measures numerical accuracy instead.

mod devices;
pub(super) mod figures;
mod quality;
mod timeline;

use clap::Args;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

use super::{
    common_args::{AdapterArgs, CommonArgs},
    error::{CliError, CliResult, Exit},
    progress::LoadProgress,
    terminal::{self, tell},
};
use figures::{Round, Stream, median, quantile, rounded};
use pensieve_protocol::{
    card::{Card, State},
    job::{AdapterUse, Event, Failure, Job},
    timeline::Timeline,
    wire,
};
use pensieve_server::fleet::{Config, EventStream, Fleet, Update};
use timeline::TraceFile;

/// Smallest prompt chunk in a step, except for a prompt's last one.
const CHUNK_TOKENS_MIN: u32 = 16;

/// Measure how fast a model is on this machine.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve bench
  pensieve bench --model ./model.gguf --prompt 512 --generate 128 --concurrency 1,8
  pensieve bench --model ./model.gguf --concurrency 4 --beside 8192
  pensieve bench --model ./model.gguf --device cpu,cuda:0    (side by side)
  pensieve bench --model ./model.gguf --trace trace.json     (what each thread does when)
  pensieve bench --model ./model.gguf --quality README.md    (how far from the same weights in f32)
  pensieve bench --model starter --json | jq '.rounds[].decode_tokens_per_s'")]
pub(super) struct Bench {
    /// A configured model's id, a .gguf file, a folder, hf:OWNER/REPO[/FILE], or 'starter' [default: the first that is
    /// configured, else the starter].
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    /// Tokens per prompt.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt: u32,
    /// Tokens to generate per stream.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    generate: u32,
    /// Concurrent streams; several numbers are measured one after the other.
    #[arg(long, value_name = "A,B", value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: Vec<u32>,
    /// Also send a prompt of N tokens while the streams generate, and measure how it delays them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    beside: Option<u32>,
    /// Rounds per concurrency.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Also record what each CPU thread does in one more round (of the last concurrency, with at most 16 tokens
    /// generated), and write it to FILE as a Chrome trace.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Measure accuracy instead of speed: compare the model on this text with its own weights in f32 (perplexity, KL
    /// divergence, top-1 agreement). Needs four bytes of memory per parameter.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "generate", "concurrency", "beside", "rounds", "adapters", "trace"])]
    quality: Option<PathBuf>,
    /// How many tokens of the text to predict at most.
    #[arg(long, value_name = "N", default_value_t = 512, requires = "quality", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    positions: u32,
    /// How many tokens of the text to compute together: 1 as when a token is generated, 64 and more as in prompts, which have other
    /// kernels on some devices.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "quality", value_parser = clap::value_parser!(u32).range(1..=512))]
    chunk: u32,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// Streams cycle through the given adapters.
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Results for one model on one device.
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
    /// Adapters that streams cycled through.
    adapters: Vec<String>,
    rounds: Vec<Row>,
    /// How the threads spent a recorded round.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<timeline::Summary>,
}

/// Results at one concurrency.
#[derive(Debug, Serialize)]
struct Row {
    concurrency: u32,
    /// Tokens of all prompts, divided by the time until the last stream had its first token.
    prompt_tokens_per_s: f64,
    /// From the start of the round; median over streams.
    first_token_ms: f64,
    /// Sum over streams, while all of them were generating.
    decode_tokens_per_s: f64,
    /// Between consecutive tokens of a stream.
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    /// The engine's own share of the time in steps.
    engine_share: f64,
    /// Share of wall time not spent in the model: engine, socket, and waiting for each other.
    outside_model_share: f64,
    /// Streams while a long prompt is processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
}

/// How a long prompt delays running streams.
#[derive(Debug, Serialize)]
struct Beside {
    prompt_tokens: u32,
    /// Of the long prompt.
    first_token_ms: f64,
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    /// `gap_p99_ms` divided by the median gap without the long prompt.
    gap_p99_by_p50_alone: f64,
}

impl Bench {
    pub(super) fn run(self) -> CliResult {
        if let Some(text) = &self.quality {
            return self.run_quality(text);
        }
        let devices = self.common.each_device().len();
        if self.trace.is_some() && devices > 1 {
            return Err(CliError::new(Exit::Usage, "--trace is for one device: its file would be overwritten"));
        }
        let reports =
            self.common.each_device().iter().map(|common| self.measure_on(common)).collect::<Result<Vec<_>, _>>()?;
        match reports.as_slice() {
            [report] if self.json => terminal::say_json(&json(report)?),
            [report] => terminal::print(&table(report)),
            reports if self.json => terminal::say_json(&json(reports)?),
            reports => terminal::print(&devices::side_by_side(reports)),
        }
    }

    fn run_quality(&self, text: &Path) -> CliResult {
        let measure =
            |common: &CommonArgs| quality::measure(common, self.model.as_deref(), text, self.positions, self.chunk);
        let reports = self.common.each_device().iter().map(measure).collect::<Result<Vec<_>, _>>()?;
        match reports.as_slice() {
            [report] if self.json => terminal::say_json(&json(report)?),
            reports if self.json => terminal::say_json(&json(reports)?),
            reports => terminal::print(&reports.iter().map(quality::table).collect::<Vec<_>>().join("\n")),
        }
    }

    fn measure_on(&self, common: &CommonArgs) -> Result<Report, CliError> {
        let (mut resolved, model) = common.resolve_one(self.model.as_deref())?;
        self.adapters.add_to(&mut resolved.config, Some(&model))?;
        // Prefixes restored from disk would not be computed.
        resolved.config.cache.budget = 0;
        let config = resolved.fleet()?;
        super::runtime()?.block_on(self.measure(config, &model))
    }

    async fn measure(&self, mut config: Config, model: &str) -> Result<Report, CliError> {
        let trace = self.trace.as_deref().map(TraceFile::create).transpose()?;
        let concurrency_max = self.concurrency.iter().copied().max().unwrap_or(1);
        let card = Fleet::start(config.clone()).await?.target(model).await?.card;
        self.fit(&mut config, model, &card, concurrency_max)?;
        let fleet = Fleet::start(config).await?;
        let started = Instant::now();
        let mut loading = LoadProgress::default();
        let mut warm = self.submit(&fleet, model, &card, (16, 2), 0, false)?;
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
        let load = started.elapsed();
        let loaded = loaded(&fleet).await;
        let mut rows = Vec::new();
        for &concurrency in &self.concurrency {
            let mut rounds = Vec::new();
            for number in 1..=self.rounds {
                tell(format_args!("{concurrency} at once, round {number} of {}", self.rounds));
                rounds.push(self.round(&fleet, model, &card, concurrency).await?);
            }
            let mut row = self.row(concurrency, &rounds);
            if let Some(prompt) = self.beside {
                tell(format_args!("{concurrency} at once, beside a prompt of {prompt}"));
                row.beside = Some(self.beside(&fleet, model, &card, concurrency, prompt, row.gap_p50_ms).await?);
            }
            rows.push(row);
        }
        let timeline = match trace {
            Some(file) => Some(self.record(&fleet, model, &card, file).await?),
            None => None,
        };
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
            timeline,
        })
    }

    /// Sizes the KV budget for all streams at once; fails if the longest does not fit the context.
    fn fit(&self, config: &mut Config, model: &str, card: &Card, concurrency: u32) -> CliResult {
        let tokens = u64::from(self.prompt) + u64::from(self.generate.max(self.generated_beside()));
        let longest = tokens.max(self.beside.map_or(0, |prompt| u64::from(prompt) + 1));
        let configured = config.models.iter().find(|configured| configured.id == model).or(config.models.first());
        let context = configured.map_or(0, |configured| configured.spec.context);
        let context = if context == 0 { card.context } else { context.min(card.context) };
        if longest > u64::from(context) {
            let line = format!(
                "prompt and answer have {longest} tokens, the model's context {context}; lower --prompt, --generate or --beside"
            );
            return Err(CliError::new(Exit::Usage, line));
        }
        let (streams, beside) = (u64::from(concurrency), u64::from(self.beside.is_some()));
        let bytes = match card.state {
            State::Paged { tokens: block, bytes, beside: besides } => {
                let blocks = |tokens: u64| tokens.div_ceil(u64::from(block)) + 1;
                (blocks(tokens) * streams + blocks(longest) * beside) * bytes + (streams + beside) * 2 * besides
            }
            State::PerSequence { bytes } => (streams + beside) * bytes,
        };
        for model in &mut config.models {
            model.spec.kv_budget = Some(bytes.max(1 << 20).max(model.spec.kv_budget.unwrap_or(0)));
            model.spec.limits.sequences_max = model.spec.limits.sequences_max.max(concurrency + 1);
            model.spec.limits.waiting_max = model.spec.limits.waiting_max.max(concurrency + 1);
        }
        Ok(())
    }

    fn submit(
        &self,
        fleet: &Fleet,
        model: &str,
        card: &Card,
        (prompt, generate): (u32, u32),
        index: u32,
        timeline: bool,
    ) -> Result<EventStream, Failure> {
        let tokens = (0..prompt).map(|_| fastrand::u32(..card.vocabulary)).collect();
        let name = self.adapters.names().into_iter().cycle().nth(index as usize);
        let adapter = name.map(|name| AdapterUse { name, scale: 1.0 });
        let (max_tokens, ignore_end_of_turn) = (generate, true);
        fleet.submit_to(model, Job { tokens, max_tokens, ignore_end_of_turn, adapter, timeline, ..Job::default() })
    }

    async fn round(&self, fleet: &Fleet, model: &str, card: &Card, concurrency: u32) -> Result<Round, CliError> {
        let before = times(fleet).await;
        let started = Instant::now();
        let (mut running, mut streams) = (JoinSet::new(), Vec::new());
        for index in 0..concurrency {
            let stream = Arc::<Mutex<Stream>>::default();
            let events = self.submit(fleet, model, card, (self.prompt, self.generate), index, false)?;
            running.spawn(follow(events, stream.clone()));
            streams.push(stream);
        }
        while let Some(joined) = running.join_next().await {
            joined.map_err(|error| CliError::new(Exit::Failed, error.to_string()))??;
        }
        let streams = streams.iter().map(|stream| std::mem::take(&mut *lock(stream))).collect();
        let after = times(fleet).await;
        let (forward_us, overhead_us) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        Ok(Round { started, streams, forward_us, overhead_us })
    }

    /// Records the threads in a round, writes the file, and returns a summary.
    async fn record(
        &self,
        fleet: &Fleet,
        model: &str,
        card: &Card,
        file: TraceFile,
    ) -> Result<timeline::Summary, CliError> {
        let concurrency = self.concurrency.last().copied().unwrap_or(1);
        tell(format_args!("{concurrency} at once, recorded"));
        let tokens = (self.prompt, self.generate.min(timeline::TOKENS));
        let mut recorded = self.submit(fleet, model, card, tokens, 0, true)?;
        let mut others = JoinSet::new();
        for index in 1..concurrency {
            others.spawn(follow(self.submit(fleet, model, card, tokens, index, false)?, Arc::default()));
        }
        let mut found = Timeline::default();
        while let Some(update) = recorded.next().await {
            match update {
                Update::Event(Event::Timeline(timeline)) => found = timeline,
                Update::Event(Event::Failed(failure)) => return Err(failure.into()),
                Update::Event(_) | Update::Loading { .. } => {}
            }
        }
        while let Some(joined) = others.join_next().await {
            joined.map_err(|error| CliError::new(Exit::Failed, error.to_string()))??;
        }
        file.write(&found)
    }

    /// Measures the gaps of running streams until a long prompt has its first token.
    async fn beside(
        &self,
        fleet: &Fleet,
        model: &str,
        card: &Card,
        concurrency: u32,
        prompt: u32,
        alone: f64,
    ) -> Result<Beside, CliError> {
        let streams: Vec<Arc<Mutex<Stream>>> = (0..concurrency).map(|_| Arc::default()).collect();
        let mut running = JoinSet::new();
        for (index, stream) in (0..).zip(&streams) {
            let events = self.submit(fleet, model, card, (self.prompt, self.generated_beside()), index, false)?;
            running.spawn(follow(events, stream.clone()));
        }
        while streams.iter().any(|stream| lock(stream).arrivals.len() < 2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if let Some(ended) = running.try_join_next() {
                ended.map_err(|error| CliError::new(Exit::Failed, error.to_string()))??;
            }
        }
        let started = Instant::now();
        let long = Arc::<Mutex<Stream>>::default();
        follow(self.submit(fleet, model, card, (prompt, 1), 0, false)?, long.clone()).await?;
        let ended = Instant::now();
        // Dropping an event stream cancels its job.
        running.shutdown().await;
        let mut gaps: Vec<f64> = streams.iter().flat_map(|stream| lock(stream).gaps_between(started, ended)).collect();
        gaps.sort_by(f64::total_cmp);
        let gap_p99_ms = quantile(&gaps, 0.99);
        Ok(Beside {
            prompt_tokens: prompt,
            first_token_ms: rounded(lock(&long).first(started)),
            gap_p50_ms: quantile(&gaps, 0.5),
            gap_p99_ms,
            gap_p99_by_p50_alone: if alone > 0.0 { rounded(gap_p99_ms / alone) } else { 0.0 },
        })
    }

    /// Tokens that a stream may generate while the long prompt is processed in the smallest chunks.
    fn generated_beside(&self) -> u32 {
        self.beside.map_or(0, |prompt| self.generate.max(prompt / CHUNK_TOKENS_MIN + 64))
    }

    fn row(&self, concurrency: u32, rounds: &[Round]) -> Row {
        let mut gaps: Vec<f64> = rounds.iter().flat_map(|round| round.streams.iter().flat_map(Stream::gaps)).collect();
        gaps.sort_by(f64::total_cmp);
        let firsts = rounds.iter().flat_map(|round| round.streams.iter().map(|stream| stream.first(round.started)));
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
            beside: None,
        }
    }
}

async fn follow(mut events: EventStream, stream: Arc<Mutex<Stream>>) -> Result<(), Failure> {
    while let Some(update) = events.next().await {
        match update {
            Update::Event(Event::Tokens(tokens)) => lock(&stream).arrivals.push((Instant::now(), tokens.ids.len())),
            Update::Event(Event::Failed(failure)) => return Err(failure),
            Update::Event(_) | Update::Loading { .. } => {}
        }
    }
    Ok(())
}

fn lock(stream: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Microseconds that workers have spent in the model, and in the engine's part of steps.
async fn times(fleet: &Fleet) -> (u64, u64) {
    let stats = fleet.stats(true).await;
    let workers = stats.models.iter().filter_map(|model| model.worker.as_ref());
    workers.fold((0, 0), |sum, worker| (sum.0 + worker.forward_us, sum.1 + worker.overhead_us))
}

async fn loaded(fleet: &Fleet) -> wire::Loaded {
    fleet.stats(false).await.models.into_iter().find_map(|model| model.loaded).unwrap_or_default()
}

fn json<T: Serialize + ?Sized>(reports: &T) -> Result<String, CliError> {
    let line = serde_json::to_string(reports).map_err(|error| CliError::system("the report", &error.into()))?;
    Ok(line)
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
            &format!("streams cycle through the adapters {}\n", report.adapters.join(", ")),
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
    for row in &report.rounds {
        if let Some(beside) = &row.beside {
            text.push_str(&format!(
                "\n{} streams beside a prompt of {} tokens, which took {:.0} ms: gap p50 {:.2} ms, p99 {:.2} ms, {:.2} x the median without it\n",
                row.concurrency,
                beside.prompt_tokens,
                beside.first_token_ms,
                beside.gap_p50_ms,
                beside.gap_p99_ms,
                beside.gap_p99_by_p50_alone,
            ));
        }
    }
    if let Some(timeline) = &report.timeline {
        text.push_str(&timeline.table());
    }
    text
}
