//! Opens the safetensors files of a checkpoint folder: one, or several shards with an index.
//!
//! The `safetensors` crate parses and validates a header: offsets without gaps, sizes that match shapes, products that
//! do not overflow. The checks that it lacks are made here: how large a header may be, how much of the file is missing,
//! what the index claims and where its file names lead. Tensor data is never touched.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use ::safetensors::{Dtype as StoredDtype, tensor::Metadata};

use super::{Bytes, Dtype, RawTensor, json, quote};
use crate::{Code, Error, Result};

const HEADER_BYTES_MAX: u64 = 32 << 20;
const INDEX_BYTES_MAX: u64 = 64 << 20;
const SHARDS_MAX: usize = 1024;
const DIMENSIONS_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 256;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A tensor as stored in a file, of any type.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub name: String,
    pub dtype: StoredDtype,
    pub shape: Vec<usize>,
    pub data: Bytes,
}

impl Stored {
    /// Converts to a tensor of a supported type.
    pub(super) fn into_plain(self) -> Result<RawTensor> {
        let dtype = match self.dtype {
            StoredDtype::F32 => Dtype::F32,
            StoredDtype::F16 => Dtype::F16,
            StoredDtype::BF16 => Dtype::BF16,
            other => {
                let name = quote(&self.name);
                let message = format!("tensor {name}: is stored as {other}, and only F32, F16 and BF16 are supported");
                return Err(
                    Error::unsupported(message).help("choose an unquantized version of the model, or a GGUF file")
                );
            }
        };
        Ok(RawTensor { name: self.name, dtype, shape: self.shape, data: self.data })
    }
}

/// The header of one file.
#[derive(Debug)]
pub(super) struct Shard {
    pub tensors: Vec<Stored>,
    pub header: Bytes,
    pub file_len: usize,
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens the safetensors files of a folder.
pub(super) fn open(folder: &Path) -> Result<Vec<Shard>> {
    let index = folder.join(INDEX);
    if !folder.join(SINGLE).exists() && index.exists() {
        return open_shards(folder, &index);
    }
    Ok(vec![open_file(&single(folder)?)?])
}

impl Shard {
    /// Reads the header of a whole file.
    pub(super) fn read(file: &Bytes) -> Result<Self> {
        let Some((claimed, rest)) = file.split_first_chunk::<8>() else {
            return Err(truncated(format!("the file has {} bytes, too few for a safetensors header", file.len())));
        };
        let claimed = u64::from_le_bytes(*claimed);
        if claimed > HEADER_BYTES_MAX {
            return Err(Error::corrupt(format!(
                "the file is not safetensors, or damaged: it claims a header of {claimed} bytes, \
                 more than the {HEADER_BYTES_MAX} that are read"
            )));
        }
        let header_len = claimed as usize;
        let Some(header) = rest.get(..header_len) else {
            let missing = header_len - rest.len();
            return Err(truncated(format!("the file is truncated: {missing} bytes of its header are missing")));
        };
        let metadata: Metadata = serde_json::from_slice(header)
            .map_err(|error| Error::corrupt(format!("the safetensors header is invalid: {error}")))?;
        let data_start = 8 + header_len;
        check_size(file.len() - data_start, metadata.data_len())?;
        let mut tensors = Vec::new();
        for (name, info) in metadata.tensors() {
            let tensor = tensor(file, data_start, &name, info.dtype, &info.shape, info.data_offsets);
            tensors.push(tensor.map_err(|error| error.context(format!("tensor {}", quote(&name))))?);
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let header = file.slice(0..data_start).unwrap_or_else(|| file.clone());
        Ok(Self { tensors, header, file_len: file.len() })
    }
}

fn tensor(
    file: &Bytes,
    data_start: usize,
    name: &str,
    dtype: StoredDtype,
    shape: &[usize],
    (start, end): (usize, usize),
) -> Result<Stored> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Error::corrupt(format!("its name is not 1 to {NAME_BYTES_MAX} bytes of text")));
    }
    if shape.len() > DIMENSIONS_MAX {
        return Err(Error::corrupt(format!("has {} dimensions, more than {DIMENSIONS_MAX}", shape.len())));
    }
    let range = data_start.checked_add(start).zip(data_start.checked_add(end));
    let data = range.and_then(|(start, end)| file.slice(start..end));
    let values = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    let bits = values.and_then(|values| values.checked_mul(dtype.bitsize()));
    match data {
        Some(data) if bits == data.len().checked_mul(8) => {
            Ok(Stored { name: name.to_owned(), dtype, shape: shape.to_vec(), data })
        }
        _ => Err(Error::corrupt(format!("does not lie where the header puts it, at {start}..{end}"))),
    }
}

