//! The tensors of a GGUF file, for models of candle-transformers that read such files by themselves.
//!
//! They read the file that the SDK has opened and checked, not one that may have taken its place since. Each read
//! tells the host how far it has come, and fails once the host wants the load to stop.

use std::{
    collections::HashMap,
    io::{self, Cursor, Read, Seek, SeekFrom},
};

use candle_core::quantized::gguf_file::Content;

use crate::{Services, weights::Bytes};

/// What candle reads tensors from.
pub struct GgufReader {
    file: Cursor<Bytes>,
    /// The tensors by where they begin.
    names: HashMap<u64, String>,
    /// The one that is being read.
    name: String,
    done: u64,
    total: u64,
    services: Services,
}

impl GgufReader {
    pub(super) fn new(file: Bytes, content: &Content, total: u64, services: Services) -> Self {
        let start = |offset: u64| content.tensor_data_offset.saturating_add(offset);
        let names = content.tensor_infos.iter().map(|(name, info)| (start(info.offset), name.clone())).collect();
        Self { file: Cursor::new(file), names, name: String::new(), done: 0, total, services }
    }
}

impl Read for GgufReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.services.go_on().map_err(io::Error::other)?;
        if let Some(name) = self.names.get(&self.file.position()) {
            self.name.clone_from(name);
        }
        let read = self.file.read(into)?;
        // What is read twice, such as embeddings that are also the output, counts once.
        self.done = self.done.saturating_add(read as u64).min(self.total);
        self.services.progress(self.done, self.total, &self.name);
        Ok(read)
    }
}

impl Seek for GgufReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
