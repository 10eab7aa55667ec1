//! Finds the plugin for a checkpoint, and the checkpoint's card, by asking child processes, and caches the answers on
//! disk.
//!
//! Cache keys consist of the checkpoint's files (names, sizes and modification times, which is all that the server
//! looks at), the plugin's content and the options; any change leads to a new probe. If the cache cannot be written,
//! this costs only time.

use lru::LruCache;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    num::NonZeroUsize,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use super::{
    child::{ChildError, ask},
    config::{Config, ModelConfig},
    fence,
    needs::Need,
    plugins::{Catalogue, Claimant, Plugin, Status},
};
use pensieve_packages::{Origin, Suggestion, suggestions};
use pensieve_protocol::{
    card::Card,
    checkpoint::CheckpointName,
    checkpoint_files::readable,
    job::{Failure, FailureCode},
    outside::Outside,
    questions::{Described, Named},
    refusal::RefusalKind,
    towers,
};

const SOURCE_FILES_MAX: usize = 4096;
/// Version of the cached form, changed along with it so that older answers are not read.
const FORM: &str = "2";
const CACHED_FILES_MAX: usize = 512;
/// Number of cards kept in memory; a tokenizer takes megabytes.
const LATEST_MAX: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// Time for which requests assume that a checkpoint is unchanged. Before a load it is always checked.
const LATEST_AGE_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(super) struct Prober {
    /// The program that children run: this one.
    program: PathBuf,
    /// The program's data folder, with the indexes as they were last seen.
    home: PathBuf,
    cache: PathBuf,
    needs: PathBuf,
    /// Time limit for one child.
    deadline: Duration,
    /// Recent results by model index.
    latest: Arc<Mutex<LruCache<usize, Latest>>>,
}

/// The result of probing a model, its time, and the plugins at that time. The plugins are not kept alive by it.
#[derive(Debug)]
struct Latest {
    card: KeyedCard,
    catalogue: Weak<Catalogue>,
    looked_at: Instant,
}

/// A card with its cache key: equal keys have equal cards.
#[derive(Clone, Debug)]
pub(super) struct KeyedCard {
    pub(super) key: Arc<str>,
    pub(super) card: Arc<Card>,
}

/// The plugin and architecture that accept a checkpoint, and its card.
#[derive(Clone, Debug)]
pub(super) struct Probed {
    pub(super) plugin: Arc<Plugin>,
    pub(super) architecture: String,
    pub(super) card: Arc<Card>,
    pub(super) need: Need,
    /// The model's options with the files that were found for it.
    pub(super) options: String,
}

