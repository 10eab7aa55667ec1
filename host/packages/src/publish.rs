//! Adds packages to an index in a local folder, which its maintainer then uploads or pushes.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::{
    Document, Index, Package, PackageError, PackageErrorKind, Release, Revocation, SecretKey, digest,
    error::Result,
    index::{INDEX, INDEX_BYTES_MAX, INDEX_KEY, INDEX_SIGNATURE},
    manifest::FORMAT,
    state_file::{self, PUBLIC},
};

/// The name of an index to make, and the time for which it is valid.
#[derive(Clone, Debug)]
pub struct NewIndex {
    pub name: String,
    pub valid_for: SignedDuration,
}

/// An index as it was or would be written.
#[derive(Clone, Debug)]
pub struct Published {
    pub index: Index,
    /// Architectures of the package that have no certificate.
    pub uncertified: Vec<String>,
    /// Architectures whose certificates all speak of laws alone, and not of a reference.
    pub unreferenced: Vec<String>,
}

/// Creates an index without plugins in a folder.
pub fn create_index(folder: &Path, new: &NewIndex, key: &SecretKey, now: Timestamp) -> Result<Index> {
    if folder.join(INDEX).exists() {
        let message = format!("'{}' has an index already", folder.display());
        return Err(PackageError::new(PackageErrorKind::Taken, message));
    }
    let index = Index {
        index: FORMAT,
        name: new.name.clone(),
        serial: 1,
        expires: later(now, new.valid_for)?,
        publishers: Default::default(),
        plugins: Default::default(),
        revoked: Vec::new(),
    };
    write(folder, &index, key)?;
    Ok(index)
}

/// Adds a package to an index, and revocations; with `is_dry` everything is checked and nothing written.
pub fn publish(
    folder: &Path,
    package: Option<&Path>,
    revoked: &[Revocation],
    (key, valid_for, now, is_dry): (&SecretKey, SignedDuration, Timestamp, bool),
) -> Result<Published> {
    let mut index = read(folder, key)?;
    let (mut uncertified, mut unreferenced, mut added) = (Vec::new(), Vec::new(), None);
    if let Some(path) = package {
        let package = Package::open(path)?;
        package.verify()?;
        let manifest = package.manifest();
        for artifact in &manifest.artifacts {
            package.extract(artifact, &mut std::io::sink())?;
        }
        let (sha256, bytes) =
            digest::of_file(path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error))?;
        let release = Release { package: manifest.file_name(), sha256, bytes, manifest: manifest.clone() };
        (uncertified, unreferenced) = uncertified_of(&release);
        added = Some((path, folder.join(&release.package), release.sha256.clone()));
        insert(&mut index, release)?;
    }
    for revocation in revoked {
        if index.revocation(&revocation.sha256).is_none() {
            index.revoked.push(revocation.clone());
        }
    }
    index.serial += 1;
    index.expires = later(now, valid_for)?;
    let text = serde_json::to_vec(&index).map_err(|error| PackageError::damaged(error.to_string()))?;
    Index::parse(&text)?;
    if !is_dry {
        if let Some((path, to, sha256)) = added {
            // One that is whole is left alone: it may be the very same file.
            if !digest::of_file(&to).is_ok_and(|(found, _)| found == sha256) {
                state_file::copy(path, &to, &sha256, PUBLIC)?;
            }
        }
        write(folder, &index, key)?;
    }
    Ok(Published { index, uncertified, unreferenced })
}

fn read(folder: &Path, key: &SecretKey) -> Result<Index> {
    let missing = || {
        let message = format!("'{}' has no index", folder.display());
        PackageError::new(PackageErrorKind::Absent, message).help("make one with --new-index NAME")
    };
    let bytes = state_file::bytes(&folder.join(INDEX), INDEX_BYTES_MAX as u64)?.ok_or_else(missing)?;
    let signature = state_file::bytes(&folder.join(INDEX_SIGNATURE), INDEX_BYTES_MAX as u64)?.ok_or_else(missing)?;
    let what = format!("the index in '{}'", folder.display());
    key.public().verify(Document::Index, &bytes, &String::from_utf8_lossy(&signature), &what)?;
    Index::parse(&bytes)
}

/// The signature goes first: a reader between the two sees a pair that does not fit, and tries again.
fn write(folder: &Path, index: &Index, key: &SecretKey) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(index).map_err(|error| PackageError::damaged(error.to_string()))?;
    Index::parse(&bytes)?;
    let signature = key.sign(Document::Index, &bytes)?;
    let public = format!("untrusted comment: public key of the index {}\n{}\n", index.name, key.public());
    state_file::replace(&folder.join(INDEX_KEY), public.as_bytes(), PUBLIC)?;
    state_file::replace(&folder.join(INDEX_SIGNATURE), signature.as_bytes(), PUBLIC)?;
    state_file::replace(&folder.join(INDEX), &bytes, PUBLIC)
}

fn insert(index: &mut Index, release: Release) -> Result<()> {
    let manifest = &release.manifest;
    let (name, publisher) = (manifest.name().to_owned(), manifest.publisher.clone());
    let releases = index.plugins.entry(name.clone()).or_default();
    if let Some(other) = releases.iter().find(|other| other.manifest.publisher.name != publisher.name) {
        let message =
            format!("'{name}' is published by '{}', not by '{}'", other.manifest.publisher.name, publisher.name);
        return Err(PackageError::new(PackageErrorKind::Taken, message).help("choose another id for the plugin"));
    }
    let same = releases.iter().find(|other| other.manifest.plugin.version == manifest.plugin.version);
    if let Some(same) = same.filter(|same| same.sha256 != release.sha256) {
        let message = format!("'{name}' {} is published already, as another file", same.manifest.plugin.version);
        return Err(
            PackageError::new(PackageErrorKind::Taken, message).help("a release never changes: raise its version")
        );
    }
    if same.is_none() {
        releases.push(release);
    }
    let keys = index.publishers.entry(publisher.name).or_default();
    if !keys.contains(&publisher.key) {
        keys.push(publisher.key);
    }
    Ok(())
}

/// The architectures without a certificate, and those without one that has a reference.
fn uncertified_of(release: &Release) -> (Vec<String>, Vec<String>) {
    let manifest = &release.manifest;
    let (mut uncertified, mut unreferenced) = (Vec::new(), Vec::new());
    for claim in &manifest.plugin.architectures {
        let mut certificates = manifest
            .certificates
            .iter()
            .filter(|certificate| certificate.architecture == claim.architecture)
            .peekable();
        if certificates.peek().is_none() {
            uncertified.push(claim.architecture.clone());
        } else if certificates.all(|certificate| certificate.difference.is_none()) {
            unreferenced.push(claim.architecture.clone());
        }
    }
    (uncertified, unreferenced)
}

fn later(now: Timestamp, duration: SignedDuration) -> Result<Timestamp> {
    now.checked_add(duration).map_err(|error| {
        PackageError::new(PackageErrorKind::Usage, format!("the time of expiry is out of range: {error}"))
    })
}
