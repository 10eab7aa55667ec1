//! `pensieve prompt`: tokenizes one model's prompts, or compiles one client's grammars, for the server that started it.
//! Not meant for users: it exchanges frames over its standard streams, and ends with the server.

use super::terminal::tell;
use std::process::ExitCode;

use clap::Args;

#[derive(Args)]
pub(super) struct Prompt;

impl Prompt {
    pub(super) fn run(self) -> ExitCode {
        match pensieve_prompt::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell(format_args!("pensieve prompt: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}
