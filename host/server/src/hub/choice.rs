//! Selects the files of a checkpoint in a repository, and the checkpoint if none is named, from file names and the
//! index of shards.

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
};

use super::{HubError, HubErrorKind, HubName};
use pensieve_protocol::{
    checkpoint_files::{BESIDE_WEIGHTS, numbered, parts},
    outside::Outside,
    towers,
};

/// Quantizations in order of preference: first small ones that are nearly as good as the original, then better and
/// larger ones, then worse ones, and last unquantized weights.
const QUANTS: [&str; 32] = [
    "Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q4_K", "MXFP4", "IQ4_NL", "IQ4_XS", "Q5_K_M", "Q5_K_XL", "Q5_K_S", "Q5_K", "Q4_1",
    "Q4_0", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "Q3_K", "IQ3_S",
    "IQ3_XXS", "Q2_K_XL", "Q2_K", "Q2_K_S", "IQ2_M", "BF16", "F16", "F32",
];
/// Files of an adapter as saved by PEFT.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const INDEX: &str = "model.safetensors.index.json";
const SHARDS_MAX: usize = 1000;
/// The largest known indices list a hundred thousand tensors, in a tenth of this.
const INDEX_BYTES_MAX: u64 = 64 << 20;
const LISTED_MAX: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The file to open; empty for the folder itself.
    pub(super) head: String,
    pub(super) files: Vec<String>,
    /// The file among `files` that lists shards to download, too.
    pub(super) index: Option<String>,
    /// The reason for the choice, if there were others.
    pub(super) why: Option<String>,
}

impl Choice {
    /// Selects among the files of a repository. Unless a file is named, the choice must fit in memory.
    pub(super) fn of(name: &HubName, names: &[String], fits: &dyn Fn(&[String]) -> bool) -> Result<Self, HubError> {
        let mut choice = match &name.file {
            Some(file) => named(name, file, names),
            None => unnamed(name, names, fits),
        }?;
        choice.files.extend(tower(&choice.head, names));
        Ok(choice)
    }

    /// Selects an adapter's files, without a model in the same repository.
    pub(super) fn of_adapter(name: &HubName, names: &[String]) -> Result<Self, HubError> {
        match &name.file {
            Some(file) if !is_gguf(file) => {
                let message = format!("'{file}' is not a GGUF file; an adapter is a repository or a GGUF file");
                Err(HubError::new(HubErrorKind::Usage, message)
                    .help(format!("name hf:{0} or hf:{0}/FILE.gguf", name.repository())))
            }
            Some(file) => named(name, file, names),
            None if ADAPTER.iter().all(|file| names.iter().any(|name| name == file)) => {
                let files = ADAPTER.iter().map(|&file| file.to_owned()).collect();
                Ok(Self { head: String::new(), files, index: None, why: None })
            }
            None => {
                let message =
                    format!("'{}' contains no adapter in PEFT's format ({})", name.repository(), ADAPTER.join(", "));
                Err(HubError::new(HubErrorKind::Absent, message)
                    .help(format!("name a file: hf:{}/FILE.gguf", name.repository())))
            }
        }
    }

    pub(super) fn add_shards(&mut self, index: &[u8], names: &[String]) -> Result<(), HubError> {
        let damaged = |what: String| HubError::new(HubErrorKind::Damaged, format!("'{INDEX}' {what}"));
        let index: Index = serde_json::from_slice(index)
            .map_err(|error| damaged(format!("is not a valid index of shards: {error}")))?;
        let Shards(shards) = index.weight_map;
        if shards.is_empty() {
            return Err(damaged("lists no shards".into()));
        }
        for shard in shards {
            // Only files in the repository's listing are ever requested or opened, and those names are validated.
            if !names.contains(&shard) {
                return Err(damaged(format!(
                    "lists the shard '{}', which the repository does not have",
                    Outside::new(shard)
                )));
            }
            self.files.push(shard);
        }
        Ok(())
    }
}

/// The shards in an index. It lists every tensor; only the distinct file names are kept.
#[derive(Deserialize)]
struct Index {
    weight_map: Shards,
}

struct Shards(BTreeSet<String>);

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Shards;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names of tensors with those of their files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shards, A::Error> {
                let mut shards = BTreeSet::new();
                while let Some((_, shard)) = map.next_entry::<IgnoredAny, Cow<'_, str>>()? {
                    if !shards.contains(&*shard) {
                        shards.insert(shard.into_owned());
                    }
                    if shards.len() > SHARDS_MAX {
                        return Err(A::Error::custom(format!("it lists more than {SHARDS_MAX} shards")));
                    }
                }
                Ok(Shards(shards))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Refuses an implausibly large index before it is downloaded.
