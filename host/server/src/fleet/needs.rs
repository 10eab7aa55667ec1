//! Remembers how much memory models really needed, for the claims of later loads: one small file for each checkpoint and
//! its settings. If a file cannot be written, the next load claims what its card says.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest, Sha256};

use super::ModelConfig;
use pensieve_protocol::card::Card;

const FILES_MAX: usize = 512;
const FILE_BYTES_MAX: u64 = 64;

/// A model's need of memory, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// Equal for equal checkpoints with equal settings.
    pub(super) key: String,
    /// The largest memory that a worker has had.
    pub(super) measured: Option<u64>,
}

impl Need {
    pub(super) fn look_up(folder: &Path, model: &ModelConfig, card: &Card, card_key: &str) -> Self {
        let mut digest = Sha256::new();
        let checkpoint = if card.fingerprint.is_empty() { card_key } else { &card.fingerprint };
        let spec = &model.spec;
        let limits = &spec.limits;
        let merged = model.adapters.iter().filter_map(|(name, adapter)| Some((name, adapter.merged?)));
        let settings = format!(
            "{} {} {:?} {} {} {} {:?}",
            spec.device,
            spec.context,
            spec.kv_budget,
            spec.threads,
            limits.sequences_max,
            limits.step_tokens_max,
            merged.collect::<Vec<_>>()
        );
        for part in [checkpoint, &card.architecture, &spec.options, &settings] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let key = format!("{:x}", digest.finalize());
        let measured = read(&folder.join(&key));
        Self { key, measured }
    }
}

fn read(path: &Path) -> Option<u64> {
    let short = fs::symlink_metadata(path).ok().filter(|file| file.is_file() && file.len() <= FILE_BYTES_MAX);
    short.and_then(|_| fs::read_to_string(path).ok())?.trim().parse().ok().filter(|bytes| *bytes > 0)
}

/// Writes a need, and removes the oldest ones beyond a limit.
pub(super) fn remember(folder: &Path, key: &str, bytes: u64) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let partial = folder.join(format!(".{key}.{}", std::process::id()));
    fs::write(&partial, format!("{bytes}\n"))?;
    fs::rename(&partial, folder.join(key))?;
    let files = fs::read_dir(folder)?.flatten();
    let mut files: Vec<(SystemTime, PathBuf)> =
        files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file.path()))).collect();
    files.sort();
    let surplus = files.len().saturating_sub(FILES_MAX);
    files.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fleet::memory::tests::card;
    use pensieve_protocol::card::State;

    #[test]
    fn a_need_is_remembered_for_a_checkpoint_with_its_settings() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("needs");
        let card = Card { fingerprint: "weights".into(), ..card(1, State::PerSequence { bytes: 1 }) };
        let model = ModelConfig { id: "m".into(), ..ModelConfig::default() };
        let need = |model: &ModelConfig, card: &Card| Need::look_up(&folder, model, card, "key");
        let first = need(&model, &card);
        assert_eq!(first.measured, None);
        remember(&folder, &first.key, 313 << 20).unwrap();
        assert_eq!(need(&model, &card).measured, Some(313 << 20));
        // The name does not matter, the settings and the weights do.
        let renamed = ModelConfig { id: "n".into(), aliases: vec!["x".into()], ..model.clone() };
        assert_eq!(need(&renamed, &card).measured, Some(313 << 20));
        let mut smaller = model.clone();
        smaller.spec.context = 100;
        assert_eq!(need(&smaller, &card).measured, None);
        assert_eq!(need(&model, &Card { fingerprint: "others".into(), ..card.clone() }).measured, None);
        for damage in ["", "-1", "many", "0", &"9".repeat(70)] {
            fs::write(folder.join(&first.key), damage).unwrap();
            assert_eq!(need(&model, &card).measured, None, "{damage}");
        }
    }
}
