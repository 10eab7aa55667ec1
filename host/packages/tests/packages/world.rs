//! A publisher, an index and a machine in a temporary folder.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use pensieve_packages::{
    Artifact, Environment, Host, IndexChange, IndexSource, NewIndex, PackageError, PackageErrorKind, PackageManifest,
    Published, Publisher, Revocation, SecretKey, Settings, Sha256Hex, Store, create_index, pack, publish,
};
use pensieve_protocol::manifest::{Claim, Manifest};
use tempfile::TempDir;

pub struct World {
    root: TempDir,
    pub ada: SecretKey,
    pub index_key: SecretKey,
    said: RefCell<Vec<String>>,
    /// The manifest that a child reads in every library, instead of the one that their text says.
    pub read: RefCell<Option<Manifest>>,
    /// Files by URL.
    pub web: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Older files, of which each is answered once before the one in `web`.
    pub stale: RefCell<BTreeMap<String, Vec<u8>>>,
    pub now: RefCell<Timestamp>,
}

pub const HOURS: i64 = 24;

impl World {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let world = Self {
            root,
            ada: SecretKey::generate().unwrap(),
            index_key: SecretKey::generate().unwrap(),
            said: RefCell::default(),
            read: RefCell::default(),
            web: RefCell::default(),
            stale: RefCell::default(),
            now: RefCell::new("2026-11-24T00:00:00Z".parse().unwrap()),
        };
        let new = NewIndex { name: "team".into(), valid_for: SignedDuration::from_hours(HOURS) };
        fs::create_dir(world.index()).unwrap();
        create_index(&world.index(), &new, &world.index_key, *world.now.borrow()).unwrap();
        world
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    pub fn index(&self) -> PathBuf {
        self.root().join("index")
    }

    pub fn said(&self) -> Vec<String> {
        self.said.borrow().clone()
    }

    pub fn host(&self) -> Host {
        self.host_of("linux-x86_64", &["cpu"])
    }

    pub fn host_of(&self, target: &str, variants: &[&str]) -> Host {
        Host {
            home: self.home(),
            target: target.into(),
            variants: variants.iter().map(|variant| (*variant).to_owned()).collect(),
            variant: None,
            contract: (1, 0),
            version: "0.1.0".parse().unwrap(),
            now: *self.now.borrow(),
        }
    }

    pub fn settings(&self) -> Settings {
        self.settings_of(&[&self.index()])
    }

    pub fn settings_of(&self, indexes: &[&Path]) -> Settings {
        let source = |folder: &&Path| IndexSource { location: folder.to_string_lossy().into_owned(), key: None };
        Settings { indexes: indexes.iter().map(source).collect(), ..Settings::default() }
    }

    /// Another index, with a key of its own and these packages.
    pub fn other_index(&self, packages: &[&Path]) -> PathBuf {
        let (folder, key) = (self.root().join("other-index"), SecretKey::generate().unwrap());
        let valid_for = SignedDuration::from_hours(HOURS);
        fs::create_dir(&folder).unwrap();
        create_index(&folder, &NewIndex { name: "other".into(), valid_for }, &key, *self.now.borrow()).unwrap();
        for package in packages {
            let change = IndexChange { package: Some(package), is_new_key: true, ..IndexChange::default() };
            publish(&folder, &change, (&key, valid_for, *self.now.borrow(), false)).unwrap();
        }
        folder
    }

