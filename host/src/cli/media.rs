//! `pensieve media`: decodes one model's pictures for the server that started it, and has the model's plugin prepare them. Not
//! meant for users: it exchanges frames over its standard streams, and ends with the server.

use super::terminal::tell;
use std::process::ExitCode;

use clap::Args;

#[derive(Args)]
pub(super) struct Media;

impl Media {
    pub(super) fn run(self) -> ExitCode {
        match pensieve_media::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell(format_args!("pensieve media: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}
