//! A package's file: a `tar.gz` of `manifest.json`, `manifest.json.minisig`, and the libraries at `TARGET/VARIANT/FILE`.
//!
//! Nothing is unpacked by the names in the archive: a reader takes the two documents, checks them, and then copies the one
//! library it wants to a file of its own, as far as the manifest says it goes.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use tar::{Archive, Builder, EntryType, Header};

use crate::{
    Artifact, Document, PackageError, PackageManifest, SecretKey, digest, error::Result, manifest::MANIFEST_BYTES_MAX,
    signature::SIGNATURE_BYTES_MAX,
};

const MANIFEST: &str = "manifest.json";
const SIGNATURE: &str = "manifest.json.minisig";
/// Room for headers and padding in an archive, beyond its files.
const OVERHEAD_BYTES: u64 = 1 << 20;

/// An opened package. Only [`Package::verify`] makes its manifest worth more than its file's word.
#[derive(Debug)]
pub struct Package {
    path: PathBuf,
    manifest: PackageManifest,
    bytes: Vec<u8>,
    signature: String,
}

impl Package {
    /// Reads the manifest and its signature.
    pub fn open(path: &Path) -> Result<Self> {
        let limit = (MANIFEST_BYTES_MAX + SIGNATURE_BYTES_MAX) as u64 + OVERHEAD_BYTES;
        let mut archive = open(path, limit)?;
        let mut entries = archive.entries().map_err(|error| unreadable(path, &error))?;
        let mut next = |name: &str, bytes_max: usize| -> Result<Vec<u8>> {
            let entry = entries.next().transpose().map_err(|error| unreadable(path, &error))?;
            let Some(mut entry) = entry.filter(|entry| is_file(entry, name)) else {
                return Err(not_a_package(path, &format!("'{name}' is not where it should be")));
            };
            if entry.size() > bytes_max as u64 {
                return Err(not_a_package(path, &format!("'{name}' has more than {bytes_max} bytes")));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
            Ok(bytes)
        };
        let bytes = next(MANIFEST, MANIFEST_BYTES_MAX)?;
        let signature = next(SIGNATURE, SIGNATURE_BYTES_MAX)?;
        let signature = String::from_utf8(signature).map_err(|_| not_a_package(path, "its signature is not text"))?;
        Ok(Self { path: path.to_owned(), manifest: PackageManifest::parse(&bytes)?, bytes, signature })
    }

    pub fn manifest(&self) -> &PackageManifest {
        &self.manifest
    }

    /// Checks that the manifest was signed by its publisher's key.
    pub fn verify(&self) -> Result<()> {
        let what = format!("'{}' of {}", self.manifest.file_name(), self.manifest.publisher.name);
        self.manifest.publisher.key.verify(Document::Package, &self.bytes, &self.signature, &what)
    }

    /// Copies a library to a file and checks its digest.
    pub fn extract(&self, artifact: &Artifact, to: &mut impl Write) -> Result<()> {
        let total: u64 = self.manifest.artifacts.iter().map(|artifact| artifact.bytes).sum();
        let limit = total + (MANIFEST_BYTES_MAX + SIGNATURE_BYTES_MAX) as u64 + OVERHEAD_BYTES;
        let mut archive = open(&self.path, limit)?;
        let name = artifact.path();
        // Raw entries have no names but those of their headers: a longer one would be read into memory, however long it is.
        for entry in archive.entries().map_err(|error| unreadable(&self.path, &error))?.raw(true) {
            let mut entry = entry.map_err(|error| unreadable(&self.path, &error))?;
            if !is_file(&entry, &name) {
                continue;
            }
            let mut failed = None;
            let mut to = Noting { to, failed: &mut failed };
            let copied = digest::copy(&mut (&mut entry).take(artifact.bytes + 1), &mut to);
            let (sha256, bytes) = copied.map_err(|error| match failed {
                Some(error) => PackageError::system(format!("the library of '{}'", self.manifest.name()), &error),
                None => unreadable(&self.path, &error),
            })?;
            if (&sha256, bytes) != (&artifact.sha256, artifact.bytes) {
                let what = format!("the library for {artifact} in '{}' has not", self.path.display());
                return Err(PackageError::damaged(format!("{what} the digest that its publisher signed")));
            }
            return Ok(());
        }
        Err(not_a_package(&self.path, &format!("the library for {artifact} is missing")))
    }
}

/// Tells an error of the writer from one of the reader.
struct Noting<'a, W> {
    to: &'a mut W,
    failed: &'a mut Option<io::Error>,
}

impl<W: Write> Write for Noting<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes).inspect_err(|error| *self.failed = Some(error.kind().into()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes a signed package. `libraries` are the files of the manifest's artifacts, in order.
pub fn pack(manifest: &PackageManifest, key: &SecretKey, libraries: &[PathBuf], to: impl Write) -> Result<()> {
    manifest.check().map_err(|why| PackageError::damaged(format!("the manifest {why}")))?;
    let bytes = serde_json::to_vec_pretty(manifest).map_err(|error| PackageError::damaged(error.to_string()))?;
    let signature = key.sign(Document::Package, &bytes)?;
    let failed = |error: io::Error| PackageError::system("the package", &error);
    let mut archive = Builder::new(GzEncoder::new(to, Compression::best()));
    let mut append = |name: &str, bytes: u64, from: &mut dyn Read| -> io::Result<()> {
        // Without times, owners and modes the same content makes the same file.
        let mut header = Header::new_ustar();
        header.set_size(bytes);
        header.set_mode(0o644);
        header.set_entry_type(EntryType::Regular);
        archive.append_data(&mut header, name, from)
    };
    append(MANIFEST, bytes.len() as u64, &mut &bytes[..]).map_err(failed)?;
    append(SIGNATURE, signature.len() as u64, &mut signature.as_bytes()).map_err(failed)?;
    for (artifact, library) in manifest.artifacts.iter().zip(libraries) {
        let opened = File::open(library);
        let file = opened.map_err(|error| PackageError::system(format!("'{}'", library.display()), &error))?;
        append(&artifact.path(), artifact.bytes, &mut file.take(artifact.bytes)).map_err(failed)?;
    }
    archive.into_inner().and_then(GzEncoder::finish).map_err(failed)?.flush().map_err(failed)
}

fn open(path: &Path, limit: u64) -> Result<Archive<impl Read>> {
    let file = File::open(path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error))?;
    Ok(Archive::new(GzDecoder::new(BufReader::new(file)).take(limit)))
}

fn is_file<R: Read>(entry: &tar::Entry<'_, R>, name: &str) -> bool {
    entry.header().entry_type() == EntryType::Regular && *entry.path_bytes() == *name.as_bytes()
}

fn unreadable(path: &Path, error: &io::Error) -> PackageError {
    not_a_package(path, &format!("it cannot be read to its end: {error}"))
}

fn not_a_package(path: &Path, why: &str) -> PackageError {
    PackageError::damaged(format!("'{}' is not a whole package: {why}", path.display())).help("download it again")
}
