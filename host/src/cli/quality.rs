//! `pensieve probe quality`: runs a text through a model as it is configured and through the same weights in f32, as
//! the child of `pensieve bench --quality`.
//!
//! Full rows of logits are too much for a worker's socket, so both models run in this process, chunk by chunk in
//! lockstep, and only sums leave it.

mod divergence;
mod reader;

use pensieve_plugin_api::{ArchitectureBox, LoadRequest, PluginError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{fs::File, io::Read, path::PathBuf, process::ExitCode, thread};

use clap::Args;

use super::{
    error::{CliError, Exit},
    laws,
    reply::{self, Reply, SharedReply},
};
use crate::config::units;
use divergence::Divergence;
use pensieve_prompt::Model;
use pensieve_protocol::{
    card::Card,
    job::Failure,
    outside::Outside,
    prompt::{STACK_BYTES, Tokenizer},
};
use pensieve_worker::plugin::HostServices;
use reader::Reader;

/// Options of the f32 reference, on top of the model's own.
const REFERENCE: [(&str, &str); 2] = [("kernels", "exact"), ("kv", "f32")];
/// Limits how much of the text file is read.
const BYTES_PER_TOKEN_MAX: u64 = 64;

/// Compute how far a model is from its own weights in f32.
#[derive(Args)]
pub(super) struct RunQuality {
    #[arg(long)]
    device: String,
    #[arg(long)]
    context: u32,
    #[arg(long)]
    threads: u32,
    /// Bytes for both models together.
    #[arg(long)]
    memory: u64,
    /// Number of tokens to predict.
    #[arg(long)]
    positions: u32,
    /// Tokens per step; two rows of logits per token are in memory.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    chunk: u32,
    #[arg(long)]
    options: String,
    /// The plugin's library.
    plugin: PathBuf,
    /// The architecture in it.
    architecture: String,
    /// The checkpoint.
    source: PathBuf,
    /// The text file.
    text: PathBuf,
}

/// The child's messages to `bench --quality`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum QualityEvent {
    /// Progress of loading a checkpoint or reading the text.
    Reaches {
        done: u64,
        total: u64,
        what: String,
    },
    Warns {
        message: String,
    },
    Found(Quality),
    Stopped {
        exit: Exit,
        reason: String,
    },
}

/// How far a model is from its own weights in f32.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Quality {
    pub(super) architecture: String,
    pub(super) device: String,
    pub(super) note: String,
    /// Kernels of the f32 reference.
    pub(super) reference_note: String,
    /// Number of tokens that were predicted.
    pub(super) positions: u64,
    /// Length of the longest sequence that the text was cut into.
    pub(super) sequence_tokens: u64,
    /// Most tokens of a sequence that were computed together.
    pub(super) chunk_tokens: u32,
    pub(super) perplexity: f64,
    pub(super) reference_perplexity: f64,
    /// Mean divergence of the model's predictions from the reference's, in nats.
    pub(super) kl_divergence: f64,
    /// 99th percentile over positions.
    pub(super) kl_divergence_p99: f64,
    /// Top-1 agreement: the fraction of positions at which both rank the same token first.
    pub(super) first_choices_equal: f64,
}

impl RunQuality {
    pub(super) fn run(self) -> ExitCode {
        reply::status(Reply::attended().and_then(|reply| {
            reply.line(&match self.measure(&reply) {
                Ok(quality) => QualityEvent::Found(quality),
                Err(error) => QualityEvent::Stopped { exit: error.exit, reason: error.lines.join("; ") },
            })
        }))
    }

