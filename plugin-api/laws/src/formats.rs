//! The laws of adapter formats: what a host assumes about the adapters that they read, and the files that they leave to
//! others.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    Law, Progress,
    report::{Outcome, Report, broken, noted, skipped},
    rig::Finding,
    run,
};
use pensieve_plugin_api::{AdapterBox, AdapterData, ErrorCode, LowRankPair, PluginError};

/// Larger files are not copied to be damaged.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// Tests all laws of adapter formats. `adapter` has this format, or another one, which the format may then decline;
/// `scratch` is an empty folder for files that are not adapters.
pub fn check_format(
    format: &AdapterBox,
    adapter: &Path,
    scratch: &Path,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let bench = Bench { format, adapter, scratch };
    run(LAWS, &["opens"], watch, |check| check(&bench))
}

struct Bench<'s> {
    format: &'s AdapterBox,
    adapter: &'s Path,
    scratch: &'s Path,
}

/// `Err` ends a law early.
type Check = fn(&Bench<'_>) -> Finding;

const LAWS: &[Law<Check>] = &[
    Law {
        id: "declines",
        says: "files of other formats are not claimed, or declined",
        hint: "look at names and headers in claims, and at the content in open, which declines what is another format after all, so \
               that the next one is asked",
        check: declines,
    },
    Law {
        id: "opens",
        says: "an adapter of this format is claimed and read",
        hint: "what pairs cannot express is refused with the reason; anything else of the format is read",
        check: opens,
    },
    Law {
        id: "shapes",
        says: "pairs have as many values as their shapes say, all finite, and no target twice",
        hint: "A has rank x inputs values, B has outputs x rank, row-major",
        check: shapes,
    },
    Law {
        id: "same",
        says: "the same files give the same pairs and the same fingerprint",
        hint: "the usual cause is the order of a map, or a fingerprint of a path or a time",
        check: same,
    },
    Law {
        id: "damaged",
        says: "other content has another fingerprint, and a damaged file is an error",
        hint: "the fingerprint covers all values and scales; lengths in a file are checked against its size",
        check: damaged,
    },
];

impl Bench<'_> {
    fn claims(&self, path: &Path) -> Finding<bool> {
        Ok(self.format.claims(text(path)?.into()))
    }

    fn open(&self, path: &Path) -> Finding<Result<AdapterData, PluginError>> {
        Ok(self.format.open(text(path)?.into()).into_result())
    }

    /// Returns the adapter, if it has this format.
    fn read(&self) -> Finding<AdapterData> {
        if !self.claims(self.adapter)? {
            return Err(skipped(format!("it does not claim '{}'", self.adapter.display())));
        }
        self.open(self.adapter)?.map_err(|error| {
            if error.code == ErrorCode::DECLINED {
                return skipped(format!("it declines '{}': {error}", self.adapter.display()));
            }
            broken(format!("'{}' is claimed and not read: {error}", self.adapter.display()))
        })
    }

    /// Creates a folder in the scratch folder.
    fn folder(&self, name: &str) -> Finding<PathBuf> {
        let folder = self.scratch.join(name);
        fs::create_dir_all(&folder).map_err(|error| unwritten(&folder, &error))?;
        Ok(folder)
    }
}

fn text(path: &Path) -> Finding<&str> {
    path.to_str().ok_or_else(|| skipped(format!("'{}' is not UTF-8", path.display())))
}

