//! Everything that must not be installed, with the reason that a user gets; and nothing is left behind.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use jiff::SignedDuration;
use pensieve_packages::{
    Artifact, Certificate, Document, IndexSource, Lock, PackageErrorKind, PackageManifest, Request, SecretKey,
    Settings, Sha256Hex, Store,
};

use crate::world::{World, manifest, plugin};
use PackageErrorKind::{Absent, Damaged, Network, Taken, Unfit, Untrusted, Usage};

/// What is changed before it is signed.
type Change<T> = fn(&mut T);

/// Checks that adding is refused, and that neither a library nor a line of the lock came of it.
fn refused(world: &World, request: &Request, kind: PackageErrorKind, words: &str) {
    let tried = Store::open(world.host(), world.settings(), world).and_then(|mut store| store.add(request));
    let error = tried.err().unwrap_or_else(|| panic!("{request:?} was added; it should be refused: {words}"));
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(words), "'{words}' is not in: {error}");
    let plugins = fs::read_dir(world.home().join("plugins")).into_iter().flatten().count();
    assert_eq!(plugins, 0, "{words}: a library was left behind");
    assert!(Lock::read(&world.home()).unwrap().plugins.is_empty(), "{words}");
    let cached = fs::read_dir(world.home().join("cache")).into_iter().flatten().flatten();
    let left = cached.filter(|entry| entry.path().is_file()).count();
    assert_eq!(left, 0, "{words}: a file was left in the cache");
}

/// A package of a manifest that was changed, signed by its publisher. The change happens behind this program's back, as by
/// another tool that packs.
fn forged(world: &World, change: impl Fn(&mut serde_json::Value)) -> Request {
    let package = world.package(&manifest("granite", "1.0.0"));
    let entries = rewritten(&package, |name, bytes| {
        if name == "manifest.json" {
            let mut value = serde_json::from_slice(&bytes).unwrap();
            change(&mut value);
            return serde_json::to_vec(&value).unwrap();
        }
        bytes
    });
    let manifest = entries[0].1.clone();
    let signature = world.ada.sign(Document::Package, &manifest).unwrap().into_bytes();
    let entries = entries.into_iter().map(|(name, bytes)| {
        let bytes = if name == "manifest.json.minisig" { signature.clone() } else { bytes };
        (name, bytes)
    });
    write(&package, entries.collect());
    Request::File(package)
}

/// The entries of a package after a change.
fn rewritten(package: &Path, change: impl Fn(&str, Vec<u8>) -> Vec<u8>) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(package).unwrap()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let bytes = change(&name, bytes);
        (name, bytes)
    });
    entries.collect()
}

fn write(package: &Path, entries: Vec<(String, Vec<u8>)>) {
    let mut archive = tar::Builder::new(GzEncoder::new(File::create(package).unwrap(), Compression::fast()));
    for (name, bytes) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap().flush().unwrap();
}

/// A package whose entries were changed after it was signed.
fn tampered(world: &World, change: impl Fn(&str, Vec<u8>) -> Vec<u8>) -> Request {
    let package = world.package(&manifest("granite", "1.0.0"));
    write(&package, rewritten(&package, change));
    Request::File(package)
}

