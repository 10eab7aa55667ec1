//! Downloads checkpoints from the Hugging Face hub: `hf:OWNER/REPO[@REVISION][/FILE]`.
//!
//! Files go to the hub's shared cache, in hf-hub's layout, so that downloads of other tools are reused. Unlike hf-hub's
//! own transfer, downloads resume where they stopped, are checked against the hub's digest, and become visible only
//! when complete. The hub and its mirrors are not trusted: names, lengths and digests are validated before anything is
//! written.

mod choice;
mod error;
mod fetch;
mod listing;
mod name;
mod remote;
mod storage;
mod transfer;

use std::{env, path::PathBuf, time::Duration};

pub use error::{HubError, HubErrorKind};
pub use fetch::fetch;
pub use name::HubName;

use choice::Choice;
use listing::Listing;
use remote::Remote;
use storage::Storage;
use transfer::HubClient;

#[derive(Clone)]
pub struct Hub {
    /// The hub's URL, without a trailing slash.
    pub endpoint: String,
    pub token: Option<String>,
    /// The cache, with a folder per repository.
    pub cache: PathBuf,
    /// Memory that a checkpoint must fit if no file is named; `None` for any size.
    pub memory: Option<u64>,
    pub retry: RetryPolicy,
}

#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Timeout for connecting, and for the start of a response.
    pub answer: Duration,
    /// Time limit of one response body; the rest is then requested again, so that a hung connection is noticed.
    pub body: Duration,
    /// Consecutive failures, without any byte in between, that end a download.
    pub failures_max: u32,
    /// Pause after the first failure; doubles with each further one.
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

/// Receives the progress of a download.
pub trait Progress {
    /// A message for the user.
    fn say(&mut self, line: &str);
    /// A file starts; `done` bytes of it exist from an earlier download.
    fn begin(&mut self, name: &str, done: u64, total: u64);
    /// `done` bytes of the file have been received.
    fn reach(&mut self, done: u64);
    /// The file is complete.
    fn end(&mut self);
    /// True to stop the download. Received bytes are kept, and another pull resumes there.
    fn is_cancelled(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The `.gguf` file or the folder.
    pub path: PathBuf,
    /// Its files by their names on the hub.
    pub files: Vec<String>,
}

/// A checkpoint in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The file to append to the repository's name; empty for the repository itself.
    pub file: String,
    pub bytes: u64,
    /// The default choice.
    pub preferred: bool,
    /// True if it fits [`Hub::memory`].
    pub fits: bool,
}

/// Memory besides the weights: the worker process, and scratch.
const BESIDE_WEIGHTS_BYTES: u64 = 256 << 20;
/// The KV cache for a few thousand tokens is estimated at this fraction (1/N) of the weights.
const CONTEXT_SHARE: u64 = 10;

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` or the token stored by a login, `HF_HUB_CACHE` and `HF_HOME`.
    pub fn from_environment() -> Result<Self, HubError> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let home = match variable("HF_HOME") {
            Some(home) => PathBuf::from(home),
            None => {
                let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
                let below_home = || Some(PathBuf::from(variable("HOME")?).join(".cache"));
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
            let message = format!("HF_ENDPOINT is '{endpoint}', which is not a URL");
            return Err(HubError::new(HubErrorKind::Usage, message).help("it looks like https://huggingface.co"));
        }
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: text("HF_TOKEN").map(|token| token.trim().to_owned()).or_else(stored),
            cache: variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            memory: None,
            retry: RetryPolicy::default(),
        })
    }

    /// True if a checkpoint of `bytes` bytes fits in memory together with a usable context.
    fn fits(&self, bytes: u64) -> bool {
        let needed = bytes.saturating_add(bytes / CONTEXT_SHARE).saturating_add(BESIDE_WEIGHTS_BYTES);
        self.memory.is_none_or(|memory| needed <= memory)
    }

    /// The checkpoint in the cache, if complete. Makes no request.
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

    /// All complete checkpoints in the cache, with the names under which they can be pulled.
    pub fn all_cached(&self) -> Vec<HubName> {
        let mut checkpoints = Vec::new();
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
            checkpoints.extend(named);
        }
        checkpoints.sort_by_key(ToString::to_string);
        checkpoints
    }

    /// Downloads an adapter unless it is cached: the two files of a PEFT folder, or a named GGUF file, of at most
    /// `bytes_max` bytes in total.
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
            let message = format!("the adapter '{name}' has {bytes} bytes, more than the limit of {bytes_max}");
            return Err(HubError::new(HubErrorKind::TooLarge, message).help("raise the model's adapter_memory"));
        }
        storage.prepare(&listing.commit)?;
        self.bring(&client, name, &storage, &listing, &choice.files, progress)?;
        storage.remember(&listing.commit)?;
        Ok(Pulled { path: storage.snapshot(&listing.commit).join(&choice.head), files: choice.files })
    }

    /// Downloads a checkpoint in its current version. Files that are cached already are not downloaded again.
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
            // The index of the shards is not downloaded yet, so they are recognised by their names.
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
        let remotes: Vec<&Remote> =
            files.iter().filter_map(|file| listing.files.iter().find(|remote| remote.name == *file)).collect();
        storage.check_space(&remotes)?;
        for remote in remotes {
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
