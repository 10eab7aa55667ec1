//! Plugins that travel.
//!
//! A **package** is one file with a plugin's libraries for several targets, a manifest with their digests, and the
//! publisher's signature of the manifest. An **index** is a folder, local or behind a URL, whose signed list says which
//! packages there are, which keys their publishers have, and which libraries are revoked. The **lock** records what is
//! installed, with the digests of all targets, and the server compares it with every library that it maps.
//!
//! A **release** is the program itself: a signed list of archives, which the installer and `pensieve update` read.
//!
//! Signatures are minisign's; the kind of document is part of what is signed, so that none is taken for another.

mod archive;
mod digest;
mod error;
mod index;
mod installed;
mod location;
mod lock;
mod manifest;
mod origin;
mod publish;
mod release;
mod signature;
mod state_file;
mod store;
mod trust;

pub use archive::{Package, pack};
pub use digest::{Sha256Hex, of_checkpoint, of_file};
pub use error::{PackageError, PackageErrorKind};
pub use index::{Index, Release, Revocation};
pub use installed::{Installed, Suggestion, suggestions};
pub use lock::{Lock, Locked};
pub use manifest::{Artifact, Certificate, PackageManifest, Publisher};
pub use origin::{Family, ORIGIN, Origin, OwnIndex};
pub use publish::{IndexChange, NewIndex, Published, create_index, publish};
pub use release::{
    ProgramRelease, RELEASE, RELEASE_BYTES_MAX, RELEASE_SIGNATURE, ReleaseArchive, unpack as unpack_release,
};
pub use signature::{Document, PublicKey, SecretKey};
pub use store::{Added, Bundled, Environment, Found, Host, IndexSource, Outdated, Request, Settings, Store, Update};
pub use trust::Trust;
