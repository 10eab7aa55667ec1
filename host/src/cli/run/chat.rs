//! `pensieve run` without a question: a chat with one turn per line.
//!
//! Ctrl-C stops an answer, and the part shown so far stays in the history; at the prompt it ends the chat, as do
//! `/exit` and the end of standard input. A turn that fails is left out of the history and the chat continues; when
//! standard input is not a terminal, the chat ends with the error.

use std::{
    io::{self, BufRead, IsTerminal},
    thread,
};
use tokio::{
    signal,
    sync::mpsc::{self, Receiver},
};

use super::super::terminal::{say, tell, tell_all, tell_part};
use super::{CliError, CliResult, Completion, PROMPT_BYTES_MAX, Run};
use pensieve_server::{
    chat::{Part, Request, Role, Turn},
    requests::Chats,
};

const HELP: &str = "/clear starts a new conversation, /exit ends the chat, Ctrl-C stops an answer";

impl Run {
    pub(super) async fn chat(&self, chats: &Chats, model: &str) -> CliResult {
        let is_terminal = io::stdin().is_terminal();
        if is_terminal {
            tell(format_args!("chatting with '{model}'; {HELP}"));
        }
        let mut lines = lines();
        let mut turns: Vec<Turn> = Vec::new();
        loop {
            if is_terminal {
                tell_part("> ");
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = signal::ctrl_c() => None,
            };
            let Some(line) = line.transpose()? else {
                if is_terminal {
                    tell("");
                }
                return Ok(());
            };
            match line.trim() {
                "" => {}
                "/exit" | "/quit" | "/bye" => return Ok(()),
                "/clear" => turns.clear(),
                "/help" => tell(HELP),
                command if command.starts_with('/') && !command.contains([' ', '.']) && !command[1..].contains('/') => {
                    tell(format_args!("there is no command '{command}'; {HELP}"));
                }
                question => self.turn(chats, model, question, &mut turns).await?,
            }
        }
    }

    /// Answers one line, and adds question and answer to the history.
    async fn turn(&self, chats: &Chats, model: &str, question: &str, turns: &mut Vec<Turn>) -> CliResult {
        turns.push(Turn { role: Role::User, parts: vec![Part::Text(question.to_owned())] });
        let request = Request { model: model.to_owned(), ..self.request_for(self.conversation(turns.clone())) };
        let mut completion = Completion::default();
        let answered = tokio::select! {
            answered = self.receive(chats, request, &mut completion) => answered,
            // Dropping the future drops the generation, which cancels it.
            _ = signal::ctrl_c() => {
                tell_part(" (stopped)");
                Ok(())
            }
        };
        if !completion.text.ends_with('\n') {
            say("")?;
        }
        if let Err(error) = answered {
            if !io::stdin().is_terminal() {
                return Err(error);
            }
            tell_all(&error);
        }
        if completion.text.is_empty() {
            turns.pop();
        } else {
            turns.push(Turn { role: Role::Assistant, parts: vec![Part::Text(completion.text)] });
        }
        Ok(())
    }
}

/// Lines of standard input, read on their own thread, as a blocking read cannot be cancelled.
fn lines() -> Receiver<Result<String, CliError>> {
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut line = String::new();
            let read = io::Read::take(&mut stdin, PROMPT_BYTES_MAX).read_line(&mut line);
            let line = match read {
                Ok(0) => return,
                Ok(_) => Ok(line),
                Err(error) => Err(CliError::system("standard input cannot be read", &error)),
            };
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
