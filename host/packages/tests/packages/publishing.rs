//! Changes of an index by its maintainer: whose packages it takes, whose keys it drops, and what a crash or a second program
//! leaves.

use std::{fs, path::Path, thread};

use pensieve_packages::{
    Certificate, IndexChange, PackageError, PackageErrorKind, Published, Request, SecretKey, Sha256Hex, publish,
};

use crate::world::{World, manifest};
use PackageErrorKind::{Absent, Untrusted};

/// A package by somebody with another key in Ada's name.
fn successor(world: &World, key: &SecretKey, version: &str) -> std::path::PathBuf {
    world.package_by(&manifest("granite", version), "ada", key)
}

fn refused(tried: Result<Published, PackageError>, kind: PackageErrorKind, words: &str) {
    let error = tried.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(words), "'{words}' is not in: {error}");
}

fn serial(folder: &Path) -> u64 {
    let index: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("index.json")).unwrap()).unwrap();
    index["serial"].as_u64().unwrap()
}

#[test]
fn a_new_key_of_a_known_publisher_is_taken_only_when_told() {
    let world = World::new();
    let thief = SecretKey::generate().unwrap();
    world.publish(&manifest("granite", "1.0.0"));
    for package in [
        successor(&world, &thief, "1.1.0"),
        // Under a name that is free.
        world.package_by(&manifest("other", "1.0.0"), "ada", &thief),
    ] {
        let change = IndexChange { package: Some(&package), ..IndexChange::default() };
        for is_dry in [true, false] {
            refused(world.try_change(&change, is_dry), Untrusted, "the key of 'ada' in this index is ");
        }
        let change = IndexChange { is_new_key: true, ..change };
        let allowed = world.try_change(&change, true).unwrap();
        assert_eq!(allowed.index.publishers["ada"], [world.ada.public(), thief.public()]);
    }
    assert_eq!(serial(&world.index()), 2, "a refused or dry change is none");
}

#[test]
fn a_dropped_key_takes_its_releases_with_it() {
    let world = World::new();
    let new = SecretKey::generate().unwrap();
    world.publish(&manifest("granite", "1.0.0"));
    world.store().add(&Request::parse("granite").unwrap()).unwrap();
    let package = successor(&world, &new, "1.1.0");
    let added = IndexChange { package: Some(&package), is_new_key: true, ..IndexChange::default() };
    world.change(&added);
    let stolen = [world.ada.public()];
    let done = world.change(&IndexChange { dropped_keys: &stolen, ..IndexChange::default() });
    assert_eq!(done.dropped, ["granite 1.0.0"]);
    assert_eq!(done.index.publishers["ada"], [new.public()]);
    // What the thief signs is a new key again, and who has the old release is told rather than updated.
    let package = world.package(&manifest("granite", "9.0.0"));
    let change = IndexChange { package: Some(&package), ..IndexChange::default() };
    refused(world.try_change(&change, false), Untrusted, "if so: --new-key");
    let updates = world.store().update(&[]).unwrap();
    assert!(format!("{updates:?}").contains("remove it first"), "{updates:?}");
    refused(
        world.try_change(&IndexChange { dropped_keys: &stolen, ..IndexChange::default() }, false),
        Absent,
        "no publisher of the index 'team' has the key",
    );
}

#[test]
fn a_revocation_can_be_taken_back() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let digest = manifest("granite", "1.0.0").artifacts[0].sha256.clone();
    let reinstated = [digest.clone()];
    let change = IndexChange { reinstated: &reinstated, ..IndexChange::default() };
    refused(world.try_change(&change, false), Absent, "is not revoked");
    world.revoke(&digest, "wrong results");
    assert!(world.change(&change).index.revoked.is_empty());
}

#[test]
fn two_programs_that_publish_at_once_lose_nothing() {
    let world = World::new();
    let packages: Vec<_> = (0..6).map(|minor| world.package(&manifest("granite", &format!("1.{minor}.0")))).collect();
    let (folder, key, now) = (world.index(), &world.index_key, *world.now.borrow());
    let mut serials: Vec<u64> = thread::scope(|scope| {
        let publishing: Vec<_> = packages
            .iter()
            .map(|package| {
                let folder = &folder;
                scope.spawn(move || {
                    let change = IndexChange { package: Some(package), ..IndexChange::default() };
                    publish(folder, &change, (key, jiff::SignedDuration::from_hours(1), now, false))
                        .unwrap()
                        .index
                        .serial
                })
            })
            .collect();
        publishing.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    serials.sort_unstable();
    assert_eq!(serials, [2, 3, 4, 5, 6, 7]);
    let index = world.change(&IndexChange::default()).index;
    assert_eq!(index.plugins["granite"].len(), packages.len());
}

#[test]
fn an_index_whose_publisher_crashed_can_be_changed_again() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let old = fs::read(world.index().join("index.json")).unwrap();
    world.publish(&manifest("granite", "1.1.0"));
    // As after a crash with the signature in its place and the index not yet.
    let new = fs::read(world.index().join("index.json")).unwrap();
    fs::write(world.index().join(".index.json.next"), new).unwrap();
    fs::write(world.index().join("index.json"), &old).unwrap();
    let index = world.change(&IndexChange::default()).index;
    assert_eq!((index.serial, index.plugins["granite"].len()), (4, 2));
    assert!(!world.index().join(".index.json.next").exists());
    // A crash before the signature was in its place: what was to come is not taken.
    fs::write(world.index().join(".index.json.next"), &old).unwrap();
    assert_eq!(world.change(&IndexChange::default()).index.serial, 5);
    // An index that somebody changed is not mended by it.
    fs::write(world.index().join("index.json"), old).unwrap();
    refused(world.try_change(&IndexChange::default(), false), Untrusted, "the index in");
}

#[test]
fn an_index_is_told_which_families_have_no_certificate_or_none_with_a_reference() {
    let world = World::new();
    let tried = |differences: &[Option<f64>]| {
        let mut manifest = manifest("granite", "1.0.0");
        let certificate = |difference: &Option<f64>| Certificate {
            plugin: manifest.artifacts[0].sha256.clone(),
            architecture: "granite".into(),
            fingerprint: "f".into(),
            checkpoint: Some(Sha256Hex::of(b"checkpoint")),
            model: "Granite 1B".into(),
            device: "cpu".into(),
            laws: 21,
            difference: *difference,
            tokens_per_second: None,
        };
        manifest.certificates = differences.iter().map(certificate).collect();
        let package = world.package(&manifest);
        let tried = world.try_change(&IndexChange { package: Some(&package), ..IndexChange::default() }, true);
        tried.map(|published| (published.uncertified.len(), published.unreferenced.len()))
    };
    assert_eq!(tried(&[]), Ok((1, 0)));
    assert_eq!(tried(&[None]), Ok((0, 1)));
    assert_eq!(tried(&[None, Some(1e-5)]), Ok((0, 0)));
    assert_eq!(tried(&[Some(0.05)]), Ok((0, 0)));
    for wrong in [0.06, 1e9] {
        let error = tried(&[Some(1e-5), Some(wrong)]).unwrap_err();
        assert_eq!(error.kind, Untrusted, "{error}");
        assert!(error.message.contains("logits differ from the reference by"), "{error}");
    }
}
