//! Reads the tensors of a GGUF file for models of candle-transformers that parse such files themselves.
//!
//! They read the file that the SDK has opened and checked, not one that may have replaced it since. Each read reports
//! progress to the host, and fails once the host has cancelled the load.

use std::{
    collections::HashMap,
    io::{self, Cursor, Read, Seek, SeekFrom},
};

use candle_core::quantized::gguf_file::Content;

use crate::{Services, weights::Bytes};

/// A reader of a GGUF file for candle.
pub struct GgufReader {
    file: Cursor<Bytes>,
    /// Tensors not read yet, by their offsets.
    left: HashMap<u64, String>,
    /// The tensor being read, unless it has been read before.
    name: Option<String>,
    done: u64,
    total: u64,
    services: Services,
}

impl GgufReader {
    pub(super) fn new(file: Bytes, content: &Content, total: u64, services: Services) -> Self {
        let start = |offset: u64| content.tensor_data_offset.saturating_add(offset);
        let left = content.tensor_infos.iter().map(|(name, info)| (start(info.offset), name.clone())).collect();
        Self { file: Cursor::new(file), left, name: None, done: 0, total, services }
    }
}

impl Read for GgufReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.services.go_on().map_err(io::Error::other)?;
        if let Some(name) = self.left.remove(&self.file.position()) {
            self.name = Some(name);
        }
        let read = self.file.read(into)?;
        if let Some(name) = &self.name {
            self.done += read as u64;
            self.services.progress(self.done, self.total, name);
        }
        Ok(read)
    }
}

impl Seek for GgufReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.name = None;
        self.file.seek(to)
    }
}
