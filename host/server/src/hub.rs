//! Checkpoints from the Hugging Face hub, by name: `hf:OWNER/REPO[@REVISION][/FILE]`.
//!
//! Files lie where every program that speaks to the hub keeps them (hf-hub knows the layout), so that what another tool has
//! downloaded is not downloaded again. What hf-hub's own transfer does not do is done here: a download goes on where
//! it broke off, is checked against the digest that the hub names, and becomes visible only when it is whole. The hub, and
//! any mirror in its place, is not trusted: names, lengths and digests are checked before anything is written.

mod choice;
mod error;
mod listing;
mod name;
mod remote;
mod storage;
mod transfer;

use std::{env, path::PathBuf, time::Duration};

pub use error::{HubError, HubErrorKind};
pub use name::HubName;

use choice::Choice;
use listing::Listing;
use remote::Remote;
use storage::Storage;
use transfer::HubClient;

#[derive(Clone)]
pub struct Hub {
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    pub token: Option<String>,
    /// The cache, which holds a folder per repository.
    pub cache: PathBuf,
    /// Bytes of memory that a checkpoint has to fit if no file is named; none for any size.
    pub memory: Option<u64>,
    pub retry: RetryPolicy,
}

#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// How long a connection or an answer may take to begin.
    pub answer: Duration,
    /// How long one request may send; after that the rest is asked for anew, so that a connection which hangs is noticed.
    pub body: Duration,
    /// How many failures in a row, without a byte in between, end a download.
    pub failures_max: u32,
    /// The pause after the first failure; it doubles with every further one.
    pub pause: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            body: Duration::from_secs(60),
            failures_max: 5,
            pause: Duration::from_millis(500),
        }
    }
}

/// Hears how a download goes.
pub trait Progress {
    /// Something that a person may want to know.
    fn say(&mut self, line: &str);
    /// A file is about to come; `done` bytes of it were there already.
    fn begin(&mut self, name: &str, done: u64, total: u64);
    /// `done` bytes of the file are there now.
    fn reach(&mut self, done: u64);
    /// It is whole.
    fn end(&mut self);
    /// Whether the rest is wanted no more. What has come is kept, and another pull goes on there.
    fn is_cancelled(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The `.gguf` file or the folder.
    pub path: PathBuf,
    /// The files that make it up, as the hub names them.
    pub files: Vec<String>,
}

/// A checkpoint of a repository that can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What to put behind the repository's name; empty for the repository itself.
    pub file: String,
    pub bytes: u64,
    /// Whether it is what is taken when nothing is named.
    pub preferred: bool,
    /// Whether it fits [`Hub::memory`].
    pub fits: bool,
}

/// What a checkpoint takes besides its weights: a worker, and scratch.
const BESIDE_WEIGHTS_BYTES: u64 = 256 << 20;
/// The share of the weights' size that a context of some thousand tokens takes: a tenth.
const CONTEXT_SHARE: u64 = 10;

