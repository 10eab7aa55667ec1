//! Adds packages to an index in a local folder, which its maintainer then uploads or pushes.

use std::{
    fs::{self, File},
    path::Path,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    Certificate, Document, Index, Package, PackageError, PackageErrorKind, PublicKey, Release, Revocation, SecretKey,
    Sha256Hex, digest,
    error::Result,
    index::{INDEX, INDEX_BYTES_MAX, INDEX_KEY, INDEX_SIGNATURE},
    location,
    manifest::FORMAT,
    state_file::{self, PUBLIC},
};

/// An index that is signed already and whose place is still taken by the one before; see [`write`].
const NEXT: &str = ".index.json.next";
/// The largest difference from a reference that a certificate may speak of, as a fraction of the range of the
/// reference's logits: what `plugins check` itself lets pass.
const DIFFERENCE_MAX: f64 = 0.05;

/// The name of an index to make, and the time for which it is valid.
#[derive(Clone, Debug)]
pub struct NewIndex {
    pub name: String,
    pub valid_for: SignedDuration,
}

/// A change of an index. Without any, its serial number and its time of expiry alone are new.
#[derive(Clone, Debug, Default)]
pub struct IndexChange<'a> {
    /// A package to add.
    pub package: Option<&'a Path>,
    /// The URL below which the package lies; `None` to copy it into the folder.
    pub location: Option<&'a str>,
    /// True to take a package whose publisher is known and whose key is not. All users take it for a successor then.
    pub is_new_key: bool,
    /// Keys that do not count any more. Releases that they signed go with them.
    pub dropped_keys: &'a [PublicKey],
    pub revoked: &'a [Revocation],
    /// Libraries that are revoked and should not have been.
    pub reinstated: &'a [Sha256Hex],
}

/// An index as it was or would be written.
#[derive(Clone, Debug)]
pub struct Published {
    pub index: Index,
    /// Architectures of the package that have no certificate.
    pub uncertified: Vec<String>,
    /// Architectures whose certificates all speak of laws alone, and not of a reference.
    pub unreferenced: Vec<String>,
    /// Releases that went with their key, as `NAME VERSION`.
    pub dropped: Vec<String>,
}

/// Creates an index without plugins in a folder.
pub fn create_index(folder: &Path, new: &NewIndex, key: &SecretKey, now: Timestamp) -> Result<Index> {
    fs::create_dir_all(folder).map_err(|error| PackageError::system(format!("'{}'", folder.display()), &error))?;
    let _exclusive = exclusive(folder)?;
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

/// Changes an index; with `is_dry` everything is checked and nothing written.
pub fn publish(
    folder: &Path,
    change: &IndexChange<'_>,
    (key, valid_for, now, is_dry): (&SecretKey, SignedDuration, Timestamp, bool),
) -> Result<Published> {
    let _exclusive = exclusive(folder)?;
    let mut index = read(folder, key)?;
    let (mut uncertified, mut unreferenced, mut added) = (Vec::new(), Vec::new(), None);
    if let Some(path) = change.package {
        let package = Package::open(path)?;
        package.verify()?;
        let manifest = package.manifest();
        for artifact in &manifest.artifacts {
            package.extract(artifact, &mut std::io::sink())?;
        }
        let (sha256, bytes) =
            digest::of_file(path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error))?;
        let file = manifest.file_name();
        let package =
            change.location.map_or_else(|| file.clone(), |at| location::join(at.trim_end_matches('/'), &file));
        let release = Release { package, sha256, bytes, manifest: manifest.clone() };
        refuse_wrong_logits(&release)?;
        (uncertified, unreferenced) = uncertified_of(&release);
        added = change.location.is_none().then(|| (path, folder.join(file), release.sha256.clone()));
        insert(&mut index, release, change.is_new_key)?;
    }
    let dropped = drop_keys(&mut index, change.dropped_keys)?;
    for sha256 in change.reinstated {
        if index.revocation(sha256).is_none() {
            let message = format!("the library {sha256} is not revoked in '{}'", folder.display());
            return Err(PackageError::new(PackageErrorKind::Absent, message));
        }
        index.revoked.retain(|revoked| revoked.sha256 != *sha256);
    }
    for revocation in change.revoked {
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
    Ok(Published { index, uncertified, unreferenced, dropped })
}

/// Keeps others from changing the index as long as the result lives. A file system that cannot lock folders goes without.
fn exclusive(folder: &Path) -> Result<File> {
    let opened = File::open(folder);
    let folder = opened.map_err(|error| PackageError::system(format!("'{}'", folder.display()), &error))?;
    let _ = folder.lock();
    Ok(folder)
}

fn read(folder: &Path, key: &SecretKey) -> Result<Index> {
    let missing = || {
        let message = format!("'{}' has no index", folder.display());
        PackageError::new(PackageErrorKind::Absent, message).help("make one with --new-index NAME")
    };
    let document = |name: &str| state_file::bytes(&folder.join(name), INDEX_BYTES_MAX as u64);
    let bytes = document(INDEX)?.ok_or_else(missing)?;
    let signature = document(INDEX_SIGNATURE)?.ok_or_else(missing)?;
    let signature = String::from_utf8_lossy(&signature);
    let what = format!("the index in '{}'", folder.display());
    let verify = |bytes: &[u8]| key.public().verify(Document::Index, bytes, &signature, &what);
    let Err(error) = verify(&bytes) else { return Index::parse(&bytes) };
    match document(NEXT)?.filter(|next| verify(next).is_ok()) {
        Some(next) => Index::parse(&next),
        None => Err(error),
    }
}

/// The signature goes before the index: a reader between the two sees a pair that does not fit, and tries again. What is
/// signed lies beside them by then, so that [`read`] finds it if this program ends between the two.
fn write(folder: &Path, index: &Index, key: &SecretKey) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(index).map_err(|error| PackageError::damaged(error.to_string()))?;
    Index::parse(&bytes)?;
    let signature = key.sign(Document::Index, &bytes)?;
    let public = format!("untrusted comment: public key of the index {}\n{}\n", index.name, key.public());
    let (path, next) = (folder.join(INDEX), folder.join(NEXT));
    state_file::replace(&folder.join(INDEX_KEY), public.as_bytes(), PUBLIC)?;
    state_file::replace(&next, &bytes, PUBLIC)?;
    state_file::replace(&folder.join(INDEX_SIGNATURE), signature.as_bytes(), PUBLIC)?;
    fs::rename(&next, &path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error))
}

