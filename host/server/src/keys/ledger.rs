//! What each key has used: requests and tokens by day and model. Days begin at midnight in UTC. Memory has all of it, and a
//! file ([`file`]) has what was true a second ago, so that a restart loses nothing and a crash hardly anything. A file that
//! cannot be written or read costs a warning and never an answer.

mod file;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use file::{Found, UsageFile};
use pensieve_protocol::outside::Outside;

/// How often what is new is written.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Days that are kept, today among them.
const DAYS_MAX: i64 = 400;
/// Rows that are kept; beyond that the oldest days go.
const ROWS_MAX: usize = 200_000;
const DAY_S: u64 = 24 * 60 * 60;

/// Day, key and model.
type RowKey = (Date, String, String);

/// Counts of requests that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Tokens of prompts, those from the cache among them.
    pub(crate) input: u64,
    /// Tokens of prompts that were found in the cache.
    pub(crate) cached: u64,
    /// Tokens of answers.
    pub(crate) output: u64,
}

/// A key's usage on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DayUsage {
    pub(crate) day: Date,
    pub(crate) models: Vec<(String, Tally)>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    /// `None` if usage is kept in memory alone.
    file: Mutex<Option<UsageFile>>,
}

#[derive(Debug, Default)]
struct Book {
    rows: BTreeMap<RowKey, Tally>,
    /// Rows that the file does not have as they are.
    changed: BTreeSet<RowKey>,
    /// The file could not be written last time.
    is_failing: bool,
}

impl Tally {
    /// Tokens that count towards a limit: those that a model has read or written. What comes from the cache is free.
    pub(crate) fn spent(&self) -> u64 {
        self.input.saturating_sub(self.cached).saturating_add(self.output)
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.requests = self.requests.saturating_add(more.requests);
        self.input = self.input.saturating_add(more.input);
        self.cached = self.cached.saturating_add(more.cached);
        self.output = self.output.saturating_add(more.output);
    }
}

impl DayUsage {
    pub(crate) fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.models.iter().for_each(|(_, tally)| total.add(tally));
        total
    }
}

