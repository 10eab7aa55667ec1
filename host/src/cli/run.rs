//! `pensieve run`: one answer, or a chat, without a server. The model still runs in a worker process, so that a
//! crashing plugin yields an error message.

mod chat;

use clap::Args;
use serde_json::json;
use std::{
    io::{self, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    common_args::{AdapterArgs, CommonArgs},
    error::{CliError, CliResult, Exit},
    progress::LoadProgress,
    terminal,
};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Usage};
use pensieve_server::{
    chat::{AdapterSelection, Conversation, Delta, Input, Part, Request, Role, SamplingParams, Turn},
    fleet::Fleet,
    requests::{Chats, ImageLimits},
};

const PROMPT_BYTES_MAX: u64 = 32 << 20;

/// Ask a model a question without a server; without a question, chat with it.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve run                                    (a chat; /exit ends it)
  pensieve run \"list all files, the newest first\"
  pensieve run ./model.gguf \"Why is the sky blue?\"
  pensieve run --model ./model.gguf --max-tokens 200 \"Why is the sky blue?\"
  pensieve run --model hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF --system \"Answer in French.\" Hello
  git diff | pensieve run --system \"Write a commit message.\" -
  pensieve run --model ./model.gguf --adapter poet=./poet \"A poem about rain.\"
  pensieve run --json \"list files\" | jq -r .text")]
pub(super) struct Run {
    /// A configured model's id, a .gguf file, a folder, hf:OWNER/REPO[/FILE], or 'starter' [default: the first that is
    /// configured, else the starter].
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    /// The system prompt.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens to generate [default: 'max_tokens' of the configuration, 32768].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Sampling temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", value_parser = temperature, allow_hyphen_values = true)]
    temperature: Option<f32>,
    /// Seed of the sampler; equal seeds give equal answers.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Continue the text instead of answering it, without the chat template.
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// Print one line of JSON when the answer is complete.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    adapters: AdapterArgs,
    /// Strength of the first adapter; 1 is as trained.
    #[arg(long, value_name = "S", requires = "adapters", value_parser = scale, allow_hyphen_values = true)]
    adapter_scale: Option<f32>,
    #[command(flatten)]
    common: CommonArgs,
    /// The question; '-' reads it from standard input. Without one, a chat starts. A .gguf file, a folder with a checkpoint
    /// or hf:OWNER/REPO in front of it is the model.
    #[arg(required_if_eq_any = [("raw", "true"), ("json", "true")])]
    prompt: Vec<String>,
}

/// The part of the answer received so far.
#[derive(Default)]
struct Completion {
    text: String,
    thinking: String,
    finish: Option<(Finish, Usage)>,
    first_token: Option<Duration>,
}

impl Run {
    pub(super) fn run(mut self) -> CliResult {
        self.take_source();
        if self.prompt.is_empty() && (self.raw || self.json) {
            return Err(CliError::new(Exit::Usage, "--raw and --json need a question after the model"));
        }
        let request = if self.prompt.is_empty() { None } else { Some(self.request()?) };
        let (mut resolved, model) = self.common.resolve_one(self.model.as_deref())?;
        self.adapters.add_to(&mut resolved.config, Some(&model))?;
        // A single answer gains nothing from the disk cache.
        resolved.config.cache.budget = 0;
        self.max_tokens = self.max_tokens.or(resolved.config.server.dialects.max_tokens);
        let config = resolved.fleet()?;
        let runtime = super::runtime()?;
        let outcome = runtime.block_on(async {
            let fleet = Arc::new(Fleet::start(config).await?);
            let chats = Chats::new(fleet.clone(), ImageLimits::default());
            let outcome = match request {
                Some(request) => {
                    self.answer_once(&chats, Request { model, max_tokens: self.max_tokens, ..request }).await
                }
                None => self.chat(&chats, &model).await,
            };
            fleet.shutdown(Duration::ZERO).await;
            outcome
        });
        // A thread of the chat may be blocked on standard input.
        runtime.shutdown_background();
        outcome
    }

    /// `run FILE "question"`: a first word that names a checkpoint is the model.
    fn take_source(&mut self) {
        let has_more = self.prompt.len() > 1;
        if self.model.is_none() && self.prompt.first().is_some_and(|word| is_source(word, has_more)) {
            self.model = Some(self.prompt.remove(0));
        }
    }

    async fn answer_once(&self, chats: &Chats, request: Request) -> CliResult {
        let model = request.model.clone();
        let completion = self.answer(chats, request).await?;
        self.conclude(&model, &completion)
    }

    fn request(&self) -> Result<Request, CliError> {
        let prompt = if self.prompt == ["-"] { standard_input()? } else { self.prompt.join(" ") };
        if prompt.trim().is_empty() {
            return Err(CliError::new(Exit::Usage, "the question is empty"));
        }
        let turn = |text| Turn { role: Role::User, parts: vec![Part::Text(text)] };
        Ok(self.request_for(if self.raw { Input::Text(prompt) } else { self.conversation(vec![turn(prompt)]) }))
    }

    fn conversation(&self, turns: Vec<Turn>) -> Input {
        let system = self.system.clone().unwrap_or_default();
        Input::Chat(Conversation { system, turns, ..Conversation::default() })
    }

