//! The packages that libraries came in, as the lock of installed packages has them: who published them, and which tests
//! their certificates speak of. Only for people: whether a library may be used is decided when it is inspected.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use pensieve_packages::{Certificate, Lock, Locked};

/// Certificates of one library that are kept.
const CERTIFICATES_MAX: usize = 64;

/// The package of a library.
#[derive(Clone, Debug)]
pub struct Packaged {
    pub name: String,
    pub version: String,
    pub publisher: String,
    /// The index that it came from, or the URL or file.
    pub source: String,
    /// Of this library.
    pub certificates: Vec<Certificate>,
}

/// Packages by the SHA-256 of their libraries.
pub type PackagedLibraries = Arc<HashMap<String, Packaged>>;

/// The lock, read again when its file has changed.
#[derive(Debug)]
pub(super) struct PackageLock {
    home: PathBuf,
    read: Mutex<(Option<SystemTime>, PackagedLibraries)>,
}

impl PackageLock {
    pub(super) fn new(home: &Path) -> Self {
        Self { home: home.to_owned(), read: Mutex::default() }
    }

    pub(super) fn libraries(&self) -> PackagedLibraries {
        let changed = std::fs::metadata(Lock::path(&self.home)).and_then(|metadata| metadata.modified()).ok();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.0 != changed {
            // One that is damaged is reported where plugins are inspected.
            let plugins = Lock::read(&self.home).unwrap_or_default().plugins;
            *read = (changed, Arc::new(plugins.iter().flat_map(packaged).collect()));
        }
        read.1.clone()
    }
}

fn packaged(locked: &Locked) -> impl Iterator<Item = (String, Packaged)> + '_ {
    locked.libraries.iter().map(move |library| {
        let own = locked.certificates.iter().filter(|certificate| certificate.plugin == library.sha256);
        let packaged = Packaged {
            name: locked.name.clone(),
            version: locked.version.to_string(),
            publisher: locked.publisher.name.clone(),
            source: locked.source.clone(),
            certificates: own.take(CERTIFICATES_MAX).cloned().collect(),
        };
        (library.sha256.as_str().to_owned(), packaged)
    })
}