fn check_size(found: usize, expected: usize) -> Result<()> {
    match found.checked_sub(expected) {
        Some(0) => Ok(()),
        Some(extra) => Err(Error::corrupt(format!("the file has {extra} bytes behind its last tensor"))
            .help("it is damaged: download it again")),
        None => {
            let missing = expected - found;
            Err(truncated(format!("the file is truncated: {missing} of its {expected} bytes of tensors are missing")))
        }
    }
}

fn truncated(message: String) -> Error {
    Error::corrupt(message).help("the download stopped early: download it again")
}

pub(super) fn open_file(path: &Path) -> Result<Shard> {
    Bytes::map(path).and_then(|file| Shard::read(&file).map_err(|error| error.context(path.display())))
}

fn open_shards(folder: &Path, index: &Path) -> Result<Vec<Shard>> {
    let text = json::read(index, INDEX_BYTES_MAX)?;
    let index_error = |message: String| Error::corrupt(format!("{}: {message}", index.display()));
    let Index { weight_map } = serde_json::from_slice(&text).map_err(|error| index_error(error.to_string()))?;
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, file) in &weight_map {
        files.entry(file).or_default().insert(name);
    }
    if files.is_empty() || files.len() > SHARDS_MAX {
        return Err(index_error(format!("it names {} files, not 1 to {SHARDS_MAX}", files.len())));
    }
    let mut shards = Vec::with_capacity(files.len());
    for (file, names) in files {
        if !is_plain_name(file) {
            return Err(index_error(format!("it names the file {}, which is not a name in this folder", quote(file))));
        }
        shards.push(open_shard(&folder.join(file), &names)?);
    }
    Ok(shards)
}

/// Opens one shard and keeps the tensors that the index assigns to it.
fn open_shard(path: &Path, names: &BTreeSet<&str>) -> Result<Shard> {
    let mut shard = open_file(path).map_err(|error| match error.code {
        Code::NotFound => error.help(format!("'{INDEX}' needs this file: finish the download")),
        _ => error,
    })?;
    shard.tensors.retain(|tensor| names.contains(tensor.name.as_str()));
    let found: HashMap<_, _> = shard.tensors.iter().map(|tensor| (tensor.name.as_str(), ())).collect();
    match names.iter().find(|name| !found.contains_key(*name)) {
        None => Ok(shard),
        Some(name) => Err(Error::corrupt(format!(
            "{}: has no tensor {}, which '{INDEX}' says it has",
            path.display(),
            quote(name)
        ))
        .help("index and shard are of different downloads: download both again")),
    }
}

/// True if a file name from an index stays within its folder, on any system.
fn is_plain_name(file: &str) -> bool {
    let is_path = file.contains(['/', '\\', ':']) || file.contains("..");
    !is_path && file.ends_with(".safetensors") && !file.chars().any(char::is_control)
}