    fn measure(&self, reply: &SharedReply) -> Result<Quality, CliError> {
        let plugin = laws::open(&self.plugin)?;
        let architecture = plugin.architecture(&self.architecture);
        let architecture = architecture.map_err(|error| self.refused("cannot be created", &error))?;
        let own = plugin.options(&self.options);
        let options = with_reference(&own)?;
        let configured = self.describe(&architecture, &own)?;
        let exact = self.describe(&architecture, &options).map_err(|error| self.no_exact_kernels(&options, &error))?;
        let text = self.read_text()?;
        let tokens = tokens(exact.read.clone(), text, self.positions as usize)?;
        let context =
            if self.context == 0 { configured.read.context } else { self.context.min(configured.read.context) };
        let sequences = Sequences::cut(&configured.read, &tokens, context as usize);
        self.check_memory(&configured, &exact)?;
        let load = |options: &str, card: Described| {
            let request = self.request(options, reader::state_bytes(&card.abi, sequences.longest, context))?;
            let model = architecture.load(&request, services(reply).into_abi()).into_result();
            model.map(|model| Reader::new(model, &card.abi)).map_err(|error| self.refused("does not load", &error))
        };
        let mut configured = load(&own, configured)?;
        let mut exact = load(&options, exact)?;
        let (resident, reference) = (configured.resident(), exact.resident());
        if resident.note == reference.note {
            let line = format!(
                "architecture '{}' uses the same kernels with the options {options}, so there is nothing to compare it with",
                self.architecture
            );
            return Err(CliError::new(Exit::Failed, line));
        }
        let divergence = sequences.compare(&mut configured, &mut exact, self.chunk as usize, |done, total| {
            // Fails only if the parent is gone, and then this process is about to be killed.
            let _ = reply.line(&QualityEvent::Reaches { done, total, what: "reading the text".into() });
        })?;
        Ok(Quality {
            architecture: self.architecture.clone(),
            device: resident.device.to_string(),
            note: resident.note.to_string(),
            reference_note: reference.note.to_string(),
            positions: divergence.positions(),
            sequence_tokens: sequences.longest as u64,
            chunk_tokens: self.chunk,
            perplexity: divergence.perplexity(),
            reference_perplexity: divergence.reference_perplexity(),
            kl_divergence: divergence.mean(),
            kl_divergence_p99: divergence.quantile(0.99),
            first_choices_equal: divergence.first_choices_equal(),
        })
    }

    /// Error for an architecture without exact kernels, such as one that wraps a model of another library.
    fn no_exact_kernels(&self, options: &str, error: &CliError) -> CliError {
        let line = format!(
            "architecture '{}' has no exact kernels, so there is nothing to compare it with: it refuses the options {options} of the \
             reference ({})",
            self.architecture,
            error.lines.join("; ")
        );
        CliError::new(Exit::Failed, line)
    }

    fn describe(&self, architecture: &ArchitectureBox, options: &str) -> Result<Described, CliError> {
        let described = architecture.describe(&laws::source(&self.source, options)?).into_result();
        let abi = described.map_err(|error| self.refused("does not describe the checkpoint", &error))?;
        let read = laws::read_card(&self.architecture, &abi)?;
        Ok(Described { abi, read })
    }

    fn request<'a>(&'a self, options: &'a str, state_bytes: u64) -> Result<LoadRequest<'a>, CliError> {
        let (source, device) = (laws::source(&self.source, options)?, self.device.as_str().into());
        Ok(LoadRequest { source, device, context: self.context, state_bytes, threads: self.threads })
    }

    /// Reads as much of the text as `positions` tokens can take.
    fn read_text(&self) -> Result<String, CliError> {
        let unread =
            |error: std::io::Error| CliError::system(format_args!("the text '{}'", Outside::path(&self.text)), &error);
        let (mut bytes, limit) = (Vec::new(), u64::from(self.positions).saturating_add(1) * BYTES_PER_TOKEN_MAX);
        File::open(&self.text).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(unread)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            // The limit cut the last character.
            Err(error) if error.error_len().is_none() => {
                bytes.truncate(error.valid_up_to());
                Ok(String::from_utf8(bytes).unwrap_or_default())
            }
            Err(_) => Err(CliError::new(Exit::Usage, format!("the text '{}' is not UTF-8", Outside::path(&self.text)))),
        }
    }

    fn check_memory(&self, configured: &Described, exact: &Described) -> Result<(), CliError> {
        let logits = 2 * u64::from(self.chunk) * u64::from(exact.read.vocabulary) * size_of::<f32>() as u64;
        let (configured, exact) = (configured.read.weight_bytes, exact.read.weight_bytes);
        if configured.saturating_add(exact).saturating_add(logits) <= self.memory {
            return Ok(());
        }
        let line = format!(
            "the weights take {} and {} more in f32, and logits {}, which together is more than the memory for models, {}; a smaller \
             model of the same family tells much the same",
            units::bytes(configured),
            units::bytes(exact),
            units::bytes(logits),
            units::bytes(self.memory)
        );
        Err(CliError::new(Exit::Failed, line))
    }

    fn refused(&self, what: &str, error: &PluginError) -> CliError {
        laws::refused(&self.architecture, what, error)
    }
}