pub(super) fn check_index(name: &str, bytes: u64) -> Result<(), HubError> {
    if bytes <= INDEX_BYTES_MAX {
        return Ok(());
    }
    let message = format!("'{name}' has {bytes} bytes, more than the limit of {INDEX_BYTES_MAX}");
    Err(HubError::new(HubErrorKind::Damaged, message).help("report this to the repository's owner"))
}

pub(super) fn read_index(path: &Path) -> Result<Vec<u8>, HubError> {
    let failed = |error: io::Error| HubError::file(path, &error);
    let file = File::open(path).map_err(failed)?;
    check_index(INDEX, file.metadata().map_err(failed)?.len())?;
    let mut text = Vec::new();
    file.take(INDEX_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

/// Complete GGUF checkpoints of a repository, each with all of its parts, in order of preference.
pub(super) fn checkpoints(names: &[String]) -> Vec<Vec<String>> {
    let mut candidates: Vec<Vec<String>> =
        names.iter().filter(|name| is_checkpoint(name)).map(|name| parts(name)).collect();
    candidates.retain(|parts| parts.iter().all(|part| names.contains(part)));
    candidates.sort_by_key(|parts| (rank(&parts[0]), parts[0].clone()));
    candidates.dedup();
    candidates
}

pub(super) fn is_weights(name: &str) -> bool {
    let numbered = name.starts_with("model-") && name.ends_with(".safetensors");
    numbered || name == "model.safetensors"
}

fn named(name: &HubName, file: &str, names: &[String]) -> Result<Choice, HubError> {
    let files = if is_gguf(file) { parts(file) } else { vec![file.to_owned()] };
    if let Some(missing) = files.iter().find(|file| !names.contains(file)) {
        let nearest = names.iter().max_by(|a, b| strsim::jaro(a, missing).total_cmp(&strsim::jaro(b, missing)));
        let message = format!("'{}' has no file '{missing}'", name.repository());
        let help = nearest.map(|nearest| format!("did you mean '{nearest}'? ")).unwrap_or_default();
        let help = format!("{help}pensieve pull --list hf:{} lists the files", name.repository());
        return Err(HubError::new(HubErrorKind::Absent, message).help(help));
    }
    Ok(Choice { head: files[0].clone(), files, index: None, why: None })
}

fn unnamed(name: &HubName, names: &[String], fits: &dyn Fn(&[String]) -> bool) -> Result<Choice, HubError> {
    let candidates = checkpoints(names);
    let ranked: Vec<_> =
        candidates.iter().filter(|parts| candidates.len() == 1 || rank(&parts[0]) < QUANTS.len()).collect();
    if let Some(&best) = ranked.first() {
        let Some(&files) = ranked.iter().find(|files| fits(files)) else {
            let message = format!("no GGUF file of '{}' fits the memory for models", name.repository());
            let help = format!(
                "pensieve pull --list hf:{0} shows their sizes; a named file is not checked: hf:{0}/{1}",
                name.repository(),
                best[0]
            );
            return Err(HubError::new(HubErrorKind::TooLarge, message).help(help));
        };
        let others: Vec<&str> =
            candidates.iter().filter(|other| *other != files).map(|parts| parts[0].as_str()).collect();
        let reason = if files == best { "" } else { ", as preferred ones do not fit the memory for models" };
        let why =
            format!("choosing {} of {} GGUF files{reason}; others: {}", files[0], candidates.len(), listed(&others));
        let why = (!others.is_empty()).then_some(why);
        return Ok(Choice { head: files[0].clone(), files: files.clone(), index: None, why });
    }
    let has = |file: &str| names.iter().any(|name| name == file);
    let mut files: Vec<String> =
        BESIDE_WEIGHTS.iter().filter(|file| has(file)).map(|file| (*file).to_owned()).collect();
    if has("config.json") && has(INDEX) {
        files.push(INDEX.into());
        return Ok(Choice { head: String::new(), files, index: Some(INDEX.into()), why: None });
    }
    let weights = if has("config.json") { "model.safetensors" } else { "adapter_model.safetensors" };
    if has(weights) && (has("config.json") || has("adapter_config.json")) {
        files.push(weights.into());
        return Ok(Choice { head: String::new(), files, index: None, why: None });
    }
    let (message, help) = if candidates.is_empty() {
        let message =
            format!("'{}' contains no checkpoint: neither GGUF nor config.json with safetensors", name.repository());
        (message, "look for a repository with GGUF or safetensors".to_owned())
    } else {
        let names: Vec<&str> = candidates.iter().map(|parts| parts[0].as_str()).collect();
        let message =
            format!("'{}' contains no quantization that is chosen by default: {}", name.repository(), listed(&names));
        (message, format!("name one: hf:{}/{}", name.repository(), names[0]))
    };
    Err(HubError::new(HubErrorKind::Absent, message).help(help))
}

/// The vision tower of a GGUF file in the same folder of the repository. All of them are the same one in different
/// precision; half of 32 bits is what such files are made for.
fn tower(head: &str, names: &[String]) -> Option<String> {
    let (folder, file) = head.rsplit_once('/').unwrap_or(("", head));
    if !is_gguf(file) || towers::is_tower(file) {
        return None;
    }
    let beside = |name: &&String| {
        let (other, file) = name.rsplit_once('/').unwrap_or(("", name));
        other == folder && towers::is_tower(file)
    };
    let precision = |name: &str| {
        let name = name.to_ascii_uppercase();
        ["-F16", "_F16", "BF16", "F32"].iter().position(|precision| name.contains(precision)).unwrap_or(usize::MAX)
    };
    names.iter().filter(beside).min_by_key(|name| (precision(name), name.as_str())).cloned()
}

fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// True for a GGUF file with a model: not an image projector, an importance matrix or a vocabulary, and only the first
/// of several parts.
fn is_checkpoint(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let first = numbered(&file).is_none_or(|(_, number, _)| number == 1);
    is_gguf(&file) && first && !file.contains("mmproj") && !file.contains("imatrix") && !file.starts_with("ggml-vocab")
}

/// Index of a file's quantization in [`QUANTS`].
fn rank(name: &str) -> usize {
    let text = name.to_ascii_uppercase();
    let stands = |quant: &str| {
        text.match_indices(quant).any(|(at, _)| {
            let letter = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
            !letter(text.as_bytes().get(at + quant.len()))
                && !letter(at.checked_sub(1).and_then(|at| text.as_bytes().get(at)))
        })
    };
    QUANTS.iter().position(|quant| stands(quant)).unwrap_or(QUANTS.len())
}

fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
    if names.len() > LISTED_MAX { format!("{shown} and {} more", names.len() - LISTED_MAX) } else { shown }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(name: &str, names: &[&str], expect: Result<(&str, &[&str]), &str>) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let found = Choice::of(&name.parse().unwrap(), &names, &|_| true);
        match (found, expect) {
            (Ok(found), Ok((head, files))) => {
                assert_eq!(found.head, head, "{name}");
                assert_eq!(found.files, files, "{name}");
            }
            (Err(found), Err(expect)) => assert!(found.to_string().contains(expect), "{found}"),
            (found, expect) => panic!("{found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn takes_the_middling_quantization() {
        let names = [
            "a-Q2_K.gguf",
            "a-Q8_0.gguf",
            "a-q4_k_m.gguf",
            "a-f16.gguf",
            "a-IQ4_XS.gguf",
            "mmproj-F16.gguf",
            "README.md",
        ];
        check("hf:o/r", &names, Ok(("a-q4_k_m.gguf", &["a-q4_k_m.gguf", "mmproj-F16.gguf"])));
        check("hf:o/r", &["a.Q6_K.gguf", "a.Q5_K_S.gguf"], Ok(("a.Q5_K_S.gguf", &["a.Q5_K_S.gguf"])));
        check("hf:o/r", &["a-IQ1_S.gguf", "a-F32.gguf", "a-BF16.gguf"], Ok(("a-BF16.gguf", &["a-BF16.gguf"])));
        check("hf:o/r", &["a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf"], Ok(("a-UD-Q4_K_XL.gguf", &["a-UD-Q4_K_XL.gguf"])));
        check("hf:o/r", &["a-mxfp4.gguf", "a-F16.gguf"], Ok(("a-mxfp4.gguf", &["a-mxfp4.gguf"])));
        check("hf:o/r", &["model.gguf", "config.json"], Ok(("model.gguf", &["model.gguf"])));
    }

    #[test]
    fn takes_the_vision_tower_beside_a_model() {
        let names = ["a-Q4_0.gguf", "mmproj-a-f32.gguf", "mmproj-a-bf16.gguf", "mmproj-a-f16.gguf", "q/b.gguf"];
        check("hf:o/r", &names, Ok((names[0], &[names[0], names[3]])));
        check("hf:o/r", &names[..3], Ok((names[0], &[names[0], names[2]])));
        check("hf:o/r", &["a.gguf", "mmproj-a.gguf"], Ok(("a.gguf", &["a.gguf", "mmproj-a.gguf"])));
        check("hf:o/r/q/b.gguf", &names, Ok((names[4], &[names[4]])));
        check("hf:o/r/mmproj-a-f32.gguf", &names, Ok((names[1], &[names[1]])));
    }

    #[test]
    fn says_what_else_there_is() {
        let names = ["x-Q4_K_M.gguf".to_owned(), "x-Q8_0.gguf".to_owned()];
        let why = Choice::of(&"hf:o/r".parse().unwrap(), &names, &|_| true).unwrap().why.unwrap();
        assert_eq!(why, "choosing x-Q4_K_M.gguf of 2 GGUF files; others: x-Q8_0.gguf");
        check("hf:o/r", &["a-IQ1_M.gguf", "a-IQ2_XXS.gguf"], Err("name one: hf:o/r/a-IQ1_M.gguf"));
    }

    #[test]
    fn takes_the_best_file_that_fits() {
        let names = ["x-Q4_K_M.gguf", "x-Q8_0.gguf", "x-Q3_K_M.gguf", "x-Q2_K.gguf"].map(str::to_owned);
        let choose = |name: &str, fits: &[&str]| {
            Choice::of(&name.parse().unwrap(), &names, &|files| fits.contains(&files[0].as_str()))
        };
        let why = choose("hf:o/r", &["x-Q3_K_M.gguf", "x-Q2_K.gguf"]).unwrap().why.unwrap();
        assert!(why.starts_with("choosing x-Q3_K_M.gguf of 4 GGUF files, as preferred ones do not fit"), "{why}");
        let error = choose("hf:o/r", &[]).unwrap_err();
        assert_eq!(error.kind, HubErrorKind::TooLarge);
        assert!(error.to_string().contains("no GGUF file of 'o/r' fits"), "{error}");
        assert_eq!(choose("hf:o/r/x-Q8_0.gguf", &[]).unwrap().head, "x-Q8_0.gguf");
    }

    #[test]
    fn takes_all_parts_of_what_was_split() {
        let names = ["q/a-Q4_0-00001-of-00002.gguf", "q/a-Q4_0-00002-of-00002.gguf", "a-Q8_0-00001-of-00002.gguf"];
        check("hf:o/r", &names, Ok((names[0], &names[..2])));
        check("hf:o/r/q/a-Q4_0-00002-of-00002.gguf", &names, Ok((names[0], &names[..2])));
        check("hf:o/r/a-Q8_0-00001-of-00002.gguf", &names, Err("has no file 'a-Q8_0-00002-of-00002.gguf'"));
    }

    #[test]
    fn takes_a_folder_where_there_is_no_gguf() {
        let names = ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "README.md"];
        check("hf:o/r", &names, Ok(("", &["config.json", "tokenizer.json", "model.safetensors"])));
        let names = ["config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"];
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut choice = Choice::of(&"hf:o/r".parse().unwrap(), &names, &|_| true).unwrap();
        assert_eq!(choice.files, ["config.json", "model.safetensors.index.json"]);
        choice.add_shards(br#"{"weight_map": {"a": "model-00001-of-00001.safetensors"}}"#, &names).unwrap();
        assert_eq!(choice.files.len(), 3);
        for index in ["{", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": "../../etc/passwd"}}"#] {
            assert_eq!(
                choice.clone().add_shards(index.as_bytes(), &names).unwrap_err().kind,
                HubErrorKind::Damaged,
                "{index}"
            );
        }
        let many: Vec<String> = (0..=SHARDS_MAX).map(|shard| format!("\"t{shard}\": \"{shard}\"")).collect();
        let many = format!("{{\"weight_map\": {{{}}}}}", many.join(","));
        assert!(choice.add_shards(many.as_bytes(), &names).unwrap_err().message.contains("more than 1000 shards"));
        assert!(check_index(INDEX, 20 << 30).is_err() && check_index(INDEX, 20 << 20).is_ok());
        let names = ["adapter_config.json", "adapter_model.safetensors", "README.md"];
        check("hf:o/r", &names, Ok(("", &["adapter_config.json", "adapter_model.safetensors"])));
        check("hf:o/r", &["README.md", "config.json", "model.bin"], Err("contains no checkpoint"));
    }

    #[test]
    fn an_adapter_is_two_files_or_a_named_one() {
        let names = ["adapter_config.json", "adapter_model.safetensors", "model.safetensors", "a.gguf"];
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let files = |name: &str, names: &[String]| {
            let choice = Choice::of_adapter(&name.parse().unwrap(), names);
            choice.map(|choice| choice.files).map_err(|error| error.kind)
        };
        assert_eq!(files("hf:o/r", &names), Ok(names[..2].to_vec()));
        assert_eq!(files("hf:o/r/a.gguf", &names), Ok(vec!["a.gguf".to_owned()]));
        assert_eq!(files("hf:o/r/model.safetensors", &names), Err(HubErrorKind::Usage));
        assert_eq!(files("hf:o/r", &names[2..]), Err(HubErrorKind::Absent));
    }

    #[test]
    fn a_file_that_is_not_there_has_a_nearest_one() {
        check("hf:o/r/a-Q4_K.gguf", &["a-Q4_K_M.gguf", "b.txt"], Err("did you mean 'a-Q4_K_M.gguf'?"));
    }
}
