//! Fuzzing within the test command: inputs that are known to be read are damaged at random and read again.
//!
//! A target is a function that reads bytes and tells how that ended, in words. It fails by a panic, by taking too long, and by
//! taking more memory than it may; the input that did it is kept, and the seed that is printed makes it again. An
//! input that ends in words which were not seen before is damaged further, as it has reached a new place: that takes the part of the
//! coverage that other fuzzers measure, and needs nothing of the compiler.
//!
//! | variable | meaning | unless set |
//! |---|---|---|
//! | `PENSIEVE_FUZZ_SECONDS` | how long each target runs | 2 |
//! | `PENSIEVE_FUZZ_SEED` | the first seed; each execution has the next one | 1 |
//!
//! Readers run on a small stack, so that one which follows its input by recursion ends the test, and before inputs are
//! damaged at random, each is cut somewhere and filled with openers of every kind that go deeper than any stack.
//!
//! An input's ancestors depend on all earlier executions, so a seed alone repeats a run only from its start; the kept
//! file repeats the failure.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod memory;
mod mutation;

pub use memory::{CountingAllocator, peak_of};
pub use mutation::Mutator;

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Time limit of one input, on a machine that is busy with other tests.
const INPUT_TIME_MAX: Duration = Duration::from_secs(20);
/// Stack of a reader: an eighth of a server thread's, though test builds take up to twice as much stack as release builds.
const STACK_BYTES: usize = 256 << 10;
/// Texts that open or continue a nesting in one of the languages that are read.
const OPENERS: [&str; 18] = [
    "[",
    "{",
    "(",
    "{\"a\":",
    "[{\"a\":[",
    "\\(",
    "(?:",
    "!",
    "-",
    "not ",
    "{%if 1%}",
    "{{(",
    "a.",
    "[0,",
    "<a>",
    "anyOf\":[{\"",
    "\"",
    "~",
];
const OPENERS_BYTES: usize = 100_000;
/// How many of the first inputs are cut for that.
const CUT_MAX: usize = 12;

/// How many inputs that led to something new are damaged further.
const FOUND_MAX: usize = 4096;

/// A parser under test.
pub struct Target<'a> {
    /// Its name, in output and in the names of kept inputs.
    pub name: &'a str,
    /// Inputs to begin with.
    pub corpus: Vec<Vec<u8>>,
    /// Limit on the memory for one input, in bytes.
    pub memory_max: usize,
    /// The longest input.
    pub input_max: usize,
}

/// The input that is being read, for whoever has to say which one it was.
struct Current {
    input: Vec<u8>,
    since: Instant,
}

impl Target<'_> {
    /// Reads damaged inputs with `read` for a while; it answers in words how reading ended.
    pub fn run(&self, read: impl FnMut(&[u8]) -> String + Send) {
        self.run_with(STACK_BYTES, self.deep(), read);
    }

    /// The same with a stack of another size, for what has one of its own when it is served, and a deadline, which inputs that go
    /// deep may need.
    pub fn run_on(&self, stack_bytes: usize, read: impl FnMut(&[u8]) -> String + Send) {
        self.run_with(stack_bytes, Vec::new(), read);
    }

    fn run_with(&self, stack_bytes: usize, deep: Vec<Vec<u8>>, mut read: impl FnMut(&[u8]) -> String + Send) {
        thread::scope(|scope| {
            let reading = || self.run_here(deep, &mut read);
            let named = thread::Builder::new().name(self.name.to_owned()).stack_size(stack_bytes);
            let ended = named.spawn_scoped(scope, reading).unwrap().join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    /// Inputs that go deep, each from an input that is read: its beginning, openers of one kind, and its end.
    fn deep(&self) -> Vec<Vec<u8>> {
        let whole = [Vec::new()];
        let cut = |input: &Vec<u8>| {
            let places = (1..).map(|place| input.len() * place / (OPENERS.len() + 1));
            let filled = |(opener, at): (&str, usize)| {
                [&input[..at], opener.repeat(OPENERS_BYTES / opener.len()).as_bytes(), &input[at..]].concat()
            };
            OPENERS.into_iter().zip(places).map(filled).collect::<Vec<_>>()
        };
        whole.iter().chain(self.corpus.iter().take(CUT_MAX)).flat_map(cut).collect()
    }

    fn run_here(&self, deep: Vec<Vec<u8>>, read: &mut impl FnMut(&[u8]) -> String) {
        let seconds = number("PENSIEVE_FUZZ_SECONDS").map_or(2.0, |seconds| seconds as f64);
        let first = number("PENSIEVE_FUZZ_SEED").unwrap_or(1);
        let began = Instant::now();
        let current = Arc::new(Mutex::new(Current { input: Vec::new(), since: began }));
        let over = Arc::new(AtomicBool::new(false));
        let watch = self.watch(current.clone(), over.clone());
        let keeper = Keeper { name: self.name, current: &current, over: &over };
        for input in deep {
            {
                let mut current = current.lock().unwrap();
                current.input.clone_from(&input);
                current.since = Instant::now();
            }
            read(&input);
        }
        let began = Instant::now();
        let mut pool = self.corpus.clone();
        let mut seen = HashSet::new();
        let mut executions = 0_u64;
        while executions < self.corpus.len() as u64 || began.elapsed().as_secs_f64() < seconds {
            let mut mutator = Mutator::new(first.wrapping_add(executions), self.input_max);
            // Each input is read as it is before any is damaged.
            let whole = self.corpus.get(executions as usize).cloned();
            let input = whole.unwrap_or_else(|| mutator.mutate(&pool));
            {
                let mut current = current.lock().unwrap();
                current.input.clone_from(&input);
                current.since = Instant::now();
            }
            let (outcome, peak) = memory::peak_of(|| read(&input));
            assert!(peak <= self.memory_max, "{}: an input of {} bytes took {peak} bytes", self.name, input.len());
            executions += 1;
            if seen.insert(shape(&outcome)) && pool.len() < self.corpus.len() + FOUND_MAX {
                pool.push(input);
            }
        }
        drop(keeper);
        watch.join().unwrap();
        let took = began.elapsed().as_secs_f64();
        println!("{}: {executions} executions in {took:.1} s, {} ways to end", self.name, seen.len());
    }

    /// Ends the process when an input takes too long, as nothing else could.
    fn watch(&self, current: Arc<Mutex<Current>>, over: Arc<AtomicBool>) -> thread::JoinHandle<()> {
        let name = self.name.to_owned();
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
                let current = current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if current.since.elapsed() > INPUT_TIME_MAX && !over.load(Ordering::Relaxed) {
                    eprintln!(
                        "{name}: an input takes longer than {INPUT_TIME_MAX:?}; it is kept in {:?}",
                        keep(&name, &current.input)
                    );
                    std::process::abort();
                }
            }
        })
    }
}