impl Ledger {
    /// Continues the ledger of this file; without one it is in memory alone.
    pub(crate) fn open(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::default() };
        let shown = Outside::path(&path).to_string();
        let unusable = |error: io::Error| {
            tracing::warn!("usage is counted, but lost when this server ends: '{shown}': {error}");
            Self::default()
        };
        let (file, Found { rows, damaged }) = match UsageFile::open(path) {
            Ok(opened) => opened,
            Err(error) => return unusable(error),
        };
        if let Some(damage) = damaged {
            tracing::warn!("the usage of keys in '{shown}' is damaged: {damage}");
        }
        if file.is_none() {
            tracing::warn!(
                "usage is counted, but lost when this server ends: another server keeps its own in '{shown}'"
            );
        }
        let changed = rows.keys().cloned().collect();
        let book = Book { rows, changed, is_failing: false };
        let ledger = Self { book: Mutex::new(book), file: Mutex::new(file) };
        // Rewritten without what is old, unfinished or damaged.
        ledger.flush();
        ledger
    }

    /// Counts a request that has ended.
    pub(crate) fn add(&self, key: &str, model: &str, tally: Tally) {
        for (kind, tokens) in [("input", tally.input), ("cached", tally.cached), ("output", tally.output)] {
            let labels = [("key", key.to_owned()), ("model", model.to_owned()), ("kind", kind.to_owned())];
            metrics::counter!("pensieve_key_tokens_total", &labels).increment(tokens);
        }
        let labels = [("key", key.to_owned()), ("model", model.to_owned())];
        metrics::counter!("pensieve_key_requests_total", &labels).increment(tally.requests);
        self.add_on(today(), key, model, tally);
    }

    fn add_on(&self, day: Date, key: &str, model: &str, tally: Tally) {
        let mut book = self.book();
        let row = (day, file::word(key), file::word(model));
        book.rows.entry(row.clone()).or_default().add(&tally);
        book.changed.insert(row);
        while book.rows.len() > ROWS_MAX {
            book.rows.pop_first();
        }
    }

    /// Tokens that a key has spent today.
    pub(crate) fn spent_today(&self, key: &str) -> u64 {
        self.on(today(), key).total().spent()
    }

    /// A key's usage of the last days, latest first; today's is always there.
    pub(crate) fn last_days(&self, key: &str, days: u32) -> Vec<DayUsage> {
        let (today, mut found) = (today(), Vec::new());
        for ago in 0..i64::from(days.max(1)).min(DAYS_MAX) {
            let Ok(day) = today.checked_sub(ago.days()) else { break };
            let usage = self.on(day, key);
            if ago == 0 || !usage.models.is_empty() {
                found.push(usage);
            }
        }
        found
    }

    /// Names of keys that have used something on the last days.
    pub(crate) fn names(&self, days: u32) -> BTreeSet<String> {
        let days = i64::from(days.max(1)).min(DAYS_MAX);
        let Ok(first) = today().checked_sub((days - 1).days()) else { return BTreeSet::new() };
        let book = self.book();
        book.rows.range((first, String::new(), String::new())..).map(|((_, key, _), _)| key.clone()).collect()
    }

    fn on(&self, day: Date, key: &str) -> DayUsage {
        let (book, key) = (self.book(), file::word(key));
        let rows = book.rows.range((day, key.clone(), String::new())..);
        let rows = rows.take_while(|((on, of, _), _)| (on, of) == (&day, &key));
        DayUsage { day, models: rows.map(|((_, _, model), tally)| (model.clone(), *tally)).collect() }
    }

    /// Writes what is new every second.
    pub(crate) async fn upkeep(self: Arc<Self>) {
        let mut ticks = interval(FLUSH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let ledger = self.clone();
            // The disk may be slow; a flush that takes longer than a second delays the next.
            let _ = spawn_blocking(move || ledger.flush()).await;
        }
    }

    /// Writes what is new.
    pub(crate) fn flush(&self) {
        let mut file = lock(&self.file);
        let Some(file) = file.as_mut() else { return };
        let mut book = self.book();
        if book.changed.is_empty() {
            return;
        }
        if file.is_to_be_rewritten(book.rows.len()) {
            if let Ok(first) = today().checked_sub((DAYS_MAX - 1).days()) {
                book.rows.retain(|(day, _, _), _| *day >= first);
            }
            file.begin_again();
        }
        let whole = file.is_begun_again();
        let rows: Vec<(RowKey, Tally)> = if whole {
            book.rows.iter().map(|(row, tally)| (row.clone(), *tally)).collect()
        } else {
            book.changed.iter().filter_map(|row| Some((row.clone(), *book.rows.get(row)?))).collect()
        };
        let changed = std::mem::take(&mut book.changed);
        let was_failing = book.is_failing;
        drop(book);
        let written = file.write(&rows);
        let mut book = self.book();
        book.is_failing = written.is_err();
        match written {
            Ok(()) if was_failing => tracing::info!("the usage of keys is kept again"),
            Ok(()) => {}
            Err(error) => {
                book.changed.extend(changed);
                if !was_failing {
                    let path = file.path().to_path_buf();
                    tracing::warn!(
                        "the usage of keys cannot be written to '{}' ({error}); it is counted, and tried again",
                        Outside::path(&path)
                    );
                }
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

/// Time until the next day begins.
pub(crate) fn until_midnight() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(DAY_S - now.as_secs() % DAY_S)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, path::PathBuf};

    fn tally(requests: u64, input: u64, cached: u64, output: u64) -> Tally {
        Tally { requests, input, cached, output }
    }

    fn path(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("usage/keys.txt")
    }

    #[test]
    fn tokens_from_the_cache_are_counted_and_free() {
        let ledger = Ledger::default();
        ledger.add_on(today(), "a", "m", tally(1, 100, 90, 5));
        ledger.add_on(today(), "a", "n", tally(1, 10, 0, 1));
        ledger.add_on(today(), "b", "m", tally(1, 7, 0, 0));
        ledger.add_on(today().yesterday().unwrap(), "a", "m", tally(1, 1000, 0, 0));
        assert_eq!((ledger.spent_today("a"), ledger.spent_today("b"), ledger.spent_today("c")), (26, 7, 0));
        let days = ledger.last_days("a", 2);
        assert_eq!((days.len(), days[0].models.len(), days[1].total()), (2, 2, tally(1, 1000, 0, 0)));
        assert_eq!((ledger.last_days("c", 2).len(), ledger.last_days("a", 0).len()), (1, 1));
        assert_eq!(ledger.names(1).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_ledger_goes_on_where_the_last_one_ended_and_forgets_what_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let old = today().checked_sub(DAYS_MAX.days()).unwrap();
        let first = Ledger::open(Some(&path(&folder)));
        first.add_on(today(), "a", "m", tally(1, 10, 0, 5));
        first.add_on(old, "a", "m", tally(1, 10, 0, 5));
        first.flush();
        first.add_on(today(), "a", "m", tally(1, 1, 0, 1));
        first.flush();
        let lines = || fs::read_to_string(path(&folder)).unwrap().lines().count();
        assert_eq!(lines(), 3);
        drop(first);
        let second = Ledger::open(Some(&path(&folder)));
        assert_eq!((second.spent_today("a"), second.on(old, "a").models.len()), (17, 0));
        assert_eq!(second.on(today(), "a").models, [("m".to_owned(), tally(2, 11, 0, 6))]);
        assert_eq!(lines(), 2, "written anew");
    }

    #[test]
    fn an_end_in_the_middle_of_a_line_loses_that_line_alone_and_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let first = Ledger::open(Some(&path(&folder)));
        first.add_on(today(), "a", "m", tally(1, 10, 0, 5));
        first.flush();
        drop(first);
        let whole = fs::read_to_string(path(&folder)).unwrap();
        fs::write(path(&folder), format!("{whole}{}", &whole.lines().last().unwrap()[..20])).unwrap();
        let (file, found) = UsageFile::open(&path(&folder)).unwrap();
        assert_eq!((found.rows.len(), found.damaged), (1, None));
        drop(file);
        assert_eq!(Ledger::open(Some(&path(&folder))).spent_today("a"), 15);
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_what_can_be_read_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let first = Ledger::open(Some(&path(&folder)));
        first.add_on(today(), "a", "m", tally(1, 10, 0, 5));
        first.add_on(today(), "b", "m", tally(1, 20, 0, 5));
        first.flush();
        drop(first);
        let whole = fs::read_to_string(path(&folder)).unwrap();
        for (damaged, expect) in [
            (whole.replacen(" 20 ", " 21 ", 1).into_bytes(), (15, 0)),
            ([whole.as_bytes(), b"\xff\xfe nonsense\n"].concat(), (15, 25)),
            (b"SQLite format 3\0".repeat(100), (0, 0)),
            (vec![b'x'; 1 << 20], (0, 0)),
        ] {
            fs::write(path(&folder), &damaged).unwrap();
            let ledger = Ledger::open(Some(&path(&folder)));
            assert_eq!((ledger.spent_today("a"), ledger.spent_today("b")), expect);
            assert_eq!(fs::read(path(&folder).with_extension("damaged")).unwrap(), damaged);
            ledger.add_on(today(), "c", "m", tally(1, 1, 0, 0));
            ledger.flush();
            drop(ledger);
            let (_, found) = UsageFile::open(&path(&folder)).unwrap();
            assert!(found.damaged.is_none() && found.rows.keys().any(|(_, key, _)| key == "c"));
        }
    }

    #[test]
    fn a_folder_in_the_files_place_keeps_nobody_from_counting() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(path(&folder)).unwrap();
        let ledger = Ledger::open(Some(&path(&folder)));
        ledger.add_on(today(), "a", "m", tally(1, 10, 0, 5));
        ledger.flush();
        assert_eq!(ledger.spent_today("a"), 15);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(Some(&path(&folder)));
        // Its place is taken, for root, too.
        let blocked = path(&folder).with_extension("new");
        fs::create_dir(&blocked).unwrap();
        ledger.add_on(today(), "a", "m", tally(1, 10, 0, 5));
        ledger.flush();
        assert!(ledger.book().is_failing && !path(&folder).exists());
        fs::remove_dir(&blocked).unwrap();
        ledger.flush();
        assert!(!ledger.book().is_failing && ledger.book().changed.is_empty());
        drop(ledger);
        assert_eq!(Ledger::open(Some(&path(&folder))).spent_today("a"), 15);
    }

    #[test]
    fn of_two_servers_with_one_home_the_first_keeps_usage() {
        let folder = tempfile::tempdir().unwrap();
        let first = Ledger::open(Some(&path(&folder)));
        first.add_on(today(), "a", "m", tally(1, 10, 0, 5));
        first.flush();
        let second = Ledger::open(Some(&path(&folder)));
        second.add_on(today(), "a", "m", tally(1, 100, 0, 0));
        second.flush();
        assert_eq!((second.spent_today("a"), first.spent_today("a")), (115, 15));
        drop((first, second));
        assert_eq!(Ledger::open(Some(&path(&folder))).spent_today("a"), 15);
    }

    #[test]
    fn names_that_would_break_a_line_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let first = Ledger::open(Some(&path(&folder)));
        first.add_on(today(), "a b", "m\n2026-01-01 x", tally(1, 10, 0, 5));
        first.flush();
        drop(first);
        let second = Ledger::open(Some(&path(&folder)));
        assert_eq!((second.spent_today("a b"), second.names(1).len()), (15, 1));
    }
}
