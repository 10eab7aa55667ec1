//! `pensieve probe quality`: reads a text by a model as it is configured, and by the same weights with nothing rounded, as the
//! child of `pensieve bench --quality`.
//!
//! Whole rows of logits would be too much for a worker's socket, so both models live in this process and read the text in step, a
//! piece at a time; what leaves it are sums.

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

/// What the reference is told besides the model's own options.
const REFERENCE: [(&str, &str); 2] = [("kernels", "exact"), ("kv", "f32")];
/// Tokens that both models read in one step: two rows of logits for each lie in memory.
const PIECE: usize = 32;
/// Of a text no more is read than this many bytes for each token that is wanted.
const BYTES_OF_TOKEN: u64 = 64;

/// Compute how far a model is from its own weights in f32.
#[derive(Args)]
pub(super) struct RunQuality {
    #[arg(long)]
    device: String,
    #[arg(long)]
    context: u32,
    #[arg(long)]
    threads: u32,
    /// Bytes that both models may take together.
    #[arg(long)]
    memory: u64,
    /// Tokens whose successors are predicted.
    #[arg(long)]
    positions: u32,
    #[arg(long)]
    options: String,
    /// The plugin's library.
    plugin: PathBuf,
    /// The architecture in it.
    architecture: String,
    /// The checkpoint.
    source: PathBuf,
    /// What both models read.
    text: PathBuf,
}

/// What is said while the text is read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum QualityEvent {
    /// How far a checkpoint is loaded, or the text read.
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
    /// Which kernels computed what the model is compared with.
    pub(super) reference_note: String,
    /// Tokens whose successors were predicted.
    pub(super) positions: u64,
    /// The longest stretch of the text that was read as one sequence.
    pub(super) sequence_tokens: u64,
    pub(super) perplexity: f64,
    pub(super) reference_perplexity: f64,
    /// Of the model's predictions from the reference's, in nats: mean, and what one in a hundred exceeds.
    pub(super) kl_divergence: f64,
    pub(super) kl_divergence_p99: f64,
    /// The part of positions at which both think the same token the likeliest.
    pub(super) first_choices_equal: f64,
}

impl RunQuality {
    pub(super) fn run(self) -> ExitCode {
        reply::status(Reply::attended().and_then(|reply| {
            reply.line(&match self.measure(&reply) {
                Ok(found) => QualityEvent::Found(found),
                Err(error) => QualityEvent::Stopped { exit: error.exit, reason: error.lines.join("; ") },
            })
        }))
    }

    fn measure(&self, reply: &SharedReply) -> Result<Quality, CliError> {
        let plugin = laws::open(&self.plugin)?;
        let architecture = plugin.architecture(&self.architecture);
        let architecture = architecture.map_err(|error| self.refused("cannot be made", &error))?;
        let options = with_reference(&self.options)?;
        let found = self.describe(&architecture, &self.options)?;
        let exact = self.describe(&architecture, &options).map_err(|error| self.one_way(&options, &error))?;
        let text = self.read_text()?;
        let tokens = tokens(exact.read.clone(), text, self.positions as usize)?;
        let context = if self.context == 0 { found.read.context } else { self.context.min(found.read.context) };
        let sequences = Sequences::cut(&found.read, &tokens, context as usize);
        self.check_memory(&found, &exact)?;
        let load = |options: &str, card: Described| {
            let request = self.request(options, reader::state_bytes(&card.abi, sequences.longest, context))?;
            let model = architecture.load(&request, services(reply).into_abi()).into_result();
            model.map(|model| Reader::new(model, &card.abi)).map_err(|error| self.refused("does not load", &error))
        };
        let mut found = load(&self.options, found)?;
        let mut exact = load(&options, exact)?;
        let (resident, reference) = (found.resident(), exact.resident());
        if resident.note == reference.note {
            let line = format!(
                "architecture '{}' computes alike with the options {options}, so there is nothing to compare it with",
                self.architecture
            );
            return Err(CliError::new(Exit::Failed, line));
        }
        let divergence = sequences.compare(&mut found, &mut exact, |done, total| {
            // Without a parent this process is about to end.
            let _ = reply.line(&QualityEvent::Reaches { done, total, what: "reading the text".into() });
        })?;
        Ok(Quality {
            architecture: self.architecture.clone(),
            device: resident.device.to_string(),
            note: resident.note.to_string(),
            reference_note: reference.note.to_string(),
            positions: divergence.positions(),
            sequence_tokens: sequences.longest as u64,
            perplexity: divergence.perplexity(),
            reference_perplexity: divergence.reference_perplexity(),
            kl_divergence: divergence.mean(),
            kl_divergence_p99: divergence.quantile(0.99),
            first_choices_equal: divergence.first_choices_equal(),
        })
    }

