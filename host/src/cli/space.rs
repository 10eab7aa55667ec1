//! Room on the disk of `$PENSIEVE_HOME`, for `doctor` and the start of a server.

use std::path::Path;

use crate::config::units;
use pensieve_protocol::outside::Outside;
use pensieve_server::fleet::free_bytes;

/// Private copies of all plugins take some hundred megabytes in a debug build, and about sixty in a release build.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// A line about a folder's disk: `Err` if it has little room.
pub(super) fn line(home: &Path) -> Option<Result<String, String>> {
    let free = free_bytes(home)?;
    let (path, shown) = (Outside::path(home).to_string(), units::bytes(free));
    Some(if free < FREE_BYTES_MIN {
        let what = "copies of plugins, caches and the log are written there";
        Err(format!("only {shown} are free in '{path}': {what}; free some room, or set PENSIEVE_HOME to another disk"))
    } else {
        Ok(format!("{shown} are free in '{path}'"))
    })
}

pub(super) fn warn(home: &Path) {
    if let Some(Err(line)) = line(home) {
        tracing::warn!("{line}");
    }
}