impl Prober {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            program: config.plugins.program.clone(),
            home: config.plugins.home.clone(),
            cache: config.cards.clone(),
            needs: config.needs.clone(),
            deadline: config.deadlines.probe,
            latest: Arc::new(Mutex::new(LruCache::new(LATEST_MAX))),
        }
    }

    /// Returns the card of the model with this index in the configuration. Checks its files only now and then, and when
    /// plugins have changed.
    pub(super) async fn card(
        &self,
        place: usize,
        model: &ModelConfig,
        catalogue: &Arc<Catalogue>,
    ) -> Result<KeyedCard, Failure> {
        let is_fresh = |latest: &&Latest| {
            latest.catalogue.as_ptr() == Arc::as_ptr(catalogue) && latest.looked_at.elapsed() < LATEST_AGE_MAX
        };
        if let Some(latest) = self.latest().get(&place).filter(is_fresh) {
            return Ok(latest.card.clone());
        }
        Ok(self.look(place, model, catalogue).await?.1)
    }

    /// Finds the architecture that accepts the checkpoint of the model with this index in the configuration.
    pub(super) async fn probe(
        &self,
        place: usize,
        model: &ModelConfig,
        catalogue: &Arc<Catalogue>,
    ) -> Result<Probed, Failure> {
        let (Claimant { plugin, architecture }, keyed) = self.look(place, model, catalogue).await?;
        let need = self.need(model, &keyed);
        let options = towers::with_beside(&model.source, &model.spec.options);
        Ok(Probed { plugin, architecture, card: keyed.card, need, options })
    }

    pub(super) fn need(&self, model: &ModelConfig, KeyedCard { key, card }: &KeyedCard) -> Need {
        Need::look_up(&self.needs, model, card, key)
    }

    /// Forgets recent results, as indices stand for other sources now.
    pub(super) fn forget(&self) {
        self.latest().clear();
    }

    /// Asks the claimants of a checkpoint in turn until one accepts it.
    async fn look(
        &self,
        place: usize,
        model: &ModelConfig,
        catalogue: &Arc<Catalogue>,
    ) -> Result<(Claimant, KeyedCard), Failure> {
        let (source, looked_at) = (&model.source, Instant::now());
        let options = &towers::with_beside(source, &model.spec.options);
        let (path, own) = (source.clone(), options.clone());
        let merged = model.adapters.values().filter(|adapter| adapter.merged.is_some());
        let merged: Vec<PathBuf> = merged.map(|adapter| adapter.location.path.clone()).collect();
        let signed = tokio::task::spawn_blocking(move || {
            merged.iter().try_for_each(|adapter| readable(adapter).map(drop))?;
            signature(&path, &own)
        });
        let signed = signed.await;
        let signature = signed.map_err(|error| failure(FailureCode::Internal, &error.to_string(), ""))??;
        let name = self.name(source, &signature).await?;
        let claimants = catalogue.claimants(&name);
        if claimants.is_empty() {
            return Err(unclaimed(&name, catalogue, &self.home));
        }
        let mut declined = Vec::new();
        for claimant in claimants {
            let key = key(&["card", &signature, claimant.plugin.copy.sha256(), &claimant.architecture, options]);
            let known = self.latest().peek(&place).filter(|it| *it.card.key == *key).map(|it| it.card.card.clone());
            let described = match known {
                Some(card) => return Ok((claimant, self.keep(place, key, card, catalogue, looked_at))),
                None => self.describe(&claimant, source, options, &key).await?,
            };
            match described {
                Described::Card(card) => {
                    return Ok((claimant, self.keep(place, key, Arc::new(*card), catalogue, looked_at)));
                }
                Described::Declined(refusal) => declined.push(format!("{}: {}", claimant.architecture, refusal.reason)),
                Described::Refused(refusal) => {
                    let message = format!("plugin '{}': {}", claimant.plugin.manifest.id, refusal.reason);
                    return Err(failure(FailureCode::Plugin, &message, &refusal.help));
                }
            }
        }
        let message = format!("every plugin that claims '{}' declined it: {}", name.as_str(), declined.join("; "));
        Err(failure(FailureCode::Unsupported, &message, "drop a plugin that takes it into plugins/"))
    }

    async fn name(&self, source: &Path, signature: &str) -> Result<CheckpointName, Failure> {
        let key = key(&["name", signature]);
        if let Some(name) = self.remembered(&key) {
            return Ok(name);
        }
        let arguments = ["probe".into(), "name".into(), source.into()];
        let policy = fence::description(None, source, "")?;
        let named: Named = ask(&self.program, &arguments, &policy, self.deadline).await.map_err(|error| {
            let message = format!("the checkpoint '{}' {error}", Outside::path(&source));
            failure(FailureCode::Plugin, &message, "copy or download it again")
        })?;
        let name = named.map_err(|refusal| failure(FailureCode::Unsupported, &refusal.reason, &refusal.help))?;
        self.remember(&key, &name);
        Ok(name)
    }

    async fn describe(
        &self,
        claimant: &Claimant,
        source: &Path,
        options: &str,
        key: &str,
    ) -> Result<Described, Failure> {
        let plugin = &claimant.plugin;
        if let Some(card) = self.remembered(key) {
            return Ok(Described::Card(card));
        }
        let arguments: [OsString; 6] = [
            "probe".into(),
            "describe".into(),
            plugin.copy.path().into(),
            claimant.architecture.as_str().into(),
            source.into(),
            options.into(),
        ];
        let policy = fence::description(Some(plugin.copy.path()), source, options)?;
        let described = ask(&self.program, &arguments, &policy, self.deadline).await.map_err(|error: ChildError| {
            let message = format!("plugin '{}' {error}", plugin.manifest.id);
            failure(FailureCode::Plugin, &message, "update the plugin, or download the checkpoint again")
        })?;
        if let Described::Card(card) = &described {
            self.remember(key, card);
        }
        Ok(described)
    }

    fn keep(
        &self,
        place: usize,
        key: String,
        card: Arc<Card>,
        catalogue: &Arc<Catalogue>,
        looked_at: Instant,
    ) -> KeyedCard {
        let card = KeyedCard { key: key.into(), card };
        let latest = Latest { card: card.clone(), catalogue: Arc::downgrade(catalogue), looked_at };
        self.latest().put(place, latest);
        card
    }

    fn latest(&self) -> MutexGuard<'_, LruCache<usize, Latest>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let text = fs::read(self.cache.join(key)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes an answer to the cache atomically, and removes the oldest ones.
    fn remember(&self, key: &str, answer: &impl Serialize) {
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(&self.cache)?;
            let partial = self.cache.join(format!(".{key}.{}", std::process::id()));
            fs::write(&partial, serde_json::to_vec(answer)?)?;
            fs::rename(&partial, self.cache.join(key))?;
            let files = fs::read_dir(&self.cache)?.flatten();
            let mut files: Vec<_> =
                files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file.path()))).collect();
            files.sort();
            let surplus = files.len().saturating_sub(CACHED_FILES_MAX);
            files.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
        };
        // The next probe asks again.
        let _ = write();
    }
}