#[test]
fn what_was_changed_on_its_way_is_refused() {
    let world = World::new();
    let flipped = |wanted: &'static str| {
        move |name: &str, mut bytes: Vec<u8>| {
            if name.contains(wanted) {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            bytes
        }
    };
    refused(&world, &tampered(&world, flipped("linux-x86_64/cpu")), Damaged, "has not the digest");
    refused(&world, &tampered(&world, flipped("minisig")), Untrusted, "the signature");
    let license = |name: &str, bytes: Vec<u8>| {
        if name != "manifest.json" {
            return bytes;
        }
        String::from_utf8(bytes).unwrap().replace("\"MIT\"", "\"BSD\"").into_bytes()
    };
    refused(&world, &tampered(&world, license), Untrusted, "it was changed after");
    let longer = |name: &str, mut bytes: Vec<u8>| {
        if name.contains("linux-x86_64/cpu") {
            bytes.extend([0; 5000]);
        }
        bytes
    };
    refused(&world, &tampered(&world, longer), Damaged, "has not the digest");
    let shorter = |name: &str, bytes: Vec<u8>| if name.contains(".so") { bytes[..7].to_vec() } else { bytes };
    refused(&world, &tampered(&world, shorter), Damaged, "has not the digest");

    let package = world.package(&manifest("granite", "1.0.0"));
    let whole = fs::read(&package).unwrap();
    for len in [0, 10, whole.len() / 3, whole.len() - 400] {
        fs::write(&package, &whole[..len.min(whole.len())]).unwrap();
        refused(&world, &Request::File(package.clone()), Damaged, "not a whole package");
    }
    fs::write(&package, b"\x7fELF and so on, but no package at all").unwrap();
    refused(&world, &Request::File(package.clone()), Damaged, "not a whole package");
    write(&package, vec![("README".into(), b"hello".to_vec())]);
    refused(&world, &Request::File(package.clone()), Damaged, "'manifest.json' is not where it should be");
    write(&package, vec![("manifest.json".into(), vec![b' '; 2 << 20])]);
    refused(&world, &Request::File(package), Damaged, "more than 1048576 bytes");
}

#[test]
fn a_manifest_that_says_what_cannot_be_is_refused_though_it_is_signed() {
    let world = World::new();
    let cases: &[(&str, Change<serde_json::Value>)] = &[
        ("has format 2", |value| value["package"] = 2.into()),
        ("publisher", |value| value["publisher"]["name"] = "../ada".into()),
        ("not like 1.2.3", |value| value["plugin"]["version"] = "newest".into()),
        ("a plugin that is not valid", |value| value["plugin"]["id"] = "../../x".into()),
        ("not like 1.0", |value| value["contract"] = "one".into()),
        ("not a plain name", |value| value["artifacts"][0]["file"] = "../../.bashrc.so".into()),
        ("not a plain name", |value| value["artifacts"][0]["file"] = "run.sh".into()),
        ("target", |value| value["artifacts"][0]["target"] = "../..".into()),
        ("64 of the characters", |value| value["artifacts"][0]["sha256"] = "abc".into()),
        ("has 0 bytes", |value| value["artifacts"][0]["bytes"] = 0.into()),
        ("two libraries", |value| value["artifacts"][1]["variant"] = "cpu".into()),
        ("0 libraries", |value| value["artifacts"] = serde_json::json!([])),
        ("names no licence", |value| value["license"] = "".into()),
        ("control characters", |value| value["license"] = "MIT\u{1b}[31m".into()),
        ("https://", |value| value["repository"] = "javascript:alert(1)".into()),
        ("cannot be read", |value| value["publisher"]["key"] = "RWQ".into()),
    ];
    for (words, change) in cases {
        refused(&world, &forged(&world, change), Damaged, words);
    }
}

#[test]
fn what_does_not_run_here_is_refused() {
    let world = World::new();
    let cases: &[(&str, Change<PackageManifest>)] = &[
        ("was built with contract 1.1, and this program has 1.0; update Pensieve", |it| it.contract = "1.1".into()),
        ("was built with contract 0.9", |it| it.contract = "0.9".into()),
        ("needs Pensieve 3.0.0 or newer", |it| it.minimum_host = "3.0.0".parse().unwrap()),
        ("has no library for linux-x86_64 (cpu)", |it| it.artifacts.retain(|one| one.target != "linux-x86_64")),
        ("it has linux-x86_64 (cuda)", |it| it.artifacts.retain(|one| one.variant == "cuda")),
    ];
    for (words, change) in cases {
        let mut manifest = manifest("granite", "1.0.0");
        change(&mut manifest);
        refused(&world, &Request::File(world.package(&manifest)), Unfit, words);
    }
    *world.read.borrow_mut() = Some(plugin("llama", "1.0.0"));
    let package = world.package(&manifest("granite", "1.0.0"));
    refused(&world, &Request::File(package), Damaged, "another plugin than its package says");
}