/// A card in the contract's form and in the host's.
struct Described {
    abi: pensieve_plugin_api::Card,
    read: Card,
}

/// The text cut into sequences that fit the context, each with the BOS token if the model wants one.
struct Sequences {
    each: Vec<Vec<u32>>,
    longest: usize,
}

impl Sequences {
    fn cut(card: &Card, tokens: &[u32], context: usize) -> Self {
        let bos = card.bos.filter(|_| card.add_bos);
        let tokens = match (bos, tokens) {
            (Some(bos), [first, rest @ ..]) if *first == bos => rest,
            _ => tokens,
        };
        let capacity = context.saturating_sub(usize::from(bos.is_some())).max(1);
        let each = tokens.chunks(capacity).map(|chunk| bos.into_iter().chain(chunk.iter().copied()).collect());
        let each: Vec<Vec<u32>> = each.filter(|sequence: &Vec<u32>| sequence.len() > 1).collect();
        let longest = each.iter().map(Vec::len).max().unwrap_or(0);
        Self { each, longest }
    }

    /// Runs both models over all sequences, and compares their predictions for every token but the first of each.
    fn compare(
        &self,
        configured: &mut Reader,
        exact: &mut Reader,
        chunk: usize,
        mut reach: impl FnMut(u64, u64),
    ) -> Result<Divergence, CliError> {
        let total: usize = self.each.iter().map(|sequence| sequence.len() - 1).sum();
        if total == 0 {
            return Err(CliError::new(
                Exit::Usage,
                "the text has fewer than two tokens, so there is nothing to predict",
            ));
        }
        let mut divergence = Divergence::default();
        for sequence in &self.each {
            configured.begin();
            exact.begin();
            for start in (0..sequence.len() - 1).step_by(chunk) {
                reach(divergence.positions(), total as u64);
                let end = (sequence.len() - 1).min(start + chunk);
                let (tokens, next) = (&sequence[start..end], &sequence[start + 1..=end]);
                let rows = configured.read(tokens, start)?.zip(exact.read(tokens, start)?);
                for ((configured, exact), next) in rows.zip(next) {
                    divergence.add(exact, configured, *next).map_err(|what| CliError::new(Exit::Failed, what))?;
                }
            }
        }
        Ok(divergence)
    }
}

/// The model's options, overridden by those of the reference.
fn with_reference(options: &str) -> Result<String, CliError> {
    let mut object: Map<String, Value> = if options.trim().is_empty() {
        Map::new()
    } else {
        serde_json::from_str(options).map_err(|error| {
            CliError::new(Exit::Usage, format!("the model's options are not a JSON object: {error}"))
        })?
    };
    object.extend(REFERENCE.map(|(name, value)| (name.to_owned(), value.into())));
    Ok(Value::Object(object).to_string())
}

/// Tokenizes the text up to `positions` predictions, on a stack as large as that of a prompt process.
fn tokens(card: Card, text: String, positions: usize) -> Result<Vec<u32>, CliError> {
    let tokenize = move || -> Result<Vec<u32>, Failure> { Model::new(&Tokenizer::of(&card))?.text(&text, &[]) };
    let failed = |what: &str| CliError::new(Exit::Failed, format!("the text cannot be tokenized: {what}"));
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(tokenize);
    let thread = thread.map_err(|error| failed(&error.to_string()))?;
    let tokens = thread
        .join()
        .unwrap_or_else(|_| Err(Failure::new(pensieve_protocol::job::FailureCode::Internal, "the tokenizer panicked")));
    let mut tokens = tokens.map_err(|failure| failed(&failure.to_string()))?;
    tokens.truncate(positions + 1);
    Ok(tokens)
}

fn services(reply: &SharedReply) -> HostServices {
    reply.services(
        |message| QualityEvent::Warns { message },
        |done, total, what| QualityEvent::Reaches { done, total, what },
    )
}
