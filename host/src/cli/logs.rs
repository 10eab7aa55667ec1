//! `pensieve logs`: the log of a server, which it writes to a file in `$PENSIEVE_HOME/logs` as well as to standard error.

use clap::Args;
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult, Exit},
    log_file, terminal,
};
use pensieve_protocol::outside::Outside;

/// How often a followed file is looked at.
const POLL_EVERY: Duration = Duration::from_millis(300);
const PIECE_BYTES: u64 = 64 << 10;

/// Show the log of the server on this machine, which runs or has run last at the configured address.
///
/// The server writes it to a file in $PENSIEVE_HOME/logs, named after its port; two files of at most 8 MiB are kept.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve logs -f
  pensieve logs --lines 1000 | grep WARN
  pensieve logs --port 11434")]
pub(super) struct Logs {
    /// Wait for further lines.
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to show.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: usize,
    /// The port of the server [default: of the configured address].
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    #[command(flatten)]
    common: CommonArgs,
}

impl Logs {
    pub(super) fn run(self) -> CliResult {
        let resolved = self.common.resolve(&[])?;
        let port = self.port.or_else(|| resolved.config.server.listen[0].rsplit_once(':')?.1.parse().ok());
        let path = log_file::path(&resolved.config.home, port.unwrap_or(0));
        let mut file = File::open(&path).map_err(|error| absent(&path, &resolved.config.home, &error))?;
        let read = |error: io::Error| CliError::system(Outside::path(&path), &error);
        let from = last_lines(&mut file, self.lines).map_err(read)?;
        file.seek(SeekFrom::Start(from)).map_err(read)?;
        loop {
            copy(&mut file).map_err(read)??;
            if !self.follow {
                return Ok(());
            }
            std::thread::sleep(POLL_EVERY);
            // A rotated file is another one, and is read from its beginning after the rest of the old one.
            let is_same = |other: &fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == other.ino());
            if fs::metadata(&path).is_ok_and(|now| !is_same(&now)) {
                copy(&mut file).map_err(read)??;
                file = File::open(&path).map_err(read)?;
            }
        }
    }
}

fn absent(path: &Path, home: &Path, error: &io::Error) -> CliError {
    let entries = fs::read_dir(log_file::folder(home)).into_iter().flatten().flatten();
    let mut known: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    known.retain(|name| name.ends_with(".log"));
    known.sort();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let line =
        format!("there is no log '{}': {error} (there are: {known}); name the server's --port", Outside::path(&path));
    CliError::new(Exit::Absent, line)
}

/// Where the last `count` lines begin.
fn last_lines(file: &mut File, count: usize) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let (mut found, mut piece) = (0, Vec::new());
    while end > 0 {
        let start = end.saturating_sub(PIECE_BYTES);
        file.seek(SeekFrom::Start(start))?;
        piece.clear();
        file.by_ref().take(end - start).read_to_end(&mut piece)?;
        for (place, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            // The line break at the end of the file ends the last line.
            found += 1;
            if found > count {
                return Ok(start + place as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}

/// Prints the rest of the file.
fn copy(file: &mut File) -> io::Result<CliResult> {
    let mut rest = Vec::new();
    loop {
        let is_over = file.by_ref().take(PIECE_BYTES).read_to_end(&mut rest)? == 0;
        // A character that a piece cuts in two is printed with the next one.
        let end = if is_over { rest.len() } else { whole_characters(&rest) };
        if end > 0
            && let Err(closed) = terminal::print(&String::from_utf8_lossy(&rest[..end]))
        {
            return Ok(Err(closed));
        }
        rest.drain(..end);
        if is_over {
            return Ok(Ok(()));
        }
    }
}

/// Length of a piece without the begun character at its end.
fn whole_characters(piece: &[u8]) -> usize {
    let begun = piece.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let is_begun = str::from_utf8(begun).is_err_and(|error| error.error_len().is_none());
    piece.len() - if is_begun { begun.len() } else { 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_character_is_not_cut_in_two() {
        for (piece, whole) in [
            (&b""[..], 0),
            (b"abc", 3),
            ("a\u{e4}".as_bytes(), 3),
            (b"a\xc3", 1),
            (b"a\xf0\x9f\x98", 1),
            // No character begins like this.
            (b"a\xff", 2),
            (b"\xc3a", 2),
            (b"\xff\xc3", 1),
        ] {
            assert_eq!(whole_characters(piece), whole, "{piece:?}");
        }
    }

    #[test]
    fn the_last_lines_are_found_however_long_the_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("log");
        let lines: Vec<String> = (0..20_000).map(|number| format!("line {number}\n")).collect();
        fs::write(&path, lines.concat()).unwrap();
        let mut file = File::open(&path).unwrap();
        for count in [0, 1, 100, 10_000, 19_999, 20_000, 90_000] {
            let from = last_lines(&mut file, count).unwrap();
            let shown = lines[20_000 - count.min(20_000)..].concat();
            assert_eq!(lines.concat().len() as u64 - from, shown.len() as u64, "{count}");
        }
    }
}