#[test]
fn keys_that_are_not_the_known_ones_are_refused() {
    let world = World::new();
    let mallory = SecretKey::generate().unwrap();
    let good = world.package(&manifest("other", "1.0.0"));
    world.store().add(&Request::File(good)).unwrap();
    world.store().remove("other").unwrap();
    let foreign = world.package_by(&manifest("granite", "1.0.0"), "ada", &mallory);
    refused(&world, &Request::File(foreign), Untrusted, "the key of 'ada' is");
    // A package in somebody's name, signed by somebody else.
    let package = world.package(&manifest("granite", "1.0.0"));
    let entries = rewritten(&package, |_, bytes| bytes);
    let signature = mallory.sign(Document::Package, &entries[0].1).unwrap();
    write(
        &package,
        rewritten(
            &package,
            |name, bytes| {
                if name.ends_with("minisig") { signature.clone().into_bytes() } else { bytes }
            },
        ),
    );
    refused(&world, &Request::File(package.clone()), Untrusted, "by another key");
    // A signature of another document by the right key.
    let index = world.ada.sign(Document::Index, &entries[0].1).unwrap();
    write(
        &package,
        rewritten(&package, |name, bytes| if name.ends_with("minisig") { index.clone().into_bytes() } else { bytes }),
    );
    refused(&world, &Request::File(package), Untrusted, "another kind of document");
    // With trusted publishers there is no first use.
    let settings = Settings { publishers: [("bob".to_owned(), mallory.public())].into(), ..world.settings() };
    let package = world.package(&manifest("granite", "1.0.0"));
    let mut store = Store::open(world.host(), settings, &world).unwrap();
    let error = store.add(&Request::File(package)).unwrap_err();
    assert!(error.to_string().contains("not among plugins.publishers"), "{error}");
}

#[test]
fn no_more_of_a_package_is_fetched_than_its_index_says_that_it_has() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let url = "https://example.org/granite.pensieve";
    let mut package = fs::read(world.index().join("granite-1.0.0.pensieve")).unwrap();
    set_index(&world, |value| value["plugins"]["granite"][0]["package"] = url.into());
    package.push(0);
    world.web.borrow_mut().insert(url.into(), package.clone());
    refused(&world, &Request::parse("granite").unwrap(), Damaged, "it is too large");
    package.pop();
    world.web.borrow_mut().insert(url.into(), package);
    world.store().add(&Request::parse("granite").unwrap()).unwrap();
}

#[test]
fn an_index_that_is_old_changed_or_foreign_is_refused() {
    let world = World::new();
    let granite = Request::parse("granite").unwrap();
    refused(&world, &granite, Absent, "no index has 'granite'");
    world.publish(&manifest("granite", "1.0.0"));
    let old: Vec<_> =
        ["index.json", "index.json.minisig"].map(|name| (name, fs::read(world.index().join(name)).unwrap())).into();
    world.publish(&manifest("granite", "1.1.0"));
    refused(&world, &Request::parse("granite@9.0.0").unwrap(), Absent, "no index has 'granite' 9.0.0");
    // Rolled back: the newer one was seen just now.
    let new: Vec<_> = old.iter().map(|(name, _)| (*name, fs::read(world.index().join(name)).unwrap())).collect();
    let put = |files: &[(&str, Vec<u8>)]| {
        files.iter().for_each(|(name, bytes)| fs::write(world.index().join(name), bytes).unwrap());
    };
    put(&old);
    refused(&world, &granite, Untrusted, "has serial 2, and 3 has been seen");
    // Signed by another key than at the first use.
    let mallory = SecretKey::generate().unwrap();
    put(&new);
    put(&[("index.json.minisig", mallory.sign(Document::Index, &new[0].1).unwrap().into_bytes())]);
    refused(&world, &granite, Untrusted, "by another key");
    // Changed after it was signed.
    put(&new);
    put(&[("index.json", String::from_utf8(new[0].1.clone()).unwrap().replace("team", "meat").into_bytes())]);
    refused(&world, &granite, Untrusted, "it was changed after");
    // Other content under a serial number that has been seen.
    let other = String::from_utf8(new[0].1.clone()).unwrap().replace("A family", "No family").into_bytes();
    put(&[
        ("index.json.minisig", world.index_key.sign(Document::Index, &other).unwrap().into_bytes()),
        ("index.json", other),
    ]);
    refused(&world, &granite, Untrusted, "other content under the serial number 3");
    put(&new);
    *world.now.borrow_mut() += SignedDuration::from_hours(25);
    refused(&world, &granite, Untrusted, "expired at");
    *world.now.borrow_mut() -= SignedDuration::from_hours(25);
    for name in ["index.json", "index.json.minisig"] {
        put(&new);
        fs::remove_file(world.index().join(name)).unwrap();
        refused(&world, &granite, Absent, &format!("has no {name}"));
    }
}

