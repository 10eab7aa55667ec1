//! The banner of a server started on a terminal: its address, its models, how Claude Code uses it, and where a model is
//! stored once it is loaded.

use serde_json::json;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    os::fd::{FromRawFd, OwnedFd},
    process::Stdio,
    ptr::null_mut,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use super::{Desk, interrupt};
use crate::{http::client::post, starter};

/// A pseudo-terminal: the reading end, and the end to give to a program.
pub fn terminal() -> (File, Stdio) {
    let (mut reader, mut writer) = (0, 0);
    // SAFETY: both variables outlive the call; name, settings and size are optional.
    let opened = unsafe { libc::openpty(&mut reader, &mut writer, null_mut(), null_mut(), null_mut()) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the two descriptors are new, and have no other owner.
    unsafe { (File::from(OwnedFd::from_raw_fd(reader)), Stdio::from(OwnedFd::from_raw_fd(writer))) }
}

#[test]
fn a_terminal_shows_what_a_person_needs() {
    let desk = Desk::new();
    desk.install(&starter::PLUGINS);
    let (mut reader, writer) = terminal();
    let mut command = desk.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = command.env("TERM", "xterm").stderr(writer).spawn().unwrap();
    // This side's copy of the terminal is closed here, so that reading ends with the program.
    drop(command);
    let shown = Arc::new(Mutex::new(String::new()));
    let seen = shown.clone();
    let reading = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    let until = |words: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !shown.lock().unwrap().contains(words) {
            assert!(Instant::now() < deadline, "{words:?} is not in {}", shown.lock().unwrap());
            thread::sleep(Duration::from_millis(20));
        }
    };
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("pensieve is listening on http://").unwrap().to_owned();
    until(&format!("export ANTHROPIC_BASE_URL=http://{address}"));
    until("export ANTHROPIC_API_KEY=pensieve-local-key");
    for words in ["pensieve-starter: llama, 13.9 MiB", "plugins        llama, lora, samplers"] {
        until(words);
    }
    let turn = json!({"role": "user", "content": "Hello!"});
    let body = json!({"model": "pensieve-starter", "max_tokens": 5, "messages": [turn]});
    assert_eq!(post(address.parse().unwrap(), "/v1/messages", &body).status(), 200);
    until("model 'pensieve-starter' is on ");
    until(": 13.9 MiB of weights, ");
    interrupt(child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    reading.join().unwrap();
}
