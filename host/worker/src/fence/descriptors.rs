//! Closes descriptors that this process was not meant to have. macOS cannot create one that is closed at exec from the start, so
//! a child that is started at the wrong moment inherits another child's pipe or socket, whose other end then sees no end before
//! both children have ended.

use std::{fs, os::fd::RawFd};

const OPEN: &str = "/dev/fd";
const STANDARD: RawFd = 2;

pub(super) fn close_inherited(socket: Option<RawFd>) {
    // The list is complete before the first one is closed: one of them is the folder's own, which is closed by then.
    let names = fs::read_dir(OPEN).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let numbers: Vec<RawFd> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| is_foreign(*number, socket)) {
        // SAFETY: the call takes a number. No code of this process has opened a descriptor yet, so none uses this one. It may be
        // closed already, and the error that says so is ignored.
        unsafe { libc::close(number) };
    }
}

fn is_foreign(number: RawFd, socket: Option<RawFd>) -> bool {
    number > STANDARD && Some(number) != socket
}