impl Hub {
    /// The hub and the cache that the environment names: `HF_ENDPOINT`, `HF_TOKEN` or the token that was stored by a login,
    /// `HF_HUB_CACHE`, `HF_HOME`.
    pub fn from_environment() -> Result<Self, HubError> {
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).and_then(|value| value.into_string().ok());
        let home = match given("HF_HOME") {
            Some(home) => PathBuf::from(home),
            None => {
                let cache = given("XDG_CACHE_HOME").map(PathBuf::from);
                let below_home = || Some(PathBuf::from(given("HOME")?).join(".cache"));
                let cache = cache.or_else(below_home).ok_or_else(|| {
                    HubError::new(HubErrorKind::Other, "there is no place for downloads: HOME is not set")
                        .help("set HF_HOME to a folder")
                })?;
                cache.join("huggingface")
            }
        };
        let stored = || hf_hub::Cache::new(home.join("hub")).token();
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let message = format!("HF_ENDPOINT is '{endpoint}', which is no address");
            return Err(HubError::new(HubErrorKind::Usage, message).help("it looks like https://huggingface.co"));
        }
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: text("HF_TOKEN").map(|token| token.trim().to_owned()).or_else(stored),
            cache: given("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            memory: None,
            retry: RetryPolicy::default(),
        })
    }

    /// Whether a checkpoint of `bytes` bytes fits the memory, with a context that one can work with.
    fn fits(&self, bytes: u64) -> bool {
        let needed = bytes.saturating_add(bytes / CONTEXT_SHARE).saturating_add(BESIDE_WEIGHTS_BYTES);
        self.memory.is_none_or(|memory| needed <= memory)
    }

    /// What of this name is on this machine, whole. Makes no request.
    pub fn cached(&self, name: &HubName) -> Option<Pulled> {
        let storage = Storage::new(&self.cache, name);
        let commit = storage.commit()?;
        let names = storage.files(&commit);
        let mut choice = Choice::of(name, &names, &|_| true).ok()?;
        if let Some(index) = choice.index.take() {
            let text = choice::read_index(&storage.snapshot(&commit).join(index)).ok()?;
            choice.add_shards(&text, &names).ok()?;
        }
        let whole = choice.files.iter().all(|file| names.contains(file));
        whole.then(|| Pulled { path: storage.snapshot(&commit).join(&choice.head), files: choice.files })
    }

    /// Every checkpoint of the hub that is on this machine, whole, each under the name that brings it again.
    pub fn all_cached(&self) -> Vec<HubName> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.cache).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix("models--")) else { continue };
            let Ok(bare) = format!("hf:{}", name.replacen("--", "/", 1)).parse::<HubName>() else { continue };
            let storage = Storage::new(&self.cache, &bare);
            let names = storage.commit().map(|commit| storage.files(&commit)).unwrap_or_default();
            let files = choice::checkpoints(&names).into_iter().map(|files| files[0].clone());
            let named = files.map(|file| HubName { file: Some(file), ..bare.clone() });
            let mut named: Vec<HubName> = named.filter(|name| self.cached(name).is_some()).collect();
            if named.is_empty() && self.cached(&bare).is_some() {
                named.push(bare);
            }
            found.extend(named);
        }
        found.sort_by_key(ToString::to_string);
        found
    }

    /// Brings an adapter onto this machine, unless it is here: a folder's two files or a GGUF file that is named, if they
    /// have at most `bytes_max` bytes.
    pub fn pull_adapter(
        &self,
        name: &HubName,
        bytes_max: u64,
        progress: &mut dyn Progress,
    ) -> Result<Pulled, HubError> {
        let storage = Storage::new(&self.cache, name);
        if let Some(commit) = storage.commit()
            && let Ok(choice) = Choice::of_adapter(name, &storage.files(&commit))
        {
            return Ok(Pulled { path: storage.snapshot(&commit).join(&choice.head), files: choice.files });
        }
        let client = HubClient::open(self)?;
        let listing = Listing::fetch(self, &client, name)?;
        let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
        let choice = Choice::of_adapter(name, &names)?;
        let bytes = listing.bytes(&choice.files);
        if bytes > bytes_max {
            let message = format!("the adapter '{name}' has {bytes} bytes, and {bytes_max} may be downloaded");
            return Err(HubError::new(HubErrorKind::TooLarge, message).help("raise the model's adapter_memory"));
        }
        storage.prepare(&listing.commit)?;
        self.bring(&client, name, &storage, &listing, &choice.files, progress)?;
        storage.remember(&listing.commit)?;
        Ok(Pulled { path: storage.snapshot(&listing.commit).join(&choice.head), files: choice.files })
    }

    /// Brings a checkpoint onto this machine, as the hub has it now. Files that are there already are not loaded again.
    pub fn pull(&self, name: &HubName, progress: &mut dyn Progress) -> Result<Pulled, HubError> {
        let client = HubClient::open(self)?;
        let listing = Listing::fetch(self, &client, name)?;
        let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
        let mut choice = Choice::of(name, &names, &|files| self.fits(listing.bytes(files)))?;
        if let Some(why) = &choice.why {
            progress.say(why);
        }
        let storage = Storage::new(&self.cache, name);
        storage.prepare(&listing.commit)?;
        let first = choice.files.clone();
        if let Some(index) = &choice.index {
            choice::check_index(index, listing.bytes(std::slice::from_ref(index)))?;
        }
        self.bring(&client, name, &storage, &listing, &first, progress)?;
        if let Some(index) = choice.index.take() {
            let text = choice::read_index(&storage.snapshot(&listing.commit).join(&index))?;
            choice.add_shards(&text, &names)?;
            self.bring(&client, name, &storage, &listing, &choice.files[first.len()..], progress)?;
        }
        storage.remember(&listing.commit)?;
        Ok(Pulled { path: storage.snapshot(&listing.commit).join(&choice.head), files: choice.files })
    }

    pub fn list(&self, name: &HubName) -> Result<Vec<Offer>, HubError> {
        let listing = Listing::fetch(self, &HubClient::open(self)?, name)?;
        let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
        let bare = HubName { file: None, ..name.clone() };
        let preferred = Choice::of(&bare, &names, &|files| self.fits(listing.bytes(files))).ok();
        let mut offers: Vec<Offer> = choice::checkpoints(&names)
            .into_iter()
            .map(|files| Offer {
                bytes: listing.bytes(&files),
                preferred: preferred.as_ref().is_some_and(|preferred| preferred.files == files),
                fits: self.fits(listing.bytes(&files)),
                file: files.into_iter().next().unwrap_or_default(),
            })
            .collect();
        if let Some(folder) = preferred.filter(|choice| choice.head.is_empty()) {
            // Shards are named by an index that is not here yet; by their names they are known all the same.
            let weights = names.iter().filter(|name| choice::is_weights(name) && !folder.files.contains(name));
            let files: Vec<String> = folder.files.iter().chain(weights).cloned().collect();
            let bytes = listing.bytes(&files);
            offers.insert(0, Offer { file: String::new(), bytes, preferred: true, fits: self.fits(bytes) });
        }
        Ok(offers)
    }

    fn bring(
        &self,
        client: &HubClient,
        name: &HubName,
        storage: &Storage,
        listing: &Listing,
        files: &[String],
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let wanted: Vec<&Remote> =
            files.iter().filter_map(|file| listing.files.iter().find(|remote| remote.name == *file)).collect();
        storage.check_space(&wanted)?;
        for remote in wanted {
            let url =
                format!("{}/{}/resolve/{}/{}", self.endpoint, name.repository(), listing.commit, quoted(&remote.name));
            storage.receive(client, &url, remote, progress)?;
            storage.link(&listing.commit, remote)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .field("token", &token)
            .field("cache", &self.cache)
            .finish()
    }
}

fn quoted(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
