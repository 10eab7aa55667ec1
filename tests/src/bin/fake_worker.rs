//! A fake worker. The name of the link that starts it selects its fault.

#![allow(clippy::unwrap_used, reason = "a fake that fails fails its test")]

use pensieve_protocol::{
    job::{Event, Tokens},
    wire::{self, Command, Level, PROTOCOL, Report},
};
use std::{
    env,
    io::{Read, Write},
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::exit,
};

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let number: i32 = arguments[3].parse().unwrap();
    // SAFETY: the server opened the descriptor for this process, which has not used it yet.
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(number) });
    match Path::new(&arguments[0]).file_name().unwrap().to_str().unwrap() {
        "silent" => wire::write(&mut socket, &Report::Hello { protocol: PROTOCOL }).unwrap(),
        "nonsense" => socket.write_all(&[1, 0, 0, 0, 200]).unwrap(),
        "too-long" => socket.write_all(&[255; 4]).unwrap(),
        "stranger" => wire::write(&mut socket, &Report::Hello { protocol: 99 }).unwrap(),
        "babbler" => babble(&mut socket),
        "flooder" => flood(&mut socket),
        "rude" => wire::write(&mut socket, &Report::Drained).unwrap(),
        _ => {
            eprintln!("no licence");
            exit(7);
        }
    }
    // It exits with its server, as everything started by tests should.
    let _ = socket.read_to_end(&mut Vec::new());
}

/// Loads, and answers the first job with more tokens than requested.
fn babble(socket: &mut UnixStream) {
    let id = load_and_wait_for_a_job(socket);
    let tokens = Tokens { ids: vec![1], bytes: b"x".to_vec(), logprobs: Vec::new() };
    for _ in 0..100_000 {
        if wire::write(socket, &Report::Events(vec![(id, Event::Tokens(tokens.clone()))])).is_err() {
            exit(0);
        }
    }
}

/// Loads, and endlessly sends everything that a worker may send: log lines, progress, tokens of nonexistent jobs.
fn flood(socket: &mut UnixStream) {
    let id = load_and_wait_for_a_job(socket);
    std::thread::spawn(|| {
        loop {
            eprintln!("{}", "a line of the log ".repeat(100));
        }
    });
    let text = "x".repeat(50_000);
    let tokens = Tokens { ids: vec![1; 10_000], bytes: vec![b'x'; 10_000], logprobs: Vec::new() };
    let reports = [
        Report::Log { level: Level::Info, message: text.clone() },
        Report::Progress { done: 1, total: 2, what: text },
        Report::Events(vec![(id + 1000, Event::Tokens(tokens))]),
        Report::Events(vec![(id, Event::Prompt { computed: 1, total: 2 }); 1000]),
        Report::Heartbeat { steps: 1, step_ms: None },
    ];
    while reports.iter().all(|report| wire::write(socket, report).is_ok()) {}
    exit(0);
}

fn load_and_wait_for_a_job(socket: &mut UnixStream) -> u64 {
    wire::write(socket, &Report::Hello { protocol: PROTOCOL }).unwrap();
    loop {
        match wire::read::<Command>(socket).unwrap() {
            Some(Command::Load(_)) => wire::write(socket, &Report::Loaded(Box::default())).unwrap(),
            Some(Command::Submit(job)) => return job.id,
            Some(_) => {}
            None => exit(0),
        }
    }
}