    pub fn store(&self) -> Store<'_> {
        self.store_of(self.host())
    }

    pub fn store_of(&self, host: Host) -> Store<'_> {
        Store::open(host, self.settings(), self).unwrap()
    }

    /// Packs a manifest's libraries, by its publisher.
    pub fn package(&self, manifest: &PackageManifest) -> PathBuf {
        self.package_by(manifest, "ada", &self.ada)
    }

    pub fn package_by(&self, manifest: &PackageManifest, name: &str, key: &SecretKey) -> PathBuf {
        let publisher = Publisher { name: name.into(), key: key.public() };
        let manifest = PackageManifest { publisher, ..manifest.clone() };
        let folder = tempfile::tempdir_in(self.root()).unwrap().keep();
        let libraries: Vec<PathBuf> = manifest
            .artifacts
            .iter()
            .map(|artifact| {
                let path = folder.join(format!("{}-{}", artifact.target, artifact.variant));
                fs::write(&path, library(&manifest.plugin, &artifact.target, &artifact.variant)).unwrap();
                path
            })
            .collect();
        let path = folder.join(manifest.file_name());
        pack(&manifest, key, &libraries, File::create(&path).unwrap()).unwrap();
        path
    }

    pub fn publish(&self, manifest: &PackageManifest) {
        self.change(&IndexChange { package: Some(&self.package(manifest)), ..IndexChange::default() });
    }

    pub fn revoke(&self, sha256: &Sha256Hex, reason: &str) {
        let revoked = [Revocation { sha256: sha256.clone(), reason: reason.into() }];
        self.change(&IndexChange { revoked: &revoked, ..IndexChange::default() });
    }

    pub fn change(&self, change: &IndexChange<'_>) -> Published {
        self.try_change(change, false).unwrap()
    }

    pub fn try_change(&self, change: &IndexChange<'_>, is_dry: bool) -> Result<Published, PackageError> {
        let valid_for = SignedDuration::from_hours(HOURS);
        publish(&self.index(), change, (&self.index_key, valid_for, *self.now.borrow(), is_dry))
    }
}

impl Environment for World {
    fn fetch(&self, url: &str, bytes_max: u64, to: &mut File) -> Result<(), PackageError> {
        let web = self.web.borrow();
        let absent = || PackageError::new(PackageErrorKind::Network, format!("no answer from {url}"));
        let stale = self.stale.borrow_mut().remove(url);
        let bytes = stale.as_ref().or_else(|| web.get(url)).ok_or_else(absent)?;
        if bytes.len() as u64 > bytes_max {
            return Err(PackageError::new(PackageErrorKind::Damaged, "it is too large"));
        }
        to.write_all(bytes).map_err(|error| PackageError::system(url, &error))
    }

    fn inspect(&self, library: &Path) -> Result<Manifest, PackageError> {
        if let Some(manifest) = self.read.borrow().clone() {
            return Ok(manifest);
        }
        let text = fs::read_to_string(library).unwrap();
        let mut words = text.split(' ').skip(2);
        Ok(plugin(words.next().unwrap(), words.next().unwrap()))
    }

    fn say(&self, line: &str) {
        self.said.borrow_mut().push(line.to_owned());
    }
}

/// The bytes that stand for a library.
pub fn library(plugin: &Manifest, target: &str, variant: &str) -> String {
    format!("library of {} {} for {target} ({variant})", plugin.id, plugin.version)
}

pub fn plugin(id: &str, version: &str) -> Manifest {
    let claim = Claim {
        architecture: id.to_owned(),
        gguf: vec![id.to_owned()],
        classes: vec![format!("{}{}ForCausalLM", id[..1].to_uppercase(), &id[1..])],
    };
    Manifest {
        id: id.into(),
        version: version.into(),
        description: "A family".into(),
        toolchain: "rustc 1.95".into(),
        sdk: "0.1.0".into(),
        architectures: vec![claim],
        ..Manifest::default()
    }
}

/// A manifest for three machines. Its publisher is set when it is packed.
pub fn manifest(id: &str, version: &str) -> PackageManifest {
    let plugin = plugin(id, version);
    let artifact = |target: &str, variant: &str, file: String| {
        let text = library(&plugin, target, variant);
        let (sha256, bytes) = (Sha256Hex::of(text.as_bytes()), text.len() as u64);
        Artifact { target: target.into(), variant: variant.into(), file, sha256, bytes }
    };
    let artifacts = vec![
        artifact("linux-x86_64", "cpu", format!("lib{id}.so")),
        artifact("linux-x86_64", "cuda", format!("lib{id}.so")),
        artifact("macos-aarch64", "metal", format!("lib{id}.dylib")),
    ];
    PackageManifest {
        package: 1,
        publisher: Publisher { name: "ada".into(), key: SecretKey::generate().unwrap().public() },
        repository: "https://example.org/granite".into(),
        license: "MIT".into(),
        contract: "1.0".into(),
        extensions: Vec::new(),
        minimum_host: "0.1.0".parse().unwrap(),
        needs: Vec::new(),
        plugin,
        artifacts,
        certificates: Vec::new(),
    }
}
