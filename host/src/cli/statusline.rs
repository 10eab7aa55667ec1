//! `pensieve statusline`: one line for the status line of Claude Code, which runs it after each message and passes a
//! description of the session on standard input.

use clap::Args;
use serde::Deserialize;
use std::{
    io::{IsTerminal, Read},
    time::Duration,
};

use super::{
    error::CliResult,
    ps::{LastAnswer, Running, Usage},
    server_client::{Method, ServerArgs},
    terminal,
};
use pensieve_protocol::outside::Outside;

const SESSION_BYTES_MAX: u64 = 1 << 20;
/// Claude Code gives up on slow status lines.
const PATIENCE: Duration = Duration::from_millis(800);
const MODEL_CHARS_MAX: usize = 40;

/// Print one line about the model for Claude Code's status line: how far a prompt is read, or how full the context is.
#[derive(Args)]
#[command(after_help = "In ~/.claude/settings.json, or by 'pensieve setup claude':
  \"statusLine\": { \"type\": \"command\", \"command\": \"pensieve statusline\" }")]
pub(super) struct StatusLine {
    #[command(flatten)]
    server: ServerArgs,
}

/// The part of Claude Code's description of a session that is used here.
#[derive(Default, Deserialize)]
struct Session {
    #[serde(default)]
    model: SessionModel,
}

#[derive(Default, Deserialize)]
struct SessionModel {
    #[serde(default)]
    id: String,
}

impl StatusLine {
    /// A status line never fails: what is wrong is its text.
    pub(super) fn run(self) -> CliResult {
        let session = session();
        let asked = self.server.client().and_then(|client| client.patient(PATIENCE).ask(Method::Get, "/v1/usage"));
        let line = match asked {
            Ok(usage) => line(&usage, &session.model.id),
            Err(error) => {
                format!("pensieve: {}", Outside::new(error.lines.first().map_or("", String::as_str)).at_most(120))
            }
        };
        terminal::say(&line)
    }
}

fn session() -> Session {
    let mut text = String::new();
    if std::io::stdin().is_terminal()
        || std::io::stdin().lock().take(SESSION_BYTES_MAX).read_to_string(&mut text).is_err()
    {
        return Session::default();
    }
    serde_json::from_str(&text).unwrap_or_default()
}

/// The request that has run for longest, else the last answer of the session's model, else of any.
fn line(usage: &Usage, model: &str) -> String {
    let short = |model: &str| Outside::new(model).at_most(MODEL_CHARS_MAX).to_string();
    if let Some(Running { model, seconds, text }) = usage.running.iter().max_by_key(|running| running.seconds) {
        return format!("{}: {} ({seconds} s)", short(model), Outside::new(text));
    }
    let answer = usage.data.iter().find(|answer| model.ends_with(&answer.model)).or(usage.data.first());
    let Some(LastAnswer { model, context_window, context_tokens, tokens_per_second }) = answer else {
        return "pensieve: no answer yet".to_owned();
    };
    let percent = context_tokens.saturating_mul(100).checked_div(*context_window).unwrap_or(0);
    format!("{}: {percent}% of {}k context, {tokens_per_second:.0} tokens/s", short(model), context_window / 1000)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tells_of_the_running_request_else_of_the_last_answer() {
        let check = |usage: serde_json::Value, model: &str, expected: &str| {
            assert_eq!(line(&serde_json::from_value(usage).unwrap(), model), expected);
        };
        let answer = |model: &str, tokens: u64| json!({"model": model, "context_window": 32_768, "context_tokens": tokens, "tokens_per_second": 27.4});
        let running = json!([{"model": "a", "seconds": 9, "text": "reading 12k of 18k tokens, about 20 s left"}]);
        let reading = json!({"data": [answer("a", 9)], "running": running});
        check(reading, "a", "a: reading 12k of 18k tokens, about 20 s left (9 s)");
        let answers = json!({"data": [answer("a", 100), answer("b", 16_384)], "running": []});
        check(answers.clone(), "pensieve/claude-b", "b: 50% of 32k context, 27 tokens/s");
        check(answers, "", "a: 0% of 32k context, 27 tokens/s");
        check(json!({"data": []}), "a", "pensieve: no answer yet");
    }
}