/// Returns the only file of a folder without an index.
fn single(folder: &Path) -> Result<PathBuf> {
    let named = folder.join(SINGLE);
    if named.exists() {
        return Ok(named);
    }
    let mut found = Vec::new();
    let mut others = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(|error| Error::from(error).context(folder.display()))? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => found.push(path),
            Some(extension @ ("gguf" | "bin" | "pt" | "pth")) => _ = others.insert(extension.to_owned()),
            _ => {}
        }
    }
    match (found.pop(), found.len()) {
        (Some(path), 0) => Ok(path),
        (Some(_), more) => Err(Error::invalid(format!(
            "{}: has {} safetensors files and neither '{SINGLE}' nor '{INDEX}'",
            folder.display(),
            more + 1
        ))
        .help("download the index as well")),
        (None, _) => {
            let help = match others.pop_last() {
                Some(extension) if extension == "gguf" => "name the .gguf file itself".to_owned(),
                Some(extension) => format!(".{extension} files are not read: convert them to safetensors"),
                None => "download the model's .safetensors files into it".to_owned(),
            };
            Err(Error::not_found(format!("{}: has no safetensors files", folder.display())).help(help))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{f32_safetensors, folder, safetensors};

    const INDEX_OF_TWO: &str = r#"{"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;

    fn one() -> Vec<u8> {
        f32_safetensors(&[("a", &[2], &[1.0, 2.0])])
    }

    fn two() -> Vec<u8> {
        f32_safetensors(&[("b", &[1, 2], &[3.0, 4.0]), ("c", &[1], &[5.0])])
    }

    fn values(tensor: &Stored) -> Vec<f32> {
        tensor.clone().into_plain().unwrap().to_f32().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Shard> {
        Shard::read(&Bytes::copy_of(bytes).unwrap())
    }

    #[track_caller]
    fn refused(files: &[(&str, &[u8])], code: Code, message: &str) -> Error {
        let folder = folder(files);
        let error = open(folder.path()).unwrap_err();
        let found = error.message.replace(&folder.path().display().to_string(), "FOLDER");
        assert_eq!((error.code, found.as_str()), (code, message));
        error
    }

    #[test]
    fn opens_a_single_file_under_its_name_or_any_other() {
        for name in [SINGLE, "anything.safetensors"] {
            let folder = folder(&[(name, &two()), ("config.json", b"{}")]);
            let [shard] = &open(folder.path()).unwrap()[..] else { panic!("one file") };
            let [b, c] = &shard.tensors[..] else { panic!("two tensors") };
            assert_eq!((b.name.as_str(), &b.shape[..], values(b)), ("b", &[1, 2][..], vec![3.0, 4.0]));
            assert_eq!(values(c), [5.0]);
        }
    }

    #[test]
    fn opens_what_the_index_names_and_no_more() {
        let folder =
            folder(&[(INDEX, INDEX_OF_TWO.as_bytes()), ("one.safetensors", &one()), ("two.safetensors", &two())]);
        let shards = open(folder.path()).unwrap();
        let names: Vec<_> = shards.iter().flat_map(|shard| &shard.tensors).map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_missing_shard_is_named() {
        let folder = folder(&[(INDEX, INDEX_OF_TWO.as_bytes()), ("one.safetensors", &one())]);
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.code, Code::NotFound);
        assert!(error.message.contains("two.safetensors: "), "{error}");
        assert_eq!(error.help, "'model.safetensors.index.json' needs this file: finish the download");
    }

    #[test]
    fn a_tensor_that_is_not_in_its_shard_is_named() {
        refused(
            &[(INDEX, INDEX_OF_TWO.as_bytes()), ("one.safetensors", &one()), ("two.safetensors", &one())],
            Code::Corrupt,
            "FOLDER/two.safetensors: has no tensor 'b', which 'model.safetensors.index.json' says it has",
        );
    }

    #[test]
    fn a_truncated_shard_says_how_much_is_missing() {
        let short = &two()[..two().len() - 5];
        let files: &[(&str, &[u8])] =
            &[(INDEX, INDEX_OF_TWO.as_bytes()), ("one.safetensors", &one()), ("two.safetensors", short)];
        let message = "FOLDER/two.safetensors: the file is truncated: 5 of its 12 bytes of tensors are missing";
        let error = refused(files, Code::Corrupt, message);
        assert_eq!(error.help, "the download stopped early: download it again");
        let error = read(&two()[..20]).unwrap_err();
        assert!(error.message.starts_with("the file is truncated: "), "{error}");
        assert!(error.message.ends_with(" bytes of its header are missing"), "{error}");
        assert_eq!(read(&two()[..5]).unwrap_err().message, "the file has 5 bytes, too few for a safetensors header");
    }

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        for file in
            ["../one.safetensors", "/one.safetensors", "a/one.safetensors", "..", "a\\\\b.safetensors", "config.json"]
        {
            let index = format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
            let folder = folder(&[(INDEX, index.as_bytes()), ("one.safetensors", &one())]);
            let error = open(folder.path()).unwrap_err();
            assert!(error.message.ends_with(", which is not a name in this folder"), "{error}");
        }
    }

    #[test]
    fn an_index_that_is_no_index_is_refused() {
        let missing = "FOLDER/model.safetensors.index.json: missing field `weight_map` at line 1 column 2";
        refused(&[(INDEX, b"{}")], Code::Corrupt, missing);
        let empty = "FOLDER/model.safetensors.index.json: it names 0 files, not 1 to 1024";
        refused(&[(INDEX, br#"{"weight_map": {}}"#)], Code::Corrupt, empty);
    }

    #[test]
    fn a_folder_without_a_clear_choice_says_what_it_lacks() {
        let error = refused(&[], Code::NotFound, "FOLDER: has no safetensors files");
        assert_eq!(error.help, "download the model's .safetensors files into it");
        let error = refused(&[("x.gguf", b"")], Code::NotFound, "FOLDER: has no safetensors files");
        assert_eq!(error.help, "name the .gguf file itself");
        let error = refused(&[("pytorch_model.bin", b"")], Code::NotFound, "FOLDER: has no safetensors files");
        assert_eq!(error.help, ".bin files are not read: convert them to safetensors");
        let message =
            "FOLDER: has 2 safetensors files and neither 'model.safetensors' nor 'model.safetensors.index.json'";
        refused(&[("a.safetensors", &one()), ("b.safetensors", &two())], Code::Invalid, message);
    }

    #[test]
    fn a_tensor_of_a_type_that_is_not_read_is_refused_when_it_is_used() {
        let header = r#"{"q.weight": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}"#;
        let shard = read(&safetensors(header, &[0; 4])).unwrap();
        let error = shard.tensors[0].clone().into_plain().unwrap_err();
        let message = "tensor 'q.weight': is stored as I32, and only F32, F16 and BF16 are supported";
        assert_eq!((error.code, error.message.as_str()), (Code::Unsupported, message));
    }

    #[test]
    fn rejects_headers_that_lie() {
        let check = |header: &str, data: &[u8], part: &str| {
            let error = read(&safetensors(header, data)).unwrap_err();
            assert!(error.message.contains(part), "{error}");
            assert_eq!(error.code, Code::Corrupt);
        };
        let of = |shape: &str, offsets: &str| {
            format!(r#"{{"x": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
        };
        check(&of("[2]", "[0, 4]"), &[0; 4], "the safetensors header is invalid: ");
        check(&of("[1]", "[4, 8]"), &[0; 8], "the safetensors header is invalid: ");
        check(&of("[1]", "[4, 0]"), &[0; 4], "the safetensors header is invalid: ");
        check(&of("[4294967296, 4294967296]", "[0, 4]"), &[0; 4], "the safetensors header is invalid: ");
        check(&of("[1, 1, 1, 1, 1, 1, 1, 1, 1]", "[0, 4]"), &[0; 4], "tensor 'x': has 9 dimensions, more than 8");
        check(&of("[1]", "[0, 4]"), &[0; 9], "the file has 5 bytes behind its last tensor");
        check("not json", &[], "the safetensors header is invalid: ");
        let named = of("[1]", "[0, 4]").replace("\"x\"", "\"\\u001b\"");
        check(&named, &[0; 4], "its name is not 1 to 256 bytes of text");
        let huge = read(&u64::MAX.to_le_bytes()).unwrap_err();
        assert!(huge.message.contains("it claims a header of 18446744073709551615 bytes"), "{huge}");
    }

    #[test]
    fn empty_tensors_and_scalars_are_tensors() {
        let header = r#"{"none": {"dtype": "F32", "shape": [0, 7], "data_offsets": [0, 0]},
                         "one": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}}"#;
        let shard = read(&safetensors(header, &[0x80, 0x3f])).unwrap();
        assert_eq!(values(&shard.tensors[0]), [0f32; 0]);
        assert_eq!(values(&shard.tensors[1]), [1.0]);
    }

    #[test]
    fn no_damage_to_a_file_is_a_crash() {
        let whole = two();
        for at in 0..whole.len() {
            for value in [0, b'"', b'9', b'}', 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                if let Ok(shard) = read(&bytes) {
                    shard
                        .tensors
                        .into_iter()
                        .for_each(|tensor| _ = tensor.into_plain().map(|tensor| tensor.to_f32().unwrap()));
                }
            }
            assert!(read(&whole[..at]).is_err(), "{at}");
        }
    }
}
