//! Keys of clients: what each may use, and what it has used. A key itself is never kept, only its digest. Keys that this
//! program makes are too random to be guessed, so that a fast hash hides them as well as a slow one would, and named
//! keys that are short enough to be guessed are not accepted.

mod keyring;
mod ledger;

pub(crate) use keyring::{KeyTable, check_secret};
pub use keyring::{Keyring, LOCAL_KEY};
pub(crate) use ledger::{DayUsage, Ledger, Tally, until_midnight};

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::wildcard::fits;

/// Usage of the server's own keys, and of clients of a server without any, is counted under this name.
pub const DEFAULT_NAME: &str = "default";
/// A named key has at least this many characters.
pub const KEY_LEN_MIN: usize = 24;
const NAME_LEN_MAX: usize = 64;
/// Begins the text of a hash, and says which one it is.
const SHA256: &str = "sha256:";
/// Begins keys that are made here, so that scanners of leaked secrets recognize them.
const PREFIX: &str = "pensieve-key-";
const RANDOM_BYTES: usize = 32;

/// A key, stored as a digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// A key that has a name, with its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedKey {
    pub name: String,
    /// Several while its clients change from one to the next.
    pub keys: Vec<Key>,
    /// Ids of the models that it may use, in which `*` matches any text; empty for all models.
    pub models: Vec<String>,
    /// Tokens that it may use between one midnight in UTC and the next.
    pub tokens_per_day: Option<u64>,
    /// Requests that models may compute for it at the same time.
    pub requests_max: Option<usize>,
}

/// A named key of a running server, shared by its requests.
#[derive(Debug)]
pub struct Account {
    settings: NamedKey,
    running: Arc<AtomicUsize>,
}

/// A request that counts among those of its key until it is dropped.
#[derive(Debug)]
pub(crate) struct Running(Arc<AtomicUsize>);

impl Key {
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Makes a new key; returns its text, too.
    pub fn random() -> io::Result<(String, Self)> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::from)?;
        let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let key = Self::new(&text);
        Ok((text, key))
    }

    /// Reads a hash: `sha256:` and 64 hexadecimal digits.
    pub fn from_hash(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(SHA256)?.as_bytes();
        let mut digest = [0; 32];
        if digits.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(digest))
    }

    /// The form that [`Self::from_hash`] reads.
    pub fn hash(&self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{SHA256}{digits}")
    }

    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.0
    }

    /// Constant-time comparison.
    pub(crate) fn matches(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Validates the name of a key; the error completes "the name …".
pub fn check_key_name(name: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match name {
        "" => Err("is missing".into()),
        DEFAULT_NAME => Err(format!("'{DEFAULT_NAME}' stands for server.key")),
        _ if name.len() > NAME_LEN_MAX => Err(format!("has {} characters, more than {NAME_LEN_MAX}", name.len())),
        _ if !name.bytes().all(is_legal) => Err("has other characters than letters, digits and -_.".into()),
        _ => Ok(()),
    }
}

impl Account {
    pub(crate) fn new(settings: NamedKey) -> Self {
        Self { settings, running: Arc::default() }
    }

    /// The account of a key whose settings have changed: its requests go on.
    fn changed(&self, settings: NamedKey) -> Self {
        Self { settings, running: self.running.clone() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.name
    }

    pub(crate) fn tokens_per_day(&self) -> Option<u64> {
        self.settings.tokens_per_day
    }

    pub(crate) fn requests_max(&self) -> Option<usize> {
        self.settings.requests_max
    }

    /// Requests that models compute for it now.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// True if it may use every model.
    pub(crate) fn may_use_all(&self) -> bool {
        self.settings.models.is_empty()
    }

    pub(crate) fn may_use(&self, id: &str) -> bool {
        self.may_use_all() || self.settings.models.iter().any(|pattern| fits(pattern, id))
    }

    /// Counts a request among those that run; the error is the limit if there are too many.
    pub(crate) fn begin(&self) -> Result<Running, usize> {
        let max = self.requests_max().unwrap_or(usize::MAX);
        let more = |running: usize| (running < max).then_some(running + 1);
        match self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Running(self.running.clone())),
            Err(_) => Err(max),
        }
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl Eq for Account {}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_random_and_its_hash_is_that_of_sha256sum() {
        let ((one, key), (two, _)) = (Key::random().unwrap(), Key::random().unwrap());
        assert!(one != two && one.len() >= KEY_LEN_MIN && one.starts_with(PREFIX), "{one}");
        assert_eq!((Key::from_hash(&key.hash()), format!("{key:?}")), (Some(key.clone()), "Key(…)".to_owned()));
        assert!(bool::from(key.matches(&Key::new(&one))) && !bool::from(key.matches(&Key::new(&two))));
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!((Key::new("").hash().as_str(), Key::from_hash(empty)), (empty, Some(Key::new(""))));
        for wrong in ["", "sha256:", &empty[7..], &empty[..70], &format!("{empty}0"), &empty.replace('e', "g")] {
            assert_eq!(Key::from_hash(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_uses_the_models_that_its_patterns_fit() {
        let account = |models: &[&str]| {
            Account::new(NamedKey {
                models: models.iter().map(|model| (*model).into()).collect(),
                ..NamedKey::default()
            })
        };
        assert!(account(&[]).may_use("any"));
        let some = account(&["small-*", "big"]);
        assert!(some.may_use("small-1") && some.may_use("big") && !some.may_use("bigger") && !some.may_use("small"));
    }

    #[test]
    fn requests_of_a_key_are_limited_and_go_on_when_its_settings_change() {
        let settings = NamedKey { name: "a".into(), requests_max: Some(2), ..NamedKey::default() };
        let account = Account::new(settings.clone());
        let one = account.begin().unwrap();
        let two = account.begin().unwrap();
        assert_eq!((account.begin().unwrap_err(), account.running()), (2, 2));
        let changed = account.changed(NamedKey { requests_max: Some(1), ..settings });
        drop(one);
        assert_eq!((changed.begin().unwrap_err(), changed.running()), (1, 1));
        drop(two);
        assert!(changed.begin().is_ok());
    }

    #[test]
    fn names_are_words() {
        for name in ["alice", "ci-2", "A.b_c"] {
            assert_eq!(check_key_name(name), Ok(()), "{name}");
        }
        for name in ["", "default", "a b", "a\"b", "ö", &"a".repeat(65)] {
            assert!(check_key_name(name).is_err(), "{name}");
        }
    }
}