#[test]
fn an_index_whose_packages_are_not_what_it_lists_is_refused() {
    let world = World::new();
    let granite = Request::parse("granite").unwrap();
    world.publish(&manifest("granite", "1.0.0"));
    let package = world.index().join("granite-1.0.0.pensieve");
    let whole = fs::read(&package).unwrap();
    fs::write(&package, &whole[..100]).unwrap();
    refused(&world, &granite, Damaged, "is not the file that its index lists");
    fs::remove_file(&package).unwrap();
    refused(&world, &granite, Absent, "granite-1.0.0.pensieve");
    fs::write(&package, &whole).unwrap();
    let digest = manifest("granite", "1.0.0").artifacts[0].sha256.clone();
    world.revoke(&digest, "wrong results on long prompts");
    refused(&world, &granite, Untrusted, "is revoked: wrong results on long prompts");
}

/// Signs whatever an index shall say.
fn set_index(world: &World, change: impl Fn(&mut serde_json::Value)) {
    let mut value = serde_json::from_slice(&fs::read(world.index().join("index.json")).unwrap()).unwrap();
    change(&mut value);
    let bytes = serde_json::to_vec(&value).unwrap();
    let signature = world.index_key.sign(Document::Index, &bytes).unwrap();
    fs::write(world.index().join("index.json.minisig"), signature).unwrap();
    fs::write(world.index().join("index.json"), bytes).unwrap();
}

#[test]
fn an_index_that_says_what_cannot_be_is_refused_though_it_is_signed() {
    let cases: &[(&str, Change<serde_json::Value>)] = &[
        ("has format 9", |value| value["index"] = 9.into()),
        ("cannot be read", |value| value["serial"] = (-1).into()),
        ("cannot be read", |value| value["expires"] = "soon".into()),
        ("publisher", |value| value["publishers"]["A B"] = serde_json::json!([])),
        ("by a key that it does not list", |value| value["publishers"]["ada"] = serde_json::json!([])),
        ("under the name 'phi'", |value| value["plugins"]["phi"] = value["plugins"]["granite"].clone()),
        ("without a usable package", |value| value["plugins"]["granite"][0]["package"] = "../../etc/passwd".into()),
        ("without a usable package", |value| value["plugins"]["granite"][0]["package"] = "http://example.org/a".into()),
        ("without a usable package", |value| value["plugins"]["granite"][0]["bytes"] = 0.into()),
        ("64 of the characters", |value| value["revoked"] = serde_json::json!([{"sha256": "x", "reason": ""}])),
    ];
    for (words, change) in cases {
        let world = World::new();
        world.publish(&manifest("granite", "1.0.0"));
        set_index(&world, change);
        refused(&world, &Request::parse("granite").unwrap(), Damaged, words);
    }
}