/// Keeps the input that a panic came from.
struct Keeper<'a> {
    name: &'a str,
    current: &'a Mutex<Current>,
    over: &'a AtomicBool,
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if thread::panicking()
            && let Ok(current) = self.current.lock()
        {
            eprintln!("{}: the input is kept in {:?}", self.name, keep(self.name, &current.input));
        }
    }
}

fn keep(name: &str, input: &[u8]) -> PathBuf {
    let path = env::temp_dir().join(format!("pensieve-fuzz-{name}-{}", std::process::id()));
    let _ = fs::write(&path, input);
    path
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Words without what an input has made of them: numbers, and what stands in quotes.
fn shape(outcome: &str) -> String {
    let (mut shape, mut quoted) = (String::new(), false);
    for letter in outcome.chars().take(400) {
        match letter {
            '\'' | '"' | '`' => quoted = !quoted,
            _ if quoted => continue,
            '0'..='9' if shape.ends_with('0') => continue,
            '0'..='9' => shape.push('0'),
            letter => shape.push(letter),
        }
    }
    shape
}

/// A folder for inputs that are read as files: in memory, where the system has a file system there, as a disk would be what
/// takes the time.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The files of a folder, and of the folders in it, whose names end so; in the order of their paths.
pub fn files(folder: &Path, ending: &str) -> Vec<Vec<u8>> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{} has no *{ending}", folder.display());
    found.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(corpus: &[&str]) -> Target<'static> {
        let corpus = corpus.iter().map(|text| text.as_bytes().to_vec()).collect();
        Target { name: "test", corpus, memory_max: 1 << 20, input_max: 1 << 10 }
    }

    #[test]
    #[should_panic(expected = "found it")]
    fn what_leads_deeper_is_found_step_by_step() {
        target(&["aaaa"]).run(|input| {
            let steps = input.iter().zip(b"GGUF").take_while(|(a, b)| a == b).count();
            assert!(steps < 4, "found it");
            ["none", "one", "two", "three"][steps].to_owned()
        });
    }

    #[test]
    fn every_reader_is_sent_as_deep_as_a_hundred_thousand_levels() {
        let deepest =
            target(&["{\"a\": 1}"]).deep().iter().map(|input| input.iter().filter(|byte| **byte == b'[').count()).max();
        assert_eq!(deepest, Some(100_000));
        let mut longest = 0;
        target(&["{\"a\": 1}"]).run(|input| {
            longest = longest.max(input.len());
            String::new()
        });
        assert!(longest > 100_000);
    }

    #[test]
    #[should_panic(expected = "bytes took")]
    fn an_input_that_takes_memory_is_a_failure() {
        target(&["12"]).run(|input| {
            let size = std::str::from_utf8(input).ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
            format!("{}", vec![0_u8; size.min(100 << 20)].len())
        });
    }

    #[test]
    fn outcomes_differ_by_their_words_alone() {
        assert_eq!(shape("tensor 'x' has 12 of 345 bytes"), shape("tensor 'yy' has 6 of 7 bytes"));
        assert_ne!(shape("no tensor"), shape("no file"));
    }
}
