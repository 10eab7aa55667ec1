//! `pensieve worker`: runs one model for the server that started it. Not meant for users: it exchanges frames over an
//! inherited socket, and ends when that closes.

use super::terminal::tell;
use std::{
    os::fd::{FromRawFd, OwnedFd, RawFd},
    process::ExitCode,
};

use clap::Args;

use pensieve_worker::process;

#[derive(Args)]
pub(super) struct Worker {
    /// The inherited socket's number.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(RawFd).range(3..))]
    pub(super) socket: RawFd,
}

impl Worker {
    pub(super) fn run(self) -> ExitCode {
        match socket(self.socket) {
            Ok(socket) => process::leave(process::run(socket)),
            Err(error) => {
                tell(format_args!("pensieve worker: descriptor {} cannot be used: {error}", self.socket));
                ExitCode::from(2)
            }
        }
    }
}

/// Takes ownership of the inherited descriptor, and sets close-on-exec so that children do not inherit it.
fn socket(number: RawFd) -> std::io::Result<OwnedFd> {
    // SAFETY: `fcntl` with these commands reads and writes a flag of a descriptor, or fails if there is none.
    let flagged = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if flagged == -1 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, as the call above shows, and this process, which has just begun, has not
    // passed it on: its number is above those of the standard streams.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
