//! Certificates of correctness: what `pensieve plugins check --certify` writes, and `pack` reads.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::keys::read_key;
use crate::cli::{
    error::{CliError, CliResult, Exit},
    terminal::tell,
};
use pensieve_packages::{Certificate, Document, PackageError, PackageErrorKind, SecretKey};

/// Limit on the length of a certificate and of its signature.
const BYTES_MAX: u64 = 64 << 10;

/// A certificate and where it goes; nothing if none was asked for.
pub(in crate::cli) struct SignedCertificate(Option<(PathBuf, PathBuf, Certificate)>);

impl SignedCertificate {
    /// `paths` are those of the certificate and of the secret key.
    pub(in crate::cli) fn new(
        paths: Option<(PathBuf, PathBuf)>,
        certificate: Option<Certificate>,
    ) -> Result<Self, CliError> {
        let Some((path, key)) = paths else { return Ok(Self(None)) };
        let nothing = || CliError::new(Exit::Usage, "no model was tested, so there is nothing to certify");
        Ok(Self(Some((path, key, certificate.ok_or_else(nothing)?))))
    }

    pub(in crate::cli) fn write(self) -> CliResult {
        let Some((path, key, certificate)) = self.0 else { return Ok(()) };
        let key = read_key(&key)?;
        let text = serde_json::to_vec_pretty(&certificate)
            .map_err(|error| CliError::new(Exit::Failed, format!("the certificate: {error}")))?;
        let signature = key.sign(Document::Certificate, &text)?;
        let failed = |error| CliError::system(format!("'{}'", path.display()), &error);
        fs::write(&path, text).and_then(|()| fs::write(signature_of(&path), signature)).map_err(failed)?;
        if certificate.difference.is_none() {
            tell("the certificate speaks of laws alone: with --reference it also says how close the logits are");
        }
        tell(format_args!("certified '{}' in '{}'", certificate.architecture, path.display()));
        Ok(())
    }
}

/// Reads a certificate, which this key has to have signed.
pub(super) fn read(path: &Path, key: &SecretKey) -> Result<Certificate, CliError> {
    let bytes = read_short(path)?;
    let signature = read_short(&signature_of(path))?;
    let what = format!("the certificate '{}'", path.display());
    key.public().verify(Document::Certificate, &bytes, &String::from_utf8_lossy(&signature), &what)?;
    let wrong = |error| PackageError::new(PackageErrorKind::Damaged, format!("{what} cannot be read: {error}"));
    Ok(serde_json::from_slice(&bytes).map_err(wrong)?)
}

fn read_short(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |error| CliError::system(format!("'{}'", path.display()), &error);
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > BYTES_MAX {
        return Err(CliError::new(
            Exit::Damaged,
            format!("'{}' has {bytes} bytes: it is no certificate", path.display()),
        ));
    }
    fs::read(path).map_err(failed)
}

fn signature_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.minisig", path.display()))
}
