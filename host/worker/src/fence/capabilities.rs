//! Drops all capabilities of this thread and those that it starts later. Root keeps the two that reading other users' files
//! takes: containers run as root, and a model's files may belong to anybody.

use std::io;

/// The layout of `capset`'s arguments, version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION: u32 = 0x2008_0522;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const KEPT: u32 = (1 << DAC_OVERRIDE) | (1 << DAC_READ_SEARCH);

pub(super) fn drop(is_root: bool) -> Result<(), String> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both pointers lead to values of the layout that version 3 has, and live through the call.
    let read = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if read != 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    // Other users have capabilities only in their own user namespace, and can read their files without.
    let kept = if is_root { sets[0].permitted & KEPT } else { 0 };
    sets = [
        Sets { effective: kept, permitted: kept, inheritable: 0 },
        Sets { effective: 0, permitted: 0, inheritable: 0 },
    ];
    // SAFETY: as above; the call reads both.
    let written = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    if written != 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    Ok(())
}
