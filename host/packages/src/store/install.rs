//! The last steps of adding a package: is it to be trusted, does it run here, and is its library what it says?

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use semver::Version;
use tempfile::TempPath;

use super::{Added, Chosen, Request, Store, download::temporary};
use crate::{
    Artifact, Locked, Package, PackageError, PackageErrorKind, PackageManifest, PublicKey, Publisher, Sha256Hex,
    digest, error::Result, installed, trust::Provenance,
};

/// Where a package comes from.
struct Source<'a> {
    /// The index, or the URL or file.
    location: &'a str,
    is_index: bool,
    /// The publisher's keys as the index has them that the installed version came from.
    listed: &'a [PublicKey],
    /// True if its publisher's key is trusted with it.
    is_first: bool,
}

impl<'a> Source<'a> {
    fn index(location: &'a str) -> Self {
        Self { location, is_index: true, listed: &[], is_first: false }
    }

    fn elsewhere(location: &'a str) -> Self {
        Self { is_index: false, ..Self::index(location) }
    }

    fn provenance(&self, publisher: &'a Publisher) -> Provenance<'a> {
        if self.is_index { Provenance::Index(self.location) } else { Provenance::Elsewhere(publisher) }
    }
}

/// A library in the plugin folder, which goes again unless it is kept; then the one that it replaced comes back.
struct PlacedLibrary {
    file: PathBuf,
    replaced: Option<TempPath>,
    is_kept: bool,
}

impl PlacedLibrary {
    fn new(library: TempPath, file: &Path, home: &Path) -> Result<Self> {
        let failed = |error: io::Error| PackageError::system(format!("'{}'", file.display()), &error);
        fs::create_dir_all(installed::folder(home)).map_err(failed)?;
        let replaced = match fs::symlink_metadata(file) {
            // The file itself stays in its place until the new one takes it, as a server may look.
            Ok(_) => {
                let copy = temporary(home)?.into_temp_path();
                fs::remove_file(&copy).map_err(failed)?;
                fs::hard_link(file, &copy).or_else(|_| fs::copy(file, &copy).map(drop)).map_err(failed)?;
                Some(copy)
            }
            Err(_) => None,
        };
        fs::rename(&library, file).map_err(failed)?;
        // It has another name by now.
        let _ = library.keep();
        Ok(Self { file: file.to_owned(), replaced, is_kept: false })
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for PlacedLibrary {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let _ = match &self.replaced {
            Some(replaced) => fs::rename(replaced, &self.file),
            None => fs::remove_file(&self.file),
        };
    }
}

impl Store<'_> {
    /// Installs a release of an index.
    pub(super) fn install_listed(&mut self, chosen: &Chosen<'_>) -> Result<Added> {
        let release = chosen.release;
        let publisher = &release.manifest.publisher;
        self.allow_listed(publisher, chosen.keys(publisher))?;
        let file = self.package(chosen.location, release)?;
        let package = Package::open(file.path())?;
        if *package.manifest() != release.manifest {
            let message = format!("'{}' has another manifest than its index lists", release.package);
            return Err(PackageError::damaged(message).help("tell the index's maintainer"));
        }
        // Only the index that a plugin came from may name a successor of its key.
        let is_origin = self.lock.find(release.manifest.name()).is_some_and(|locked| locked.is_of(chosen.location));
        let listed = if is_origin { chosen.keys(publisher) } else { &[] };
        let source = Source { listed, ..Source::index(chosen.location) };
        let added = self.install(&package, &release.sha256, &source)?;
        self.keep(file.path(), &release.sha256);
        Ok(added)
    }

    /// Installs a package that no index vouches for.
    pub(super) fn install_unlisted(&mut self, path: &Path, source: &str) -> Result<Added> {
        let package = Package::open(path)?;
        let (sha256, _) =
            digest::of_file(path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error))?;
        let publisher = package.manifest().publisher.clone();
        let is_first = !self.allow_unlisted(&publisher)?;
        let added = self.install(&package, &sha256, &Source { is_first, ..Source::elsewhere(source) })?;
        if is_first {
            let Publisher { name, key } = publisher;
            self.environment.say(&format!(
                "first package of '{name}': its key is {key}, and it is trusted from now on (trust.json)"
            ));
        }
        self.keep(path, &sha256);
        Ok(added)
    }

    /// Installs a package of the lock again: the same file, wherever it comes from.
    pub(super) fn reinstall(&mut self, locked: &Locked) -> Result<Added> {
        if !self.settings.publishers.is_empty() {
            // They may have changed since it was added.
            self.allow_configured(&locked.publisher)?;
        }
        let kept = self.kept(&locked.sha256);
        if digest::of_file(&kept).is_ok_and(|(found, _)| found == locked.sha256) {
            let package = Package::open(&kept)?;
            let source = if locked.is_indexed { Source::index } else { Source::elsewhere };
            return self.install(&package, &locked.sha256, &source(&locked.source));
        }
        if locked.is_indexed {
            let (name, version) = (locked.name.clone(), Some(locked.version.clone()));
            return self.add(&Request::Named { name, version });
        }
        let file = self.locked_package(locked)?;
        self.install_unlisted(file.path(), &locked.source)
    }

