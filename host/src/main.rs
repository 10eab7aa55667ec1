//! Arguments to a verb.

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|argument| argument.to_str().unwrap_or_default()).collect();
    match words[..] {
        ["plugins", "check", "--json", file] => pensieve::cli::plugins::check(Path::new(file), true),
        ["plugins", "check", file] => pensieve::cli::plugins::check(Path::new(file), false),
        _ => ExitCode::from(2),
    }
}
