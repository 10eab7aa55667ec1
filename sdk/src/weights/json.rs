//! Reads the small text files beside the weights.
//!
//! Unlike weights they are copied, as whoever parses them wants them whole. A limit stands in for trust: a link to an
//! endless file must cost an error, not the memory of the process.

use std::{io::Read, path::Path};

use serde_json::{Map, Value};

use super::bytes::open;
use crate::{Error, Result};

/// The bytes of a file that may be at most so long.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let within = |error: std::io::Error| Error::from(error).context(path.display());
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(within)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::corrupt(format!("{}: is longer than the {bytes_max} bytes that are read", path.display())));
    }
    Ok(bytes)
}

/// A file that holds one JSON object.
pub(super) fn object(path: &Path, bytes_max: u64) -> Result<Map<String, Value>> {
    let invalid = |what: String| Error::corrupt(format!("{}: {what}", path.display())).help("download it again");
    match serde_json::from_slice(&read(path, bytes_max)?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(invalid("is not a JSON object".to_owned())),
        Err(error) => Err(invalid(format!("is not JSON: {error}"))),
    }
}