    /// Verifies, extracts and inspects, and only then changes the plugin folder, the trusted keys and the lock: all of them, or
    /// none.
    fn install(&mut self, package: &Package, sha256: &Sha256Hex, source: &Source<'_>) -> Result<Added> {
        package.verify()?;
        let manifest = package.manifest();
        let artifact = self.fitting(manifest, source.provenance(&manifest.publisher))?.clone();
        let version = manifest.version().map_err(PackageError::damaged)?;
        let mut locked = Locked::new(manifest, version, &artifact);
        locked.source = source.location.to_owned();
        (locked.is_indexed, locked.sha256) = (source.is_index, sha256.clone());
        let before = self.lock.find(manifest.name()).cloned();
        self.allow_replacing(before.as_ref(), &locked, source.listed)?;
        let file = installed::folder(&self.host.home).join(&artifact.file);
        let is_new = !self.is_installed(&locked);
        let placed = if is_new {
            self.refuse_foreign(&file, before.as_ref())?;
            let library = self.extract(package, &artifact)?;
            Some(PlacedLibrary::new(library, &file, &self.host.home)?)
        } else {
            None
        };
        self.record(&locked, source.is_first.then_some(&manifest.publisher))?;
        if let Some(placed) = placed {
            placed.keep();
        }
        let old = before.as_ref().and_then(|before| before.library(&self.host.target));
        if let (Some(before), Some(old)) = (&before, old.filter(|old| old.file != artifact.file)) {
            self.remove_library(&old.file, before)?;
        }
        let before = before.map(|before| before.version).filter(|before| *before != locked.version);
        Ok(Added { locked, manifest: manifest.clone(), file, before, is_new })
    }

    /// Writes the lock, and before it the key of a new publisher; neither if one of them cannot be written.
    fn record(&mut self, locked: &Locked, new_publisher: Option<&Publisher>) -> Result<()> {
        let (home, mut trust, mut lock) = (&self.host.home, self.trust.clone(), self.lock.clone());
        if let Some(Publisher { name, key }) = new_publisher {
            trust.publishers.insert(name.clone(), key.clone());
            trust.write(home)?;
        }
        lock.set(locked.clone());
        if let Err(error) = lock.write(home) {
            // If this fails, too, the key of a sound package is trusted too early.
            let _ = new_publisher.map(|_| self.trust.write(home));
            return Err(error);
        }
        (self.trust, self.lock) = (trust, lock);
        Ok(())
    }

    /// Extracts a library beside the plugin folder and has a child compare it with the manifest.
    fn extract(&self, package: &Package, artifact: &Artifact) -> Result<TempPath> {
        let mut library = temporary(&self.host.home)?;
        package.extract(artifact, library.as_file_mut())?;
        let failed = |error| PackageError::system("the library", &error);
        library.as_file().sync_all().map_err(failed)?;
        library.as_file().set_permissions(Permissions::from_mode(0o644)).map_err(failed)?;
        let library = library.into_temp_path();
        let found = self.environment.inspect(&library)?;
        let manifest = &package.manifest().plugin;
        // The compiler and the SDK may differ from target to target.
        let same = (&found.id, &found.version, &found.architectures, &found.samplers, &found.adapter_formats)
            == (
                &manifest.id,
                &manifest.version,
                &manifest.architectures,
                &manifest.samplers,
                &manifest.adapter_formats,
            );
        if !same {
            let message = format!(
                "the library for {artifact} is another plugin than its package says: '{}' {}",
                found.id, found.version
            );
            return Err(PackageError::damaged(message).help(format!("tell '{}'", package.manifest().publisher.name)));
        }
        Ok(library)
    }

    /// The library of a package for this machine.
    pub(super) fn fitting<'m>(&self, manifest: &'m PackageManifest, from: Provenance<'_>) -> Result<&'m Artifact> {
        let (name, host) = (manifest.name(), &self.host);
        let unfit = |why: String| {
            PackageError::new(PackageErrorKind::Unfit, format!("'{name}' {} {why}", manifest.plugin.version))
        };
        let (major, minor) = manifest.contract().map_err(PackageError::damaged)?;
        if major != host.contract.0 || minor > host.contract.1 {
            let (own_major, own_minor) = host.contract;
            let why = format!("was built with contract {major}.{minor}, and this program has {own_major}.{own_minor}");
            let help = if (major, minor) > host.contract {
                "update Pensieve"
            } else {
                "ask its publisher for a newer release"
            };
            return Err(unfit(why).help(help));
        }
        if manifest.minimum_host > host.version {
            let why = format!("needs Pensieve {} or newer, and this is {}", manifest.minimum_host, host.version);
            return Err(unfit(why).help("update Pensieve"));
        }
        let variants = self.variants(name);
        let mut fitting = variants.iter().filter_map(|variant| {
            manifest.artifacts.iter().find(|artifact| artifact.target == host.target && artifact.variant == *variant)
        });
        let Some(artifact) = fitting.next() else {
            let has: Vec<String> = manifest.artifacts.iter().map(ToString::to_string).collect();
            let why = format!("has no library for {} ({})", host.target, variants.join(", "));
            return Err(unfit(why).help(format!("it has {}", has.join(", "))));
        };
        match self.trust.revocation(&artifact.sha256, from) {
            Some(reason) => {
                Err(PackageError::untrusted(format!("'{name}' {} is revoked: {reason}", manifest.plugin.version)))
            }
            None => Ok(artifact),
        }
    }