    /// What is said of an architecture that knows no exact kernels, such as one that wraps a model of another library.
    fn one_way(&self, options: &str, error: &CliError) -> CliError {
        let line = format!(
            "architecture '{}' computes in one way alone, so there is nothing to compare it with: it does not take the options \
             {options} of the reference ({})",
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

    /// As many bytes of the text as the tokens that are wanted can have.
    fn read_text(&self) -> Result<String, CliError> {
        let unread =
            |error: std::io::Error| CliError::system(format_args!("the text '{}'", Outside::path(&self.text)), &error);
        let (mut bytes, most) = (Vec::new(), u64::from(self.positions).saturating_add(1) * BYTES_OF_TOKEN);
        File::open(&self.text).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(unread)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            // A character that the limit cuts.
            Err(error) if error.error_len().is_none() => {
                bytes.truncate(error.valid_up_to());
                Ok(String::from_utf8(bytes).unwrap_or_default())
            }
            Err(_) => Err(CliError::new(Exit::Usage, format!("the text '{}' is not UTF-8", Outside::path(&self.text)))),
        }
    }

    fn check_memory(&self, found: &Described, exact: &Described) -> Result<(), CliError> {
        let (found, exact) = (found.read.weight_bytes, exact.read.weight_bytes);
        if found.saturating_add(exact) <= self.memory {
            return Ok(());
        }
        let line = format!(
            "the weights take {} and {} more in f32, which together is more than the memory for models, {}; a smaller model of \
             the same family tells much the same",
            units::bytes(found),
            units::bytes(exact),
            units::bytes(self.memory)
        );
        Err(CliError::new(Exit::Failed, line))
    }

    fn refused(&self, what: &str, error: &PluginError) -> CliError {
        laws::refused(&self.architecture, what, error)
    }
}

/// A card as it crossed, and as this host reads it.
struct Described {
    abi: pensieve_plugin_api::Card,
    read: Card,
}

/// Stretches of a text, each of which fits the context, and begins as the model wants texts to begin.
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
        let room = context.saturating_sub(usize::from(bos.is_some())).max(1);
        let each = tokens.chunks(room).map(|chunk| bos.into_iter().chain(chunk.iter().copied()).collect());
        let each: Vec<Vec<u32>> = each.filter(|sequence: &Vec<u32>| sequence.len() > 1).collect();
        let longest = each.iter().map(Vec::len).max().unwrap_or(0);
        Self { each, longest }
    }

    /// Has both read everything, and compares what they predict of each token but the first of each sequence.
    fn compare(
        &self,
        found: &mut Reader,
        exact: &mut Reader,
        mut reach: impl FnMut(u64, u64),
    ) -> Result<Divergence, CliError> {
        let total: usize = self.each.iter().map(|sequence| sequence.len() - 1).sum();
        if total == 0 {
            return Err(CliError::new(Exit::Usage, "the text has less than two tokens, so nothing is predicted of it"));
        }
        let mut divergence = Divergence::default();
        for sequence in &self.each {
            found.begin();
            exact.begin();
            for start in (0..sequence.len() - 1).step_by(PIECE) {
                reach(divergence.positions(), total as u64);
                let end = (sequence.len() - 1).min(start + PIECE);
                let (tokens, next) = (&sequence[start..end], &sequence[start + 1..=end]);
                let rows = found.read(tokens, start)?.zip(exact.read(tokens, start)?);
                for ((found, exact), next) in rows.zip(next) {
                    divergence.add(exact, found, *next).map_err(|what| CliError::new(Exit::Failed, what))?;
                }
            }
        }
        Ok(divergence)
    }
}

/// The model's options with those of the reference in their place.
fn with_reference(options: &str) -> Result<String, CliError> {
    let mut object: Map<String, Value> = if options.trim().is_empty() {
        Map::new()
    } else {
        serde_json::from_str(options)
            .map_err(|error| CliError::new(Exit::Usage, format!("the model's options are no JSON object: {error}")))?
    };
    object.extend(REFERENCE.map(|(name, value)| (name.to_owned(), value.into())));
    Ok(Value::Object(object).to_string())
}

/// The tokens of a text, as many as predict `positions`, made on a stack as deep as that of a prompt process.
fn tokens(card: Card, text: String, positions: usize) -> Result<Vec<u32>, CliError> {
    let make = move || -> Result<Vec<u32>, Failure> { Model::new(&Tokenizer::of(&card))?.text(&text, &[]) };
    let failed = |what: &str| CliError::new(Exit::Failed, format!("the text could not be made into tokens: {what}"));
    let making = thread::Builder::new().stack_size(STACK_BYTES).spawn(make);
    let making = making.map_err(|error| failed(&error.to_string()))?;
    let made =
        making.join().unwrap_or_else(|_| Err(Failure::new(pensieve_protocol::job::FailureCode::Internal, "a panic")));
    let mut tokens = made.map_err(|failure| failed(&failure.to_string()))?;
    tokens.truncate(positions + 1);
    Ok(tokens)
}

fn services(reply: &SharedReply) -> HostServices {
    reply.services(
        |message| QualityEvent::Warns { message },
        |done, total, what| QualityEvent::Reaches { done, total, what },
    )
}
