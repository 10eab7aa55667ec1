//! Reads the header of a GGUF file (versions 2 and 3) over a memory map.
//!
//! The reader is our own because existing ones trust their input: alignment zero, shapes whose product overflows,
//! counts in the billions. Here every number is checked before it is used, and the result can be walked without further
//! checks: each tensor lies inside the file, is as long as its shape says, and overlaps no other. Tensor data is never
//! touched. A model split into parts opens as one. A tensor of an unknown type does not fail the file: reading that
//! tensor does, since only its reader knows whether it is needed.

mod cursor;
mod metadata;
mod parts;
#[cfg(test)]
mod tests;

use self::cursor::Cursor;
pub use self::metadata::{Kind, Metadata, Value};
pub(super) use self::parts::open;
use super::{Bytes, Dtype, RawTensor, quote};
use crate::{Error, Result};

const TENSORS_MAX: u64 = 65_536;
const DIMENSIONS_MAX: u32 = 4;
const NAME_BYTES_MAX: usize = 256;
const ALIGNMENT_MAX: usize = 64 << 10;
const ALIGNMENT_DEFAULT: usize = 32;

/// The header of one file. Tensors keep the file's names, and shapes have the row length last.
#[derive(Debug)]
pub(super) struct Gguf {
    pub metadata: Metadata,
    pub tensors: Vec<RawTensor>,
    /// Tensors of unsupported types, each with the error that reading it returns.
    pub refused: Vec<(String, Error)>,
    /// The header's bytes.
    pub header: Bytes,
    pub file: Bytes,
}

/// A tensor as the header lists it, with unchecked data.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    len: usize,
    offset: u64,
}

impl Gguf {
    /// Reads the header of a whole file.
    pub(super) fn read(file: &Bytes) -> Result<Self> {
        let mut cursor = Cursor::new(file);
        check_magic(file)?;
        cursor.take(4)?;
        check_version(cursor.u32()?)?;
        let tensors = cursor.u64()?;
        let entries = cursor.u64()?;
        if tensors > TENSORS_MAX {
            return Err(Error::corrupt(format!(
                "the header claims {tensors} tensors, more than the {TENSORS_MAX} that are read"
            )));
        }
        let metadata = Metadata::read(&mut cursor, entries)?;
        let (mut entries, mut refused) = (Vec::new(), Vec::new());
        for _ in 0..tensors {
            match Entry::read(&mut cursor)? {
                Ok(entry) => entries.push(entry),
                Err(other) => refused.push(other),
            }
        }
        let alignment = alignment(&metadata)?;
        let header = file.slice(0..cursor.position()).unwrap_or_else(|| file.clone());
        let data_start = cursor.position().next_multiple_of(alignment);
        let tensors = locate(file, data_start, alignment, entries)?;
        Ok(Self { metadata, tensors, refused, header, file: file.clone() })
    }
}

/// Name of an unreadable tensor, and why it is unreadable.
type Refused = (String, Error);

impl Entry {
    fn read(cursor: &mut Cursor<'_>) -> Result<Result<Self, Refused>> {
        let name = cursor.name("tensor", NAME_BYTES_MAX)?;
        let here = |error: Error| error.context(format!("tensor {}", quote(&name)));
        Ok(Self::read_named(cursor, &name).map_err(here)?.map_err(|error| (name.clone(), here(error))))
    }

