//! Damaged packages, manifests, indexes and releases are read or refused within bounded time and memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use jiff::{SignedDuration, Timestamp};
use pensieve_fuzz::Target;
use pensieve_packages::{
    Artifact, Index, IndexChange, NewIndex, Package, PackageManifest, ProgramRelease, Publisher, SecretKey, Sha256Hex,
    create_index, pack, publish, unpack_release,
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

/// The package with an entry before its library whose name has many megabytes, as GNU's tar writes them.
fn with_a_long_name(package: &Path) -> Vec<u8> {
    let mut archive = tar::Archive::new(GzDecoder::new(fs::File::open(package).unwrap()));
    let mut changed = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for (place, entry) in archive.entries().unwrap().enumerate() {
        let mut entry = entry.unwrap();
        if place == 0 {
            // What it claims to hold is the limit on what is read of it.
            let mut manifest: serde_json::Value = serde_json::from_reader(&mut entry).unwrap();
            manifest["artifacts"][0]["bytes"] = (64 << 20).into();
            let manifest = serde_json::to_vec(&manifest).unwrap();
            let mut header = entry.header().clone();
            header.set_size(manifest.len() as u64);
            header.set_cksum();
            changed.append(&header, &manifest[..]).unwrap();
            continue;
        }
        if place == 2 {
            let mut header = tar::Header::new_gnu();
            header.set_path("././@LongLink").unwrap();
            header.set_entry_type(tar::EntryType::GNULongName);
            header.set_size(40 << 20);
            header.set_cksum();
            changed.append(&header, io::repeat(b'x').take(40 << 20)).unwrap();
        }
        let header = entry.header().clone();
        changed.append(&header, entry).unwrap();
    }
    changed.into_inner().unwrap().finish().unwrap()
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
    let change = IndexChange { package: Some(&package), ..IndexChange::default() };
    publish(&index, &change, (&key, valid_for, now, false)).unwrap();

    let corpus = vec![serde_json::to_vec(&manifest).unwrap()];
    Target { name: "package-manifest", corpus, memory_max: 16 << 20, input_max: 64 << 10 }
        .run(|bytes| outcome(PackageManifest::parse(bytes)));
    let corpus = vec![fs::read(index.join("index.json")).unwrap()];
    Target { name: "plugin-index", corpus, memory_max: 16 << 20, input_max: 64 << 10 }
        .run(|bytes| outcome(Index::parse(bytes)));
    let corpus = vec![fs::read(&package).unwrap(), with_a_long_name(&package)];
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

#[test]
fn lists_and_archives_of_releases_are_read_or_refused() {
    let folder = pensieve_fuzz::folder();
    let archive = serde_json::json!({
        "target": "linux-x86_64", "kind": "full", "file": "pensieve.tar.xz", "sha256": "0".repeat(64),
        "bytes": 9, "unpacked_bytes": 9, "needs": "glibc 2.28",
    });
    let list = serde_json::json!({"release": 1, "version": "1.0.0", "archives": [archive]});
    Target { name: "release", corpus: vec![list.to_string().into_bytes()], memory_max: 16 << 20, input_max: 64 << 10 }
        .run(|bytes| outcome(ProgramRelease::parse(bytes)));

    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, bytes) in [("p/bin/pensieve", &b"program"[..]), ("p/lib/pensieve/libx.so", LIBRARY)] {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        archive.append_data(&mut header, name, bytes).unwrap();
    }
    let corpus = vec![archive.into_inner().unwrap().finish().unwrap()];
    let (damaged, outside) = (folder.path().join("damaged.tar.gz"), folder.path().join("unpacked"));
    Target { name: "release-archive", corpus, memory_max: 16 << 20, input_max: 64 << 10 }.run(|bytes| {
        let to = outside.join("here");
        fs::create_dir_all(&to).unwrap();
        fs::write(&damaged, bytes).unwrap();
        let unpacked = unpack_release(&damaged, &to, 1 << 20);
        fs::remove_dir_all(&to).unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was written outside");
        outcome(unpacked)
    });
}