fn unwritten(path: &Path, error: &io::Error) -> Outcome {
    skipped(format!("'{}' cannot be written: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Finding<()> {
    fs::write(path, bytes).map_err(|error| unwritten(path, &error))
}

/// Paths without an adapter of any format, with descriptions.
fn strangers(bench: &Bench<'_>) -> Finding<Vec<(&'static str, PathBuf)>> {
    let folder = bench.folder("strangers")?;
    let model = bench.folder("strangers/model")?;
    write(&model.join("config.json"), br#"{"architectures": ["NoSuchModelForCausalLM"]}"#)?;
    let no_tensors = [&2_u64.to_le_bytes()[..], b"{}"].concat();
    write(&model.join("model.safetensors"), &no_tensors)?;
    // A header without tensors and metadata.
    let gguf = [&b"GGUF"[..], &3_u32.to_le_bytes(), &[0; 16]].concat();
    let mut places = vec![
        ("a path that leads nowhere", folder.join("nowhere")),
        ("an empty folder", bench.folder("strangers/empty")?),
        ("the folder of a model", model),
    ];
    let files: [(&str, &str, &[u8]); 6] = [
        ("an empty file", "nothing", b""),
        ("a file of zeros", "zeros.bin", &[0; 4096]),
        ("a text", "notes.txt", b"no adapter at all\n"),
        ("an empty JSON object", "object.json", b"{}"),
        ("safetensors without tensors", "some.safetensors", &no_tensors),
        ("a GGUF file of a model", "model.gguf", &gguf),
    ];
    for (what, name, bytes) in files {
        write(&folder.join(name), bytes)?;
        places.push((what, folder.join(name)));
    }
    Ok(places)
}

fn declines(bench: &Bench<'_>) -> Finding {
    let mut wrongs = Vec::new();
    for (what, place) in strangers(bench)? {
        if !bench.claims(&place)? {
            continue;
        }
        match bench.open(&place)? {
            Ok(_) => wrongs.push(format!("{what} is read as an adapter")),
            Err(error) if error.code != ErrorCode::DECLINED => {
                wrongs.push(format!("{what} is claimed, and not declined but: {error}"));
            }
            Err(_) => {}
        }
    }
    // Even an unclaimed file may be opened, if it changes in between.
    for (what, place) in strangers(bench)? {
        if let Err(error) = bench.open(&place)?
            && error.code == ErrorCode::PANICKED
        {
            wrongs.push(format!("{what}: {error}"));
        }
    }
    if wrongs.is_empty() { Ok(Outcome::Exact) } else { Err(broken(wrongs.join("; "))) }
}

fn opens(bench: &Bench<'_>) -> Finding {
    let data = bench.read()?;
    let (pairs, rank) = (data.pairs.len(), data.pairs.iter().map(|pair| pair.rank).max().unwrap_or(0));
    if pairs == 0 {
        return Err(broken("it has no pairs, so that it changes nothing"));
    }
    Ok(noted(format!("{pairs} pairs of a rank of up to {rank}")))
}

fn shapes(bench: &Bench<'_>) -> Finding {
    let data = bench.read()?;
    let mut targets = HashSet::new();
    for pair in &data.pairs {
        let LowRankPair { target, rank, inputs, outputs, scale, a, b } = pair;
        let counts = [("A", a, u64::from(*inputs)), ("B", b, u64::from(*outputs))];
        for (name, values, size) in counts {
            let expected = u64::from(*rank).saturating_mul(size);
            if values.len() as u64 != expected || expected == 0 {
                let have = values.len();
                return Err(broken(format!("{name} of '{target}' has {have} values for rank {rank} and {size}")));
            }
            if let Some(place) = values.iter().position(|value| !value.is_finite()) {
                let value = values[place];
                return Err(broken(format!("value {place} in {name} of '{target}' is {value}")));
            }
        }
        if !scale.is_finite() {
            return Err(broken(format!("the scale of '{target}' is {scale}")));
        }
        if target.is_empty() || !targets.insert(target.as_str()) {
            return Err(broken(format!("'{target}' is the target of two pairs, or none at all")));
        }
    }
    Ok(Outcome::Exact)
}

fn same(bench: &Bench<'_>) -> Finding {
    let (first, second) = (bench.read()?, bench.read()?);
    if first.fingerprint.is_empty() {
        return Err(broken("its fingerprint is empty"));
    }
    if first.fingerprint != second.fingerprint {
        return Err(broken(format!("its fingerprint is {} and then {}", first.fingerprint, second.fingerprint)));
    }
    if !equal(&first, &second) {
        return Err(broken("it has other pairs, or in another order, when it is read again"));
    }
    Ok(Outcome::Exact)
}

/// Compares bit by bit.
fn equal(one: &AdapterData, other: &AdapterData) -> bool {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let same = |one: &LowRankPair, other: &LowRankPair| {
        (&one.target, one.rank, one.inputs, one.outputs) == (&other.target, other.rank, other.inputs, other.outputs)
            && bits(&[one.scale]) == bits(&[other.scale])
            && bits(&one.a) == bits(&other.a)
            && bits(&one.b) == bits(&other.b)
    };
    one.pairs.len() == other.pairs.len() && one.pairs.iter().zip(&other.pairs).all(|(one, other)| same(one, other))
}

/// A kind of damage to a file.
type Harm<'h> = (&'static str, &'h dyn Fn(&mut Vec<u8>));

/// Damages copies of the adapter: in each, one file is truncated, changed in one byte, or emptied.
fn damaged(bench: &Bench<'_>) -> Finding {
    let right = bench.read()?;
    let files = files(bench.adapter)?;
    let flip = |bytes: &mut Vec<u8>, place: usize| bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= 1);
    let harms: [Harm<'_>; 5] = [
        ("cut in half", &|bytes| bytes.truncate(bytes.len() / 2)),
        ("without its last byte", &|bytes| bytes.truncate(bytes.len().saturating_sub(1))),
        ("with another last byte", &|bytes| flip(bytes, bytes.len().saturating_sub(1))),
        ("with another byte in its middle", &|bytes| flip(bytes, bytes.len() / 2)),
        ("emptied", &Vec::clear),
    ];
    for (number, harmed) in files.iter().enumerate() {
        for (which, (how, harm)) in harms.iter().enumerate() {
            let copy = bench.folder(&format!("damaged/{number}-{which}"))?;
            for file in &files {
                let mut bytes = fs::read(file).map_err(|error| unwritten(file, &error))?;
                if file == harmed {
                    harm(&mut bytes);
                }
                write(&copy.join(file.file_name().unwrap_or_default()), &bytes)?;
            }
            let place = if bench.adapter.is_dir() { copy } else { copy.join(harmed.file_name().unwrap_or_default()) };
            let what = format!("'{}' {how}", harmed.file_name().unwrap_or_default().display());
            match bench.open(&place)? {
                Err(error) if error.code == ErrorCode::PANICKED => return Err(broken(format!("{what}: {error}"))),
                Ok(data) if data.fingerprint == right.fingerprint && !equal(&data, &right) => {
                    return Err(broken(format!("{what} has other values and the same fingerprint")));
                }
                _ => {}
            }
        }
    }
    Ok(Outcome::Exact)
}

/// The files of an adapter, which is either a file or a folder.
fn files(adapter: &Path) -> Finding<Vec<PathBuf>> {
    let unread = |error: io::Error| skipped(format!("'{}' cannot be listed: {error}", adapter.display()));
    if !adapter.is_dir() {
        return small(vec![adapter.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(adapter).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        files.extend(path.is_file().then_some(path));
    }
    files.sort();
    small(files)
}

fn small(files: Vec<PathBuf>) -> Finding<Vec<PathBuf>> {
    let bytes: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum();
    if bytes > COPY_BYTES_MAX || files.len() > 16 {
        return Err(skipped(format!("its {} files of {bytes} bytes are too large to be copied", files.len())));
    }
    Ok(files)
}