    fn read_named(cursor: &mut Cursor<'_>, name: &str) -> Result<Result<Self>> {
        let dimensions = cursor.u32()?;
        if dimensions > DIMENSIONS_MAX {
            return Err(Error::corrupt(format!("has {dimensions} dimensions, more than {DIMENSIONS_MAX}")));
        }
        let mut shape = (0..dimensions)
            .map(|_| {
                let dimension = cursor.u64()?;
                match usize::try_from(dimension) {
                    Ok(fits @ 1..) => Ok(fits),
                    _ => Err(Error::corrupt(format!("has the impossible dimension {dimension}"))),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        // GGUF lists the fastest dimension first; everyone else lists it last.
        shape.reverse();
        let dtype = dtype(cursor.u32()?);
        let offset = cursor.u64()?;
        let dtype = match dtype {
            Ok(dtype) => dtype,
            Err(error) => return Ok(Err(error)),
        };
        let cols = shape.last().copied().unwrap_or(1);
        if !cols.is_multiple_of(dtype.block_len()) {
            return Err(Error::corrupt(format!(
                "has rows of {cols} values, which {dtype} cannot store: its blocks have {}",
                dtype.block_len()
            )));
        }
        let len = dtype
            .tensor_bytes(&shape)
            .ok_or_else(|| Error::corrupt(format!("has the shape {shape:?}, more than memory can address")))?;
        Ok(Ok(Self { name: name.to_owned(), dtype, shape, len, offset }))
    }
}

/// Locates the bytes of every tensor, or says why the header's offsets cannot be right.
fn locate(file: &Bytes, data_start: usize, alignment: usize, entries: Vec<Entry>) -> Result<Vec<RawTensor>> {
    let mut ranges = Vec::with_capacity(entries.len());
    for entry in &entries {
        if !entry.offset.is_multiple_of(alignment as u64) {
            return Err(Error::corrupt(format!(
                "tensor {} starts at offset {}, which is not a multiple of the alignment {alignment}",
                quote(&entry.name),
                entry.offset
            )));
        }
        let start = usize::try_from(entry.offset).ok().and_then(|offset| data_start.checked_add(offset));
        let range = start.and_then(|start| Some((start, start.checked_add(entry.len)?)));
        ranges.push(range.ok_or_else(|| outside(entry, file))?);
    }
    let by_end = entries.iter().zip(&ranges).max_by_key(|(_, (_, end))| *end);
    if let Some((last, (_, end))) = by_end.filter(|(_, (_, end))| *end > file.len()) {
        return Err(beyond_the_end(file, data_start, alignment, &entries, last, *end));
    }
    check_overlaps(&entries, &ranges)?;
    let mut tensors = Vec::with_capacity(entries.len());
    for (entry, (start, end)) in entries.into_iter().zip(ranges) {
        let data = file.slice(start..end).ok_or_else(|| outside(&entry, file))?;
        tensors.push(RawTensor { name: entry.name, dtype: entry.dtype, shape: entry.shape, data });
    }
    Ok(tensors)
}

/// Distinguishes an incomplete download from an inconsistent header: contiguous tensors reach no further than the sum
/// of their sizes.
fn beyond_the_end(file: &Bytes, start: usize, alignment: usize, entries: &[Entry], last: &Entry, end: usize) -> Error {
    let packed =
        entries.iter().try_fold(start, |sum, entry| sum.checked_add(entry.len.checked_next_multiple_of(alignment)?));
    if packed.is_none_or(|packed| end > packed) {
        return outside(last, file);
    }
    Error::corrupt(format!("the file is truncated: {} of its {end} bytes are missing", end - file.len()))
        .help("the download stopped early: download it again")
}

fn outside(entry: &Entry, file: &Bytes) -> Error {
    Error::corrupt(format!(
        "tensor {} takes {} bytes at offset {}, outside of the file of {} bytes",
        quote(&entry.name),
        entry.len,
        entry.offset,
        file.len()
    ))
}

fn check_overlaps(entries: &[Entry], ranges: &[(usize, usize)]) -> Result<()> {
    let mut placed: Vec<_> = ranges.iter().zip(entries).collect();
    placed.sort_by_key(|(range, _)| **range);
    for pair in placed.windows(2) {
        if let [((_, end), first), ((start, _), second)] = pair
            && start < end
        {
            let (first, second) = (quote(&first.name), quote(&second.name));
            return Err(Error::corrupt(format!("tensors {first} and {second} overlap in the file")));
        }
    }
    Ok(())
}

fn check_magic(file: &[u8]) -> Result<()> {
    const POINTER: &[u8] = b"version https://git-lfs";
    if file.starts_with(b"GGUF") {
        return Ok(());
    }
    if file.starts_with(POINTER) {
        return Err(Error::corrupt("the file is a Git LFS pointer, not the model that it points to")
            .help("fetch the model with 'git lfs pull', or download it from its page"));
    }
    let start = file.get(..file.len().min(4)).unwrap_or_default();
    Err(Error::corrupt(format!(
        "the file is not GGUF: it starts with \"{}\" instead of \"GGUF\"",
        start.escape_ascii()
    ))
    .help("give a .gguf file, or a folder with config.json and safetensors"))
}

fn check_version(version: u32) -> Result<()> {
    let again = "convert the model again with a current tool, or download a newer conversion";
    match version {
        2 | 3 => Ok(()),
        1 => Err(Error::unsupported("the file is GGUF version 1, which went out of use in 2023; 2 and 3 are read")
            .help(again)),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            Err(Error::unsupported("the file is big-endian GGUF; only little-endian files are read").help(again))
        }
        _ => Err(Error::unsupported(format!("the file is GGUF version {version}; 2 and 3 are read")).help(again)),
    }
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    let Some(claimed) = metadata.u64("general.alignment")? else { return Ok(ALIGNMENT_DEFAULT) };
    match usize::try_from(claimed) {
        Ok(alignment) if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX => Ok(alignment),
        _ => Err(Error::corrupt(format!(
            "metadata 'general.alignment' is {claimed}, not a power of two from 1 to {ALIGNMENT_MAX}"
        ))),
    }
}

/// Formats that files may name but nothing here can compute with, so that the error can name them.
const KNOWN_BUT_UNREAD: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

fn dtype(id: u32) -> Result<Dtype> {
    Ok(match id {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        10 => Dtype::Q2K,
        11 => Dtype::Q3K,
        12 => Dtype::Q4K,
        13 => Dtype::Q5K,
        14 => Dtype::Q6K,
        16 => Dtype::IQ2XXS,
        17 => Dtype::IQ2XS,
        18 => Dtype::IQ3XXS,
        19 => Dtype::IQ1S,
        20 => Dtype::IQ4NL,
        21 => Dtype::IQ3S,
        22 => Dtype::IQ2S,
        23 => Dtype::IQ4XS,
        29 => Dtype::IQ1M,
        30 => Dtype::BF16,
        34 => Dtype::TQ1_0,
        35 => Dtype::TQ2_0,
        39 => Dtype::MXFP4,
        _ => {
            let names = Dtype::ALL.into_iter().filter(|dtype| dtype.is_in_files()).map(Dtype::name);
            let names = names.collect::<Vec<_>>().join(", ");
            let help = format!("choose a file in one of {names}");
            let error = match KNOWN_BUT_UNREAD.iter().find(|(known, _)| *known == id) {
                Some((_, name)) => format!("is stored as {name}, which is not supported"),
                None => format!("is stored as type {id}, which is not known"),
            };
            return Err(Error::unsupported(error).help(help));
        }
    })
}
