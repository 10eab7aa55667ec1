//! Descriptors that a child inherits by accident, as on macOS, where none can be closed at exec from the moment that it is made.

use pensieve_protocol::fence::VARIABLE;
use pensieve_server::fleet::fence::prompt;
use std::{
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::artifacts::program;

#[test]
fn a_child_does_not_hold_another_ones_pipe_open() {
    let (mut reading, writing) = io::pipe().unwrap();
    let number = writing.as_raw_fd();
    let mut command = Command::new(program());
    command.arg("prompt").env(VARIABLE, prompt(1 << 30).to_variable());
    let inherit = move || {
        // SAFETY: the call takes numbers; the descriptor is open in the child, too.
        let set = unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: one system call is made between fork and exec, which needs no memory and no lock.
    unsafe { command.pre_exec(inherit) };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    (&writing).write_all(b"begun").unwrap();
    drop(writing);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = reading.read_to_string(&mut text).map(|_| text);
        let _ = ended.send(read.unwrap());
    });
    let text = end.recv_timeout(Duration::from_secs(60)).expect("the child holds the pipe open");
    assert_eq!(text, "begun");
    assert!(child.try_wait().unwrap().is_none(), "it serves its own pipes");
    drop(child.stdin.take());
    child.wait().unwrap();
}
