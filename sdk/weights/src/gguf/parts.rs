//! Opens a GGUF model from its file, or from all of its files if it was split.
//!
//! Splitting tools write `NAME-00001-of-00003.gguf` and so on. The first part has the metadata, and each part has the
//! tensors that it holds. Whichever part is named, all of them are opened, from the same folder.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use super::Gguf;
use crate::{Bytes, Code, Error, Result, quote};

const PARTS_MAX: u64 = 1024;

/// Opens every part of a model, the one with the metadata first.
pub(crate) fn open(path: &Path) -> Result<Vec<Gguf>> {
    let named = open_part(path)?;
    let count = split(&named, "split.count").map_err(|error| error.context(path.display()))?.unwrap_or(1);
    let parts = if count <= 1 {
        vec![named]
    } else {
        let paths = part_paths(path, count)?;
        paths.iter().zip(0..).map(|(path, number)| open_sibling(path, number, count)).collect::<Result<Vec<_>>>()?
    };
    check_whole(&parts).map_err(|error| error.context(path.display()))?;
    Ok(parts)
}

fn open_part(path: &Path) -> Result<Gguf> {
    Bytes::map(path).and_then(|file| Gguf::read(&file).map_err(|error| error.context(path.display())))
}

fn open_sibling(path: &Path, number: u64, count: u64) -> Result<Gguf> {
    let part = open_part(path).map_err(|error| {
        let is_absent = error.code == Code::NotFound;
        if is_absent { error.help("the model is in several files: put all of them into one folder") } else { error }
    })?;
    let found = (split(&part, "split.no")?, split(&part, "split.count")?);
    if found != (Some(number), Some(count)) {
        return Err(Error::corrupt(format!(
            "{}: is not part {} of {count} by its metadata 'split.no' and 'split.count'",
            path.display(),
            number + 1
        ))
        .help("the parts are of different models or misnamed: download them again"));
    }
    Ok(part)
}

fn split(part: &Gguf, key: &str) -> Result<Option<u64>> {
    part.metadata.u64(key)
}

/// Returns the names of all parts, given one of them.
fn part_paths(path: &Path, count: u64) -> Result<Vec<PathBuf>> {
    if count > PARTS_MAX {
        return Err(Error::corrupt(format!(
            "{}: metadata 'split.count' is {count}, more than the {PARTS_MAX} parts that are read",
            path.display()
        )));
    }
    let suffix = format!("-of-{count:05}.gguf");
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem =
        name.strip_suffix(&suffix).and_then(|numbered| numbered.split_at_checked(numbered.len().checked_sub(6)?));
    match stem {
        Some((stem, number)) if number.starts_with('-') && number.bytes().skip(1).all(|byte| byte.is_ascii_digit()) => {
            Ok((1..=count).map(|number| path.with_file_name(format!("{stem}-{number:05}{suffix}"))).collect())
        }
        _ => Err(Error::invalid(format!(
            "{}: is one of {count} parts, and its name does not tell the others",
            path.display()
        ))
        .help(format!("name the parts NAME-00001{suffix} and so on"))),
    }
}

fn check_whole(parts: &[Gguf]) -> Result<()> {
    let mut names = HashSet::new();
    for part in parts {
        let read = part.tensors.iter().map(|tensor| &tensor.name);
        for name in read.chain(part.refused.iter().map(|(name, _)| name)) {
            if !names.insert(name.as_str()) {
                return Err(Error::corrupt(format!("tensor {} appears twice", quote(name))));
            }
        }
    }
    let Some(first) = parts.first() else { return Ok(()) };
    match split(first, "split.tensors.count")? {
        Some(written) if written != names.len() as u64 => Err(Error::corrupt(format!(
            "the file's parts hold {} tensors, and metadata 'split.tensors.count' is {written}",
            names.len()
        ))
        .help("download the model again")),
        _ => Ok(()),
    }
}
