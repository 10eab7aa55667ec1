//! The server's log: to stderr, since stdout says where it listens and nothing else.

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object each, for programs.
    Json,
}

/// Begins the log. `filter` says how much, in the words of `tracing`: a level, or one for each part, as
/// `warn,pensieve::fleet=debug`.
pub(super) fn begin<W>(format: LogFormat, filter: &str, writer: W) -> Result<(), String>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse(filter).map_err(|error| format!("the log cannot begin: {error}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let begun = match format {
        LogFormat::Text => {
            use std::io::IsTerminal as _;
            lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init()
        }
        LogFormat::Json => lines.json().with_current_span(true).with_span_list(false).try_init(),
    };
    begun.map_err(|error| format!("the log cannot begin: {error}"))
}
