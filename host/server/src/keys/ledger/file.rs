//! The file of the ledger: a line for each row that has changed, with its new totals, so that the last line of a row counts
//! and one that is lost in a crash is made good by the next. It is written anew at each start, and when it has many
//! more lines than rows.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::{RowKey, Tally};
use pensieve_protocol::outside::Outside;

const HEADER: &str =
    "# Usage of keys, version 1: day (UTC), key, model, requests, input, cached and output tokens, check";
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Lines beyond twice the rows before the file is written anew.
const LINES_SPARE: usize = 20_000;

#[derive(Debug)]
pub(super) struct UsageFile {
    path: PathBuf,
    /// Where lines are added; `None` until the file has been written anew.
    file: Option<File>,
    lines: usize,
    /// Held for as long as this server keeps the ledger.
    _lock: File,
}

/// The content of a file, as far as it can be read.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) rows: BTreeMap<RowKey, Tally>,
    /// What is wrong with it, and where it is now.
    pub(super) damaged: Option<String>,
}

impl UsageFile {
    /// Reads the file, if there is one. It comes without a writer if another server has it. Fails if its folder cannot be used.
    pub(super) fn open(path: &Path) -> io::Result<(Option<Self>, Found)> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let lock = private().truncate(false).open(path.with_extension("lock"))?;
        let is_ours = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => true,
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => false,
            Err(error) => return Err(error.into()),
        };
        let (rows, bad) = match read(path) {
            Ok(bytes) => rows(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (BTreeMap::new(), None),
            Err(error) => (BTreeMap::new(), Some(format!("it cannot be read: {error}"))),
        };
        let damaged = bad.filter(|_| is_ours).map(|bad| {
            let aside = path.with_extension("damaged");
            match fs::rename(path, &aside) {
                Ok(()) => format!("{bad}; it is put aside as '{}'", Outside::path(&aside)),
                Err(error) => format!("{bad}; it cannot be put aside: {error}"),
            }
        });
        let file = is_ours.then(|| Self { path: path.to_path_buf(), file: None, lines: 0, _lock: lock });
        Ok((file, Found { rows, damaged }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// True if it has grown so much beyond its rows that it should be written anew.
    pub(super) fn is_to_be_rewritten(&self, rows: usize) -> bool {
        self.file.is_none() || self.lines > 2 * rows + LINES_SPARE
    }

    /// The next rows to be written are all there are.
    pub(super) fn begin_again(&mut self) {
        self.file = None;
    }

    pub(super) fn is_begun_again(&self) -> bool {
        self.file.is_none()
    }

    /// Writes rows: as the whole file after [`Self::begin_again`], else behind what it has. After an error it begins again.
    pub(super) fn write(&mut self, rows: &[(RowKey, Tally)]) -> io::Result<()> {
        let text: String = rows.iter().map(line).collect();
        match self.file.take() {
            Some(mut file) => {
                file.write_all(text.as_bytes())?;
                file.sync_data()?;
                (self.file, self.lines) = (Some(file), self.lines + rows.len());
            }
            None => {
                let new = self.path.with_extension("new");
                let mut file = private().append(true).truncate(false).open(&new)?;
                file.set_len(0)?;
                file.write_all(format!("{HEADER}\n{text}").as_bytes())?;
                file.sync_data()?;
                fs::rename(&new, &self.path)?;
                (self.file, self.lines) = (Some(file), rows.len());
            }
        }
        Ok(())
    }
}

/// Options of files that only this user may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has {length} bytes, more than {FILE_BYTES_MAX}")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The rows of a file, and what is wrong with it.
fn rows(bytes: &[u8]) -> (BTreeMap<RowKey, Tally>, Option<String>) {
    // What comes after the last end of a line is one that was being written when the server ended.
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |end| &bytes[..end]);
    let (mut rows, mut bad, mut lines) = (BTreeMap::new(), 0_usize, 0_usize);
    for text in whole.split(|byte| *byte == b'\n').filter(|_| !whole.is_empty()) {
        if text == HEADER.as_bytes() {
            continue;
        }
        lines += 1;
        match std::str::from_utf8(text).ok().and_then(parsed) {
            Some((row, tally)) => drop(rows.insert(row, tally)),
            None => bad += 1,
        }
    }
    let has_header = bytes.starts_with(HEADER.as_bytes()) || bytes.is_empty();
    let wrong = match (bad, has_header) {
        (0, true) => None,
        (0, false) => Some("it does not begin as it should".to_owned()),
        _ => Some(format!("{bad} of {lines} lines cannot be read")),
    };
    (rows, wrong)
}

fn line(((day, key, model), tally): &(RowKey, Tally)) -> String {
    let Tally { requests, input, cached, output } = tally;
    let text = format!("{day} {key} {model} {requests} {input} {cached} {output}");
    let check = check(&text);
    format!("{text} {check}\n")
}

fn parsed(line: &str) -> Option<(RowKey, Tally)> {
    let (text, sum) = line.rsplit_once(' ')?;
    if check(text) != sum {
        return None;
    }
    let words: Vec<&str> = text.split(' ').collect();
    let [day, key, model, requests, input, cached, output] = words[..] else { return None };
    let row = (day.parse().ok()?, key.to_owned(), model.to_owned());
    let number = |text: &str| text.parse().ok();
    Some((
        row,
        Tally { requests: number(requests)?, input: number(input)?, cached: number(cached)?, output: number(output)? },
    ))
}

/// The first digits of a line's digest.
fn check(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// A name as a word of a line. Ids and names of keys are words already.
pub(super) fn word(name: &str) -> String {
    let word: String =
        name.chars().map(|letter| if letter.is_control() || letter.is_whitespace() { '_' } else { letter }).collect();
    if word.is_empty() { "_".to_owned() } else { word }
}
