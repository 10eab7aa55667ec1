//! A worker that is none. It is called by what it does wrong: the name of the link that leads to it.

#![allow(clippy::unwrap_used, reason = "a fake that fails fails its test")]

use pensieve_protocol::wire::{self, PROTOCOL, Report};
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
    // SAFETY: the server opened the descriptor for this process, which has done nothing with it yet.
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(number) });
    match Path::new(&arguments[0]).file_name().unwrap().to_str().unwrap() {
        "silent" => wire::write(&mut socket, &Report::Hello { protocol: PROTOCOL }).unwrap(),
        "nonsense" => socket.write_all(&[1, 0, 0, 0, 200]).unwrap(),
        "too-long" => socket.write_all(&[255; 4]).unwrap(),
        "stranger" => wire::write(&mut socket, &Report::Hello { protocol: 99 }).unwrap(),
        "rude" => wire::write(&mut socket, &Report::Drained).unwrap(),
        _ => {
            eprintln!("no licence");
            exit(7);
        }
    }
    // It ends with its server, as everything that tests start should.
    let _ = socket.read_to_end(&mut Vec::new());
}
