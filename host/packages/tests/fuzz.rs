//! Damaged packages, manifests and indexes are read or refused within bounded time and memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use jiff::{SignedDuration, Timestamp};
use pensieve_fuzz::Target;
use pensieve_packages::{
    Artifact, Index, NewIndex, Package, PackageManifest, Publisher, SecretKey, Sha256Hex, create_index, pack, publish,
};
use pensieve_protocol::manifest::{Claim, Manifest};

const LIBRARY: &[u8] = b"a library";

fn manifest(key: &SecretKey) -> PackageManifest {
    let claim = Claim { architecture: "granite".into(), gguf: vec!["granite".into()], classes: vec!["A".into()] };
    let plugin =
        Manifest { id: "granite".into(), version: "1.0.0".into(), architectures: vec![claim], ..Manifest::default() };
    let artifact = Artifact {
        target: "linux-x86_64".into(),
        variant: "cpu".into(),
        file: "libgranite.so".into(),
        sha256: Sha256Hex::of(LIBRARY),
        bytes: LIBRARY.len() as u64,
    };
    PackageManifest {
        package: 1,
        publisher: Publisher { name: "ada".into(), key: key.public() },
        repository: String::new(),
        license: "MIT".into(),
        contract: "1.0".into(),
        extensions: vec!["rows/1".into()],
        minimum_host: "0.1.0".parse().unwrap(),
        needs: Vec::new(),
        plugin,
        artifacts: vec![artifact],
        certificates: Vec::new(),
    }
}

/// The result as text, without what is quoted.
fn outcome<T>(read: Result<T, pensieve_packages::PackageError>) -> String {
    let quoted = |text: &str| text.split('\'').step_by(2).collect::<String>();
    read.map_or_else(|error| quoted(&error.message), |_| "read".to_owned())
}

#[test]
fn documents_of_packages_and_indexes_are_read_or_refused() {
    let folder = pensieve_fuzz::folder();
    let key = SecretKey::generate().unwrap();
    let manifest = manifest(&key);
    let library = folder.path().join("library");
    fs::write(&library, LIBRARY).unwrap();
    let package = folder.path().join("granite.pensieve");
    pack(&manifest, &key, &[library], fs::File::create(&package).unwrap()).unwrap();
    let index = folder.path().join("index");
    fs::create_dir(&index).unwrap();
    let (now, valid_for) = (Timestamp::UNIX_EPOCH, SignedDuration::from_hours(1));
    create_index(&index, &NewIndex { name: "team".into(), valid_for }, &key, now).unwrap();
    publish(&index, Some(&package), &[], (&key, valid_for, now, false)).unwrap();

    let corpus = vec![serde_json::to_vec(&manifest).unwrap()];
    Target { name: "package-manifest", corpus, memory_max: 16 << 20, input_max: 64 << 10 }
        .run(|bytes| outcome(PackageManifest::parse(bytes)));
    let corpus = vec![fs::read(index.join("index.json")).unwrap()];
    Target { name: "plugin-index", corpus, memory_max: 16 << 20, input_max: 64 << 10 }
        .run(|bytes| outcome(Index::parse(bytes)));
    let corpus = vec![fs::read(&package).unwrap()];
    let damaged = folder.path().join("damaged.pensieve");
    Target { name: "package", corpus, memory_max: 16 << 20, input_max: 64 << 10 }.run(|bytes| {
        fs::write(&damaged, bytes).unwrap();
        outcome(Package::open(&damaged).and_then(|package| {
            package.manifest().artifacts.iter().try_for_each(|artifact| package.extract(artifact, &mut std::io::sink()))
        }))
    });
    let corpus = vec![key.sign(pensieve_packages::Document::Package, LIBRARY).unwrap().into_bytes()];
    Target { name: "signature", corpus, memory_max: 16 << 20, input_max: 16 << 10 }.run(|bytes| {
        let signature = String::from_utf8_lossy(bytes);
        outcome(key.public().verify(pensieve_packages::Document::Package, LIBRARY, &signature, "it"))
    });
}