    /// Variants to look for, in order: the one that is asked for, or else the one that the plugin has here, and the best ones.
    fn variants(&self, name: &str) -> Vec<String> {
        let host = &self.host;
        if let Some(variant) = &host.variant {
            return vec![variant.clone()];
        }
        // A lock of another machine may have one that does not run here.
        let runs = |locked: &&Locked| host.variants.contains(&locked.variant) || self.is_installed(locked);
        let own = self.lock.find(name).filter(runs).map(|locked| locked.variant.clone());
        let others: Vec<String> = host.variants.iter().filter(|other| own.as_ref() != Some(other)).cloned().collect();
        own.into_iter().chain(others).collect()
    }

    fn allow_listed(&self, publisher: &Publisher, keys: &[PublicKey]) -> Result<()> {
        let Publisher { name, key } = publisher;
        if !self.settings.publishers.is_empty() {
            return self.allow_configured(publisher);
        }
        match self.trust.publishers.get(name) {
            // The index may list a successor of the known key beside it.
            Some(known) if known != key && !keys.contains(known) => self.trust.knows(publisher).map(drop),
            _ => Ok(()),
        }
    }

    fn allow_unlisted(&self, publisher: &Publisher) -> Result<bool> {
        if !self.settings.publishers.is_empty() {
            return self.allow_configured(publisher).map(|()| true);
        }
        self.trust.knows(publisher)
    }

    fn allow_configured(&self, publisher: &Publisher) -> Result<()> {
        let Publisher { name, key } = publisher;
        if self.settings.publishers.get(name) == Some(key) {
            return Ok(());
        }
        let message = format!("the publisher '{name}' with the key {key} is not among plugins.publishers");
        Err(PackageError::untrusted(message).help("add it there to trust it"))
    }

    fn allow_replacing(&self, before: Option<&Locked>, locked: &Locked, listed: &[PublicKey]) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        let (name, was, is) = (&locked.name, &before.publisher, &locked.publisher);
        let remove_first = || format!("remove it first: pensieve plugins remove {name}");
        if was.name != is.name {
            let message =
                format!("'{name}' is installed from '{}', and this one is published by '{}'", was.name, is.name);
            return Err(PackageError::untrusted(message).help(remove_first()));
        }
        // A list that has the new key beside the known one makes it a successor, and so does the user's own word.
        let is_successor = listed.contains(&was.key) && listed.contains(&is.key);
        if was.key != is.key && !is_successor && self.settings.publishers.get(&is.name) != Some(&is.key) {
            let message = format!(
                "'{name}' is installed from '{}' with the key {}, and this one is signed by {}",
                was.name, was.key, is.key
            );
            return Err(PackageError::untrusted(message).help(remove_first()));
        }
        if before.version == locked.version && before.libraries != locked.libraries {
            let Locked { name, version, .. } = locked;
            let message = format!("'{name}' {version} has other libraries than plugins.lock says");
            let help = format!("a release never changes; if this is meant: pensieve plugins remove {name}");
            return Err(PackageError::untrusted(message).help(help));
        }
        Ok(())
    }

    /// Refuses to overwrite a file that is not from the package's earlier version.
    fn refuse_foreign(&self, file: &Path, before: Option<&Locked>) -> Result<()> {
        let own = before.and_then(|before| before.library(&self.host.target));
        let is_own = own.is_some_and(|own| file.ends_with(&own.file));
        if is_own || fs::symlink_metadata(file).is_err() {
            return Ok(());
        }
        let message = format!("'{}' is there already, and was not added by this command", file.display());
        Err(PackageError::new(PackageErrorKind::Taken, message).help("move it away"))
    }

    pub(super) fn is_installed(&self, locked: &Locked) -> bool {
        let Some(library) = locked.library(&self.host.target) else { return false };
        let path = installed::folder(&self.host.home).join(&library.file);
        digest::of_file(&path).is_ok_and(|(found, _)| found == library.sha256)
    }

    /// Removes a library, unless it is another file by now.
    pub(super) fn remove_library(&self, file: &str, locked: &Locked) -> Result<()> {
        let path: PathBuf = installed::folder(&self.host.home).join(file);
        let Ok((found, _)) = digest::of_file(&path) else { return Ok(()) };
        if !locked.libraries.iter().any(|library| library.sha256 == found) {
            self.environment.say(&format!("'{}' was changed since it was added; it stays", path.display()));
            return Ok(());
        }
        fs::remove_file(&path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error))
    }
}

/// The version of an installed package, for messages.
impl std::fmt::Display for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version: &Version = &self.version;
        write!(f, "{} {version}", self.name)
    }
}
