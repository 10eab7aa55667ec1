//! Read-only bytes of a model file, shared without copying.
//!
//! A checkpoint is often larger than the machine's memory, so files are mapped and read in place: opening one reads
//! only the header, and a tensor is a range of the map that keeps the map alive. This is the only place in the SDK that
//! maps files.

use std::{fmt, fs::File, ops::Deref, ops::Range, path::Path, sync::Arc};

use memmap2::{Mmap, MmapMut};

use crate::{Error, Result};

/// A range of a mapped file. Cloning is cheap, and the map lives as long as its last range.
#[derive(Clone)]
pub struct Bytes {
    map: Arc<Mmap>,
    range: Range<usize>,
    is_in_file: bool,
}

impl Bytes {
    /// Maps a whole file, which must not change while any range of it is in use: replace a model file by writing a new
    /// one and renaming it, never in place.
    pub fn map(path: &Path) -> Result<Self> {
        let within = |error: std::io::Error| Error::from(error).context(path.display());
        let file = open(path)?;
        if file.metadata().map_err(within)?.len() == 0 {
            return Err(Error::corrupt(format!("{}: is empty", path.display())).help("download it again"));
        }
        // SAFETY: the map is private to this type and never written through. Beyond that, the compiler has to be
        // promised that the file does not change while it is mapped, which no reader can enforce. That is the caller's
        // documented obligation, and the damage of breaking it is bounded: the bytes are only ever read as plain
        // integers and floats, each index is checked against the length taken here, and a file that shrinks kills the
        // worker process by SIGBUS, which is what worker processes are for.
        let map = unsafe { Mmap::map(&file) }.map_err(within)?;
        let range = 0..map.len();
        Ok(Self { map: Arc::new(map), range, is_in_file: true })
    }

    /// Copies bytes that are not in a file.
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        Self::write(bytes.len(), |target| target.copy_from_slice(bytes))
    }

    /// Allocates memory and fills it by calling `fill`.
    pub(super) fn write(len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Self> {
        let mut map = MmapMut::map_anon(len.max(1))?;
        if let Some(target) = map.get_mut(..len) {
            fill(target);
        }
        Ok(Self { map: Arc::new(map.make_read_only()?), range: 0..len, is_in_file: false })
    }

    /// True for bytes mapped from a file, whose pages the system loads on demand and may drop; false for memory that
    /// stays resident.
    pub fn is_in_file(&self) -> bool {
        self.is_in_file
    }

    /// Tells the system that single pages of this range are read in no order, so that it reads no others ahead. It is
    /// advice only: nothing depends on it.
    pub fn read_at_random(&self) {
        #[cfg(unix)]
        if self.is_in_file && !self.range.is_empty() {
            let _ = self.map.advise_range(memmap2::Advice::Random, self.range.start, self.range.len());
        }
    }

    /// A subrange; `None` if it is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end).then(|| Self {
            map: Arc::clone(&self.map),
            range: start..end,
            is_in_file: self.is_in_file,
        })
    }

    /// The smallest range of their map that has all of these, and where each begins in it; `None` if they are of different maps.
    pub fn spanning(parts: &[Self]) -> Option<(Self, Vec<usize>)> {
        let first = parts.first()?;
        if parts.iter().any(|part| !Arc::ptr_eq(&part.map, &first.map)) {
            return None;
        }
        let start = parts.iter().map(|part| part.range.start).min()?;
        let end = parts.iter().map(|part| part.range.end).max()?;
        let starts = parts.iter().map(|part| part.range.start - start).collect();
        Some((Self { range: start..end, ..first.clone() }, starts))
    }
}

/// Opens a regular file; opening a pipe or device could block forever.
pub(super) fn open(path: &Path) -> Result<File> {
    let within = |error: std::io::Error| Error::from(error).context(path.display());
    if !std::fs::metadata(path).map_err(within)?.is_file() {
        return Err(Error::invalid(format!("{}: is not a regular file", path.display())));
    }
    File::open(path).map_err(within)
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside() {
        let bytes = Bytes::copy_of(&[1, 2, 3, 4]).unwrap().slice(1..3).unwrap();
        assert_eq!(&*bytes, &[2, 3]);
        assert_eq!(&*bytes.slice(2..2).unwrap(), &[] as &[u8]);
        assert!(bytes.slice(1..3).is_none());
        assert!(bytes.slice(Range { start: 2, end: 1 }).is_none());
        assert!(bytes.slice(usize::MAX..usize::MAX).is_none());
    }

    #[test]
    fn ranges_of_one_map_span_what_lies_between_them() {
        let bytes = Bytes::copy_of(&[1, 2, 3, 4, 5]).unwrap();
        let part = |range| bytes.slice(range).unwrap();
        let (span, starts) = Bytes::spanning(&[part(3..4), part(1..2), part(1..3)]).unwrap();
        assert_eq!((&*span, starts), (&[2, 3, 4][..], vec![2, 0, 0]));
        assert!(Bytes::spanning(&[part(0..1), Bytes::copy_of(&[1]).unwrap()]).is_none());
        assert!(Bytes::spanning(&[]).is_none());
    }

    #[test]
    fn an_empty_file_and_a_folder_say_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.gguf");
        std::fs::write(&empty, b"").unwrap();
        assert!(Bytes::map(&empty).unwrap_err().message.ends_with("empty.gguf: is empty"));
        assert!(Bytes::map(folder.path()).unwrap_err().message.ends_with("is not a regular file"));
        let absent = Bytes::map(&folder.path().join("absent")).unwrap_err();
        assert_eq!(absent.code, crate::Code::NotFound);
        assert!(absent.message.contains("absent: "));
    }
}