fn unclaimed(name: &CheckpointName, catalogue: &Catalogue, home: &Path) -> Failure {
    let known = catalogue.architectures().join(", ");
    let known = if known.is_empty() { "none" } else { &known };
    let mut message = format!("no plugin claims architecture '{}' (installed: {known}", name.as_str());
    let rejected = catalogue.states().iter().filter(|state| matches!(state.status, Status::Rejected(_)));
    let rejected: Vec<_> =
        rejected.filter_map(|state| Some(Outside::path(state.file.file_name()?).to_string())).collect();
    if !rejected.is_empty() {
        let _ = write!(message, "; rejected: {}", rejected.join(", "));
    }
    message.push(')');
    let no_space = catalogue.states().iter().find_map(|state| match &state.status {
        Status::Rejected(refusal) if refusal.kind == RefusalKind::NoSpace => Some(refusal),
        _ => None,
    });
    if let Some(refusal) = no_space {
        // Most likely the plugin is there, and only its copy is not.
        let message = format!("{}; so {message}", refusal.reason);
        return failure(FailureCode::Unsupported, &message, &refusal.help);
    }
    if let Some(closest) = closest(name, catalogue) {
        let _ = write!(message, "; {closest}");
    }
    let origin = Origin::of_this_program().map(|(origin, _)| origin);
    let help = match &suggestions(home, name, origin.as_ref())[..] {
        [] => "drop one into plugins/".to_owned(),
        [Suggestion { plugin, index }, ..] => {
            format!("the index '{index}' has one that does: pensieve plugins add {plugin}")
        }
    };
    failure(FailureCode::Unsupported, &message, &help)
}

/// Finds the plugin with the claim most similar to an unclaimed name: the same family in the other format, or another
/// generation of it.
fn closest(name: &CheckpointName, catalogue: &Catalogue) -> Option<String> {
    /// Fewer common letters are a coincidence.
    const ALIKE_MIN: usize = 4;
    let wanted = stem(name.as_str());
    let mut best = (ALIKE_MIN - 1, None);
    for plugin in catalogue.plugins() {
        for claim in &plugin.manifest.architectures {
            let gguf = claim.gguf.iter().map(|name| (name, "in GGUF"));
            for (claimed, format) in gguf.chain(claim.classes.iter().map(|name| (name, "in safetensors"))) {
                let pairs = wanted.bytes().zip(stem(claimed).into_bytes());
                let alike = pairs.take_while(|(a, b)| a == b).count();
                if alike > best.0 {
                    best = (alike, Some((&plugin.manifest.id, claimed, format)));
                }
            }
        }
    }
    let (plugin, claimed, format) = best.1?;
    Some(format!("plugin '{plugin}' comes closest, which claims '{claimed}' {format}"))
}

/// The stem of an architecture's name, without framework suffixes: `gemma3` for `Gemma3ForCausalLM`.
fn stem(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase());
    let plain: String = letters.collect();
    plain.split("for").next().unwrap_or_default().to_owned()
}

fn failure(code: FailureCode, message: &str, help: &str) -> Failure {
    Failure::new(code, message).with_help(help)
}

/// A signature that changes whenever the checkpoint visibly does. A checkpoint with links that lead elsewhere has none,
/// so that nothing is reported about it, not even from the cache.
fn signature(source: &Path, options: &str) -> Result<String, Failure> {
    readable(source)?;
    let missing = |error: std::io::Error| {
        let message = format!("the source '{}' cannot be looked at: {error}", Outside::path(&source));
        failure(FailureCode::NotFound, &message, "check the path")
    };
    let path = source.canonicalize().map_err(missing)?;
    let metadata = path.metadata().map_err(missing)?;
    let mut text = path.display().to_string();
    let mut add = |name: &str, metadata: &fs::Metadata| {
        let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
        let _ = write!(text, "\0{name}\0{} {} {} {times:?}", metadata.dev(), metadata.ino(), metadata.len());
    };
    if !metadata.is_dir() {
        add("", &metadata);
        let named = towers::named(source, options).into_iter();
        for tower in named.chain(towers::beside(source).into_iter().map(|name| source.with_file_name(name))) {
            if let Ok(metadata) = tower.metadata() {
                add(&tower.display().to_string(), &metadata);
            }
        }
        return Ok(text);
    }
    let mut files: Vec<PathBuf> = fs::read_dir(&path).map_err(missing)?.flatten().map(|entry| entry.path()).collect();
    if files.len() > SOURCE_FILES_MAX {
        let message = format!("the source '{}' holds {} files", Outside::path(&source), files.len());
        return Err(failure(FailureCode::Unsupported, &message, "name a folder with one checkpoint"));
    }
    files.sort();
    for file in files {
        if let Ok(metadata) = file.metadata()
            && metadata.is_file()
        {
            add(&file.display().to_string(), &metadata);
        }
    }
    Ok(text)
}

fn key(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in [FORM].iter().chain(parts) {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    format!("{:x}.json", digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_formats_come_to_one() {
        for (name, expected) in [
            ("gemma3", "gemma3"),
            ("Gemma3ForCausalLM", "gemma3"),
            ("Gemma3ForConditionalGeneration", "gemma3"),
            ("gpt-oss", "gptoss"),
            ("GptOssForCausalLM", "gptoss"),
        ] {
            assert_eq!(stem(name), expected);
        }
    }
}
