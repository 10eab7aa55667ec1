//! Writes to standard output and standard error for all subcommands. Output may contain text from outside, whose escape
//! sequences must not reach the terminal, so it is escaped; through a pipe, too, as a terminal may be at its end.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use super::error::{CliError, CliResult};
use pensieve_protocol::outside::{self, Outside};

/// Characters per line of an error; longer ones only quote something from outside.
const LINE_CHARS_MAX: usize = 8192;

/// Prints the error, if any, and returns the exit code.
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

/// Writes text to standard output; a closed pipe is an error.
pub(super) fn print(text: &str) -> CliResult {
    write(&outside::lines(text))
}

/// Writes a line to standard output.
pub(super) fn say(text: &str) -> CliResult {
    print(&format!("{text}\n"))
}

/// Writes a line of JSON to standard output.
pub(super) fn say_json(text: &str) -> CliResult {
    write(&format!("{}\n", outside::json(text)))
}

/// Writes output that programs read, such as a script or a path: unescaped, unless standard output is a terminal.
pub(super) fn print_exact(text: &str) -> CliResult {
    if io::stdout().is_terminal() { print(text) } else { write(text) }
}

/// Writes a part of a model's answer: unescaped, unless standard output is a terminal.
pub(super) fn print_answer(text: &str) -> CliResult {
    if io::stdout().is_terminal() { write(&outside::answer(text)) } else { write(text) }
}

/// Writes a part of a model's reasoning to standard error in grey, if that is a terminal.
pub(super) fn show_thinking(text: &str) {
    if io::stderr().is_terminal() {
        show(&format!("\x1b[2m{}\x1b[0m", outside::answer(text)));
    }
}

/// Writes a line to standard error.
pub(super) fn tell(line: impl Display) {
    show(&format!("{}\n", outside::lines(&line.to_string())));
}

/// Writes text to standard error without ending the line.
pub(super) fn tell_part(text: impl Display) {
    show(&outside::lines(&text.to_string()));
}

fn write(text: &str) -> CliResult {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| CliError::system("standard output", &error))
}

/// Ignores errors: there is nowhere left to report them.
fn show(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
