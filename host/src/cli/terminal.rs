//! Writes to standard output and standard error, for all verbs: whatever is shown may hold names and words from outside, which
//! must not steer the terminal that they end on. A pipe does not make them harmless, as what is behind it may be a terminal.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use super::error::{CliError, CliResult};
use pensieve_protocol::outside::{self, Outside};

/// Characters of a line. What is longer repeats something from outside.
const LINE_CHARS_MAX: usize = 8192;

/// Says what went wrong, if something did.
pub(super) fn end(outcome: CliResult) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    tell_all(&error);
    ExitCode::from(error.exit as u8)
}

pub(super) fn tell_all(error: &CliError) {
    for line in &error.lines {
        tell(format_args!("pensieve: {}", Outside::new(line).at_most(LINE_CHARS_MAX)));
    }
}

/// Prints lines to standard output; a closed pipe is an error.
pub(super) fn print(text: &str) -> CliResult {
    write(&outside::lines(text))
}

/// The same with the end of the line.
pub(super) fn say(text: &str) -> CliResult {
    print(&format!("{text}\n"))
}

/// Prints JSON, and ends its line.
pub(super) fn say_json(text: &str) -> CliResult {
    write(&format!("{}\n", outside::json(text)))
}

/// Prints what a program reads to the byte: a script, a path. A person reads it like everything else.
pub(super) fn print_exact(text: &str) -> CliResult {
    if io::stdout().is_terminal() { print(text) } else { write(text) }
}

/// Prints a part of a model's answer, exactly where a program reads it.
pub(super) fn print_answer(text: &str) -> CliResult {
    if io::stdout().is_terminal() { write(&outside::answer(text)) } else { write(text) }
}

/// Shows a part of what a model thinks to a person, in grey.
pub(super) fn show_thinking(text: &str) {
    if io::stderr().is_terminal() {
        show(&format!("\x1b[2m{}\x1b[0m", outside::answer(text)));
    }
}

/// Writes a line to standard error.
pub(super) fn tell(line: impl Display) {
    show(&format!("{}\n", outside::lines(&line.to_string())));
}

/// The same without the end of the line.
pub(super) fn tell_part(text: impl Display) {
    show(&outside::lines(&text.to_string()));
}

fn write(text: &str) -> CliResult {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| CliError::system("standard output", &error))
}

/// Nobody is left to be told that standard error is closed.
fn show(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