#[test]
fn what_is_there_already_is_not_overwritten() {
    let world = World::new();
    let package = world.package(&manifest("granite", "1.0.0"));
    let plugins = world.home().join("plugins");
    fs::create_dir_all(&plugins).unwrap();
    let library = plugins.join("libgranite.so");
    fs::write(&library, "the user's own").unwrap();
    let error = world.store().add(&Request::File(package.clone())).unwrap_err();
    assert_eq!(error.kind, Taken, "{error}");
    assert_eq!(fs::read(&library).unwrap(), b"the user's own");
    fs::remove_file(&library).unwrap();
    world.store().add(&Request::File(package)).unwrap();

    // Another release of the same number.
    let mut other = manifest("granite", "1.0.0");
    other.artifacts.truncate(1);
    let error = world.store().add(&Request::File(world.package(&other))).unwrap_err();
    assert!(error.to_string().contains("has other libraries than plugins.lock says"), "{error}");
    // The same plugin by another publisher.
    let bob = SecretKey::generate().unwrap();
    let package = world.package_by(&manifest("granite", "2.0.0"), "bob", &bob);
    let error = world.store().add(&Request::File(package)).unwrap_err();
    assert!(error.to_string().contains("is installed from 'ada'"), "{error}");
    assert_eq!(fs::read(&library).unwrap(), b"library of granite 1.0.0 for linux-x86_64 (cpu)");
    // A library that was changed is the user's: it stays.
    fs::write(&library, "changed").unwrap();
    world.store().remove("granite").unwrap();
    assert!(library.exists());
}

#[test]
fn without_a_network_or_an_index_the_reason_is_said() {
    let world = World::new();
    let url = "https://example.org/granite-1.0.0.pensieve";
    refused(&world, &Request::parse(url).unwrap(), Network, "no answer from");
    world.web.borrow_mut().insert(url.into(), fs::read(world.package(&manifest("granite", "1.0.0"))).unwrap());
    world.store().add(&Request::parse(url).unwrap()).unwrap();
    world.store().remove("granite").unwrap();
    let with = |indexes: Vec<IndexSource>| {
        let settings = Settings { indexes, ..Settings::default() };
        Store::open(world.host(), settings, &world).unwrap().add(&Request::parse("granite").unwrap()).unwrap_err()
    };
    assert!(with(Vec::new()).to_string().contains("no index is configured"));
    let error = with(vec![IndexSource { location: "https://example.org/index".into(), key: None }]);
    assert_eq!(error.kind, Network, "{error}");
    for wrong in ["", "Granite", "granite@new", "gra nite", "@1.0.0"] {
        assert_eq!(Request::parse(wrong).unwrap_err().kind, Usage, "{wrong}");
    }
    refused(&world, &Request::File(PathBuf::from("./nowhere.pensieve")), Absent, "nowhere.pensieve");
}

#[test]
fn certificates_are_of_the_packages_own_libraries_and_families() {
    let world = World::new();
    let certificate = |plugin: Sha256Hex, architecture: &str| Certificate {
        plugin,
        architecture: architecture.into(),
        fingerprint: "f".into(),
        checkpoint: None,
        model: "Granite 1B".into(),
        device: "cpu".into(),
        laws: 21,
        difference: Some(1e-5),
        tokens_per_second: None,
    };
    let artifacts = manifest("granite", "1.0.0").artifacts;
    let Artifact { sha256, .. } = &artifacts[0];
    let with = |certificate: Certificate| {
        forged(&world, |value| value["certificates"] = serde_json::to_value([&certificate]).unwrap())
    };
    refused(&world, &with(certificate(Sha256Hex::of(b"x"), "granite")), Damaged, "a library that it does not list");
    refused(&world, &with(certificate(sha256.clone(), "llama")), Damaged, "its plugin does not provide");
    let below = Certificate { difference: Some(-1.0), ..certificate(sha256.clone(), "granite") };
    refused(&world, &with(below), Damaged, "with the number -1");
    world.store().add(&with(certificate(sha256.clone(), "granite"))).unwrap();
}
