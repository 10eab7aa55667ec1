//! `POST /api/pull`: reports success for a served model, and downloads one from the hub like `pensieve pull`. A downloaded
//! model is served once the configuration names it, which a running server reads again, or the command line does.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    LINES, error_line, model_name,
    models::{name_of, named},
};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, ErrorCode},
    fleet::default_budget,
    hub::{Hub, HubName, Progress, Pulled},
    requests::Chats,
};
use pensieve_protocol::job::Failure;

const PAUSE: Duration = Duration::from_millis(250);
/// Unread lines after which the download waits for the client.
const LINES_WAITING_MAX: usize = 16;

/// Answers with a stream of lines, or with the last line only.
pub(crate) async fn pull(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let ((name, is_stream), _) = call.read(|_, body| Ok((name_of(body)?, body.get("stream").flag(true)?))).await?;
    let absent = match named(&chats, &call, &name).await {
        Ok(_) => return Ok(ApiResponse::text(LINES, line(&success()))),
        Err(error) if error.code != ErrorCode::NotFound => return Err(error),
        Err(error) => error,
    };
    let Some(name) = hub_name(&name) else {
        let help = "name one of the hub, hf:OWNER/REPO, or serve it with 'pensieve serve --model ID=hf:OWNER/REPO'";
        return Err(ApiError { help: help.to_owned(), ..absent });
    };
    let name: HubName = name
        .parse()
        .map_err(|error| ApiError { field: Some("model".to_owned()), ..ApiError::from(Failure::from(error)) })?;
    if !call.shared.settings.model_downloads {
        let help = "set model_downloads of [server] to \"allow\"".to_owned();
        return Err(ApiError { help, ..ApiError::new(ErrorCode::Permission, "this server does not download models") });
    }
    let stream_permit = is_stream.then(|| call.stream_permit()).transpose()?;
    let permit = call.shared.download.clone().try_acquire_owned().map_err(|_| {
        ApiError::new(ErrorCode::Overloaded, "another model is being downloaded; try again when it is done")
    })?;
    let (sender, mut lines) = channel(LINES_WAITING_MAX);
    tokio::task::spawn_blocking(move || {
        let mut reporter = Reporter { sender, file: None, reported: None };
        reporter.say("pulling manifest");
        let hub = Hub::from_environment().map(|hub| Hub { memory: Some(default_budget()), ..hub });
        let pulled = hub.and_then(|hub| hub.pull(&name, &mut reporter));
        // A client that hears of the end may ask for the next one.
        drop(permit);
        reporter.conclude(&name, pulled.map_err(|error| ApiError::of_model(error.into())));
    });
    if let Some(permit) = stream_permit {
        let frames = Box::pin(unfold(lines, |mut lines: Receiver<Line>| async move {
            let value = lines.recv().await?.unwrap_or_else(|error| error_line(&error));
            Some((line(&value).into(), lines))
        }));
        return Ok(ApiResponse::stream(LINES, frames, permit));
    }
    while let Some(line) = lines.recv().await {
        line?;
    }
    Ok(ApiResponse::json(&success()))
}

/// A line of the answer, or the error that ends it.
type Line = Result<Value, ApiError>;

/// The hub repository in a model name as Ollama's clients write it.
fn hub_name(name: &str) -> Option<String> {
    let bare = ["hf:", "hf.co/", "huggingface.co/"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    Some(format!("hf:{}", model_name(bare)))
}

fn success() -> Value {
    json!({ "status": "success" })
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// Reports a download's progress to the client. A client that disconnects cancels it.
struct Reporter {
    sender: Sender<Line>,
    /// Name and size of the current file.
    file: Option<(String, u64)>,
    reported: Option<Instant>,
}

impl Reporter {
    fn send(&self, line: Line) {
        // Fails if the client has disconnected, which the download notices by itself.
        let _ = self.sender.blocking_send(line);
    }

    fn report(&self, done: u64) {
        if let Some((name, total)) = &self.file {
            let status = format!("pulling {name}");
            self.send(Ok(json!({ "status": status, "digest": name, "total": total, "completed": done })));
        }
    }

    fn conclude(&self, name: &HubName, pulled: Result<Pulled, ApiError>) {
        match pulled {
            Ok(_) => {
                self.send(Ok(json!({ "status": format!("serve it with: pensieve serve --model ID={name}") })));
                self.send(Ok(success()));
            }
            Err(error) => self.send(Err(error)),
        }
    }
}

impl Progress for Reporter {
    fn say(&mut self, line: &str) {
        self.send(Ok(json!({ "status": line })));
    }

    fn begin(&mut self, name: &str, done: u64, total: u64) {
        self.file = Some((name.to_owned(), total));
        self.reported = Some(Instant::now());
        self.report(done);
    }

    fn reach(&mut self, done: u64) {
        if self.reported.is_none_or(|reported| reported.elapsed() >= PAUSE) {
            self.reported = Some(Instant::now());
            self.report(done);
        }
    }

    fn end(&mut self) {
        self.report(self.file.as_ref().map_or(0, |(_, total)| *total));
    }

    fn is_cancelled(&self) -> bool {
        self.sender.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::hub_name;

    #[test]
    fn a_repository_may_be_called_as_ollama_calls_it() {
        for name in ["hf:a/b", "hf.co/a/b", "huggingface.co/a/b", "hf.co/a/b:latest"] {
            assert_eq!(hub_name(name).as_deref(), Some("hf:a/b"), "{name}");
        }
        assert_eq!(hub_name("llama3"), None);
    }
}