    fn request_for(&self, input: Input) -> Request {
        let sampling = SamplingParams { temperature: self.temperature, seed: self.seed, ..SamplingParams::default() };
        let adapter = AdapterSelection { name: self.adapters.names().into_iter().next(), scale: self.adapter_scale };
        Request { input, max_tokens: self.max_tokens, sampling, adapter, ..Request::default() }
    }

    async fn answer(&self, chats: &Chats, request: Request) -> Result<Completion, CliError> {
        let mut completion = Completion::default();
        self.receive(chats, request, &mut completion).await.map(|()| completion)
    }

    /// Prints an answer while it is generated, and appends it to `answer`.
    async fn receive(&self, chats: &Chats, request: Request, answer: &mut Completion) -> CliResult {
        let started = Instant::now();
        let mut generation = chats.prepare(request).await?.start("run")?;
        let mut loading = LoadProgress::default();
        while let Some(delta) = generation.next().await {
            match delta {
                Delta::Loading { done, total, what } => loading.reach(done, total, &what),
                Delta::Started { .. }
                | Delta::Prompt { .. }
                | Delta::Cache(_)
                | Delta::Compacted { .. }
                | Delta::Unknown(_) => {
                    loading.end();
                }
                Delta::Thinking(text) => {
                    answer.first_token.get_or_insert_with(|| started.elapsed());
                    if !self.json {
                        terminal::show_thinking(&text);
                    }
                    answer.thinking.push_str(&text);
                }
                Delta::Text { text, .. } => {
                    answer.first_token.get_or_insert_with(|| started.elapsed());
                    if !self.json {
                        terminal::print_answer(&text)?;
                    }
                    answer.text.push_str(&text);
                }
                // The request offers no tools.
                Delta::ToolCall { .. } | Delta::ToolArguments(_) => {}
                Delta::Finished { reason, usage } => answer.finish = Some((reason, usage)),
                Delta::Failed(failure) => {
                    loading.end();
                    return Err(failure.into());
                }
            }
        }
        Ok(())
    }

    fn conclude(&self, model: &str, answer: &Completion) -> CliResult {
        let Some((reason, usage)) = answer.finish else {
            return Err(Failure::new(FailureCode::WorkerLost, "the answer broke off").into());
        };
        if !self.json {
            return terminal::print(if answer.text.ends_with('\n') { "" } else { "\n" });
        }
        let line = json!({
            "model": model,
            "text": answer.text,
            "thinking": answer.thinking,
            "finish": finish(reason),
            "prompt_tokens": usage.prompt,
            "generated_tokens": usage.generated,
            "first_token_ms": answer.first_token.map(|elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
        });
        terminal::say_json(&line.to_string())
    }
}

/// True for a first word that names a checkpoint and cannot be a question. One that is missing is one, too: its error says
/// more than another model's answer. `has_more` is true if more words follow.
fn is_source(word: &str, has_more: bool) -> bool {
    let path = std::path::Path::new(word);
    let is_file = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let is_hub = word.strip_prefix("hf:").is_some_and(|name| name.contains('/') && !name.contains(char::is_whitespace));
    let is_rooted = ["/", "./", "../", "~/"].iter().any(|start| word.starts_with(start) && word.len() > start.len());
    let is_path = (is_rooted || has_more && word != "/" && word.contains('/')) && !word.contains(char::is_whitespace);
    is_hub || is_path || (is_file && !word.contains('\n')) || path.join("config.json").is_file()
}

fn finish(reason: Finish) -> &'static str {
    match reason {
        Finish::Length => "max_tokens",
        Finish::Repetition => "repetition",
        Finish::Refused => "refused",
        Finish::Paused => "paused",
        Finish::ContextFull => "context_full",
        Finish::Deadline => "deadline",
        Finish::Cancelled => "cancelled",
        Finish::EndOfTurn | Finish::StopString(_) | Finish::StopToken(_) | Finish::GrammarDone => "end",
    }
}

fn standard_input() -> Result<String, CliError> {
    let mut text = String::new();
    let read = io::stdin().lock().take(PROMPT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| CliError::new(Exit::Usage, format!("standard input cannot be read: {error}")))?;
    if text.len() as u64 > PROMPT_BYTES_MAX {
        return Err(CliError::new(Exit::Usage, "standard input is larger than 32 MiB"));
    }
    Ok(text)
}

fn scale(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| (-16.0..=16.0).contains(number));
    number.ok_or_else(|| "it has to be a number from -16 to 16".into())
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "it has to be a number from 0 to 100".into())
}

#[cfg(test)]
mod tests {
    use super::is_source;

    #[test]
    fn a_first_word_that_looks_like_a_path_is_the_model_even_if_it_is_missing() {
        for (word, has_more, expected) in [
            ("/nope", true, true),
            ("/nope", false, true),
            ("./models/nope", false, true),
            ("models/nope", true, true),
            ("nope.gguf", false, true),
            ("hf:a/b", false, true),
            ("and/or", false, false),
            ("what is TCP/IP?", true, false),
            ("/ what does a slash mean", false, false),
            ("/", true, false),
            ("hello", true, false),
        ] {
            assert_eq!(is_source(word, has_more), expected, "{word}");
        }
    }
}
