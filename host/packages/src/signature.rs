//! Signatures of documents, in minisign's format: `minisign -Sm manifest.json -t "pensieve package"` makes the same.
//!
//! One crate signs, and another one verifies: that one is made for it, and takes any text, where the first one's own
//! check panics on signatures that are too short.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{PackageError, PackageErrorKind, error::Result};

/// Limit on a signature file.
pub(crate) const SIGNATURE_BYTES_MAX: usize = 4 << 10;

/// The kind of a signed document: its signature's trusted comment, so that none is taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    Package,
    Index,
    Certificate,
    Release,
}

impl Document {
    fn comment(self) -> &'static str {
        match self {
            Self::Package => "pensieve package",
            Self::Index => "pensieve index",
            Self::Certificate => "pensieve certificate",
            Self::Release => "pensieve release",
        }
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.comment())
    }
}

/// A public key, as minisign writes it: 56 characters of base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(String);

/// A secret key that can sign.
pub struct SecretKey {
    secret: minisign::SecretKey,
    public: minisign::PublicKey,
}

impl PublicKey {
    /// Reads a key: base64 alone, or a file that has a comment line above it.
    pub fn parse(text: &str) -> Result<Self> {
        let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        minisign_verify::PublicKey::from_base64(line).map_err(|_| {
            PackageError::new(PackageErrorKind::Usage, "a public key is 56 characters of base64, as minisign writes it")
        })?;
        Ok(Self(line.to_owned()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks a signature of a document of this kind; `what` names it in errors.
    pub fn verify(&self, document: Document, bytes: &[u8], signature: &str, what: &str) -> Result<()> {
        let refused = |why: &str| PackageError::untrusted(format!("the signature of {what} {why}"));
        if signature.len() > SIGNATURE_BYTES_MAX {
            return Err(refused("is longer than any signature"));
        }
        let signature =
            minisign_verify::Signature::decode(signature).map_err(|_| refused("is not one that minisign made"))?;
        let key =
            minisign_verify::PublicKey::from_base64(&self.0).map_err(|_| refused("has a key that cannot be read"))?;
        key.verify(bytes, &signature, false).map_err(|error| match error {
            minisign_verify::Error::UnexpectedKeyId => refused(&format!("was made by another key than {self}")),
            _ => refused(&format!("does not match: it was changed after {self} signed it")),
        })?;
        let comment = signature.trusted_comment();
        let comment = comment.strip_prefix("trusted comment: ").unwrap_or(comment);
        if comment != document.comment() {
            return Err(refused(&format!("is for another kind of document, not for a {document}")));
        }
        Ok(())
    }
}

impl TryFrom<String> for PublicKey {
    type Error = PackageError;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SecretKey {
    /// Makes a key.
    pub fn generate() -> Result<Self> {
        let pair = minisign::KeyPair::generate_unencrypted_keypair()
            .map_err(|error| PackageError::new(PackageErrorKind::System, format!("no key could be made: {error}")))?;
        Ok(Self { secret: pair.sk, public: pair.pk })
    }

    /// Reads a key from the text of its file; with a password if it has one.
    pub fn parse(text: &str, password: Option<&str>) -> Result<Self> {
        let wrong = |why: String| PackageError::new(PackageErrorKind::Usage, format!("the secret key {why}"));
        let read = |_| wrong("is not one that minisign or 'pensieve plugins key' wrote".to_owned());
        let boxed = || minisign::SecretKeyBox::from_string(text.trim()).map_err(read);
        let secret = match password {
            Some(password) => boxed()?.into_secret_key(Some(password.to_owned())),
            None => boxed()?.into_unencrypted_secret_key(),
        };
        let secret = secret.map_err(|error| wrong(format!("cannot be opened: {error}")))?;
        let public = minisign::PublicKey::from_secret_key(&secret).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { secret, public })
    }

    /// The text of the key's file.
    pub fn to_text(&self) -> Result<String> {
        let boxed = self.secret.to_box(Some("secret key of a publisher of Pensieve plugins"));
        let boxed = boxed.map_err(|error| PackageError::new(PackageErrorKind::System, error.to_string()))?;
        Ok(boxed.into_string())
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.public.to_base64())
    }

    /// Signs a document; returns the text of the signature's file.
    pub fn sign(&self, document: Document, bytes: &[u8]) -> Result<String> {
        let comment = Some(document.comment());
        let signed =
            minisign::sign(Some(&self.public), &self.secret, bytes, comment, Some("signature of a Pensieve document"));
        let signed = signed
            .map_err(|error| PackageError::new(PackageErrorKind::System, format!("it could not be signed: {error}")))?;
        Ok(signed.into_string())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_bytes_its_key_and_its_kind_of_document() {
        let (key, other) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        let signature = key.sign(Document::Package, b"text").unwrap();
        let verify = |key: &SecretKey, document, bytes: &[u8], signature: &str| {
            key.public().verify(document, bytes, signature, "'x'").map_err(|error| error.to_string())
        };
        verify(&key, Document::Package, b"text", &signature).unwrap();
        let changed = verify(&key, Document::Package, b"test", &signature).unwrap_err();
        assert!(changed.contains("was changed after"), "{changed}");
        let kind = verify(&key, Document::Index, b"text", &signature).unwrap_err();
        assert!(kind.contains("not for a pensieve index"), "{kind}");
        let foreign = verify(&other, Document::Package, b"text", &signature).unwrap_err();
        assert!(foreign.contains("by another key"), "{foreign}");
        for broken in
            ["", "untrusted comment: a\n", &"x".repeat(5000), &signature.replace("pensieve package", "pensieve index")]
        {
            assert!(verify(&key, Document::Package, b"text", broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn keys_are_read_as_they_are_written_and_as_minisign_writes_them() {
        let key = SecretKey::generate().unwrap();
        let again = SecretKey::parse(&key.to_text().unwrap(), None).unwrap();
        assert_eq!(again.public(), key.public());
        let file = format!("untrusted comment: minisign public key\n{}\n", key.public());
        assert_eq!(PublicKey::parse(&file).unwrap(), key.public());
        assert!(PublicKey::parse("RWQ").is_err() && SecretKey::parse("RWQ", None).is_err());
    }
}