fn insert(index: &mut Index, release: Release, is_new_key: bool) -> Result<()> {
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
    let keys = index.publishers.entry(publisher.name.clone()).or_default();
    if keys.contains(&publisher.key) {
        return Ok(());
    }
    if let Some(known) = keys.last().filter(|_| !is_new_key) {
        let message = format!(
            "the package is signed by {}, and the key of '{}' in this index is {known}",
            publisher.key, publisher.name
        );
        let help = format!("ask '{}' whether the key was replaced; if so: --new-key", publisher.name);
        return Err(PackageError::untrusted(message).help(help));
    }
    keys.push(publisher.key);
    Ok(())
}

/// Removes keys, and the releases that they signed, of which it returns names and versions.
fn drop_keys(index: &mut Index, keys: &[PublicKey]) -> Result<Vec<String>> {
    if let Some(key) = keys.iter().find(|key| !index.publishers.values().flatten().any(|known| known == *key)) {
        let message = format!("no publisher of the index '{}' has the key {key}", index.name);
        return Err(PackageError::new(PackageErrorKind::Absent, message));
    }
    let is_dropped = |release: &Release| keys.contains(&release.manifest.publisher.key);
    let releases = index.plugins.values().flatten().filter(|release| is_dropped(release));
    let dropped =
        releases.map(|release| format!("{} {}", release.manifest.name(), release.manifest.plugin.version)).collect();
    index.plugins.values_mut().for_each(|releases| releases.retain(|release| !is_dropped(release)));
    index.plugins.retain(|_, releases| !releases.is_empty());
    index.publishers.values_mut().for_each(|known| known.retain(|key| !keys.contains(key)));
    index.publishers.retain(|_, keys| !keys.is_empty());
    Ok(dropped)
}

/// Refuses a package whose own certificate says that its logits are wrong.
fn refuse_wrong_logits(release: &Release) -> Result<()> {
    let wrong =
        |certificate: &&Certificate| certificate.difference.is_some_and(|difference| difference > DIFFERENCE_MAX);
    let Some(certificate) = release.manifest.certificates.iter().find(wrong) else { return Ok(()) };
    let message = format!(
        "the certificate of '{}' says that its logits differ from the reference by {:.1e} of their range; an index takes at most {DIFFERENCE_MAX}",
        certificate.architecture,
        certificate.difference.unwrap_or_default()
    );
    Err(PackageError::untrusted(message)
        .help("find the fault with 'pensieve plugins check --reference', and certify again"))
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
