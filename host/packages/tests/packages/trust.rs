//! An installed plugin is replaced only by packages of its publisher's key, from its own index, and of the lock by the same file.

use std::{fs, path::Path};

use pensieve_packages::{
    Added, IndexChange, Installed, Lock, Locked, NewIndex, PackageError, PackageErrorKind, Request, Revocation,
    SecretKey, Settings, Store, Trust, Update, create_index, publish,
};

use crate::world::{World, manifest};
use PackageErrorKind::{Damaged, Untrusted};

#[test]
fn an_installed_plugin_is_not_taken_over_by_another_key_under_its_publishers_name() {
    let world = World::new();
    let mallory = SecretKey::generate().unwrap();
    world.publish(&manifest("granite", "1.0.0"));
    let granite = Request::parse("granite").unwrap();
    let added = world.store().add(&granite).unwrap();
    let is_untouched = || {
        let lock = Lock::read(&world.home()).unwrap();
        assert_eq!(lock.plugins, std::slice::from_ref(&added.locked));
        assert_eq!(fs::read(&added.file).unwrap(), b"library of granite 1.0.0 for linux-x86_64 (cpu)");
    };
    // By a file, whose publisher no index and no earlier file has told of.
    let package = world.package_by(&manifest("granite", "99.0.0"), "ada", &mallory);
    let error = world.store().add(&Request::File(package.clone())).unwrap_err();
    assert_eq!(error.kind, Untrusted, "{error}");
    assert!(error.to_string().contains("and this one is signed by"), "{error}");
    assert!(error.to_string().contains("remove it first: pensieve plugins remove granite"), "{error}");
    is_untouched();
    assert!(Trust::read(&world.home()).unwrap().publishers.is_empty(), "the other key was remembered");

    // By another index that comes first. It may list the right key beside the wrong one.
    let good = world.package(&manifest("granite", "0.9.0"));
    let other = world.other_index(&[&good, &package]);
    let store = |indexes: &[&Path]| Store::open(world.host(), world.settings_of(indexes), &world).unwrap();
    let both = [&*other, &*world.index()];
    assert!(matches!(&store(&both).update(&[]).unwrap()[..], [Update::Newest(_)]));
    assert!(store(&both).outdated().unwrap().is_empty());
    assert_eq!(store(&both).add(&granite).unwrap().locked, added.locked);
    is_untouched();
    let error = store(&[&other]).add(&granite).unwrap_err();
    assert_eq!(error.kind, Untrusted, "{error}");
    let updates = store(&[&other]).update(&[]).unwrap();
    let [Update::Failed { error, .. }] = &updates[..] else { panic!("{updates:?}") };
    assert!(error.to_string().contains("was added from the index"), "{error}");
    is_untouched();
}

#[test]
fn a_key_is_followed_by_one_that_the_plugins_own_index_lists_or_the_user_names() {
    let world = World::new();
    let new = SecretKey::generate().unwrap();
    world.publish(&manifest("granite", "1.0.0"));
    world.store().add(&Request::parse("granite").unwrap()).unwrap();
    let successor = |version: &str| world.package_by(&manifest("granite", version), "ada", &new);
    let package = successor("1.1.0");
    world.change(&IndexChange { package: Some(&package), is_new_key: true, ..IndexChange::default() });
    assert!(matches!(&world.store().update(&[]).unwrap()[..], [Update::Updated(_)]));
    assert_eq!(Lock::read(&world.home()).unwrap().plugins[0].publisher.key, new.public());

    let world = World::new();
    world.store().add(&Request::File(world.package(&manifest("granite", "1.0.0")))).unwrap();
    let settings = Settings { publishers: [("ada".to_owned(), new.public())].into(), ..world.settings() };
    let mut store = Store::open(world.host(), settings, &world).unwrap();
    assert_eq!(store.add(&Request::File(successor("1.1.0"))).unwrap().locked.publisher.key, new.public());
}

#[test]
fn a_package_of_the_lock_is_installed_again_only_if_it_is_the_same_file() {
    let url = "https://example.org/granite.pensieve";
    for is_url in [true, false] {
        let world = World::new();
        let path = world.root().join("granite.pensieve");
        let put = |version: &str| {
            let package = fs::read(world.package(&manifest("granite", version))).unwrap();
            fs::write(&path, &package).unwrap();
            world.web.borrow_mut().insert(url.into(), package);
        };
        put("1.0.0");
        let first = world.web.borrow()[url].clone();
        let request = if is_url { Request::parse(url).unwrap() } else { Request::File(path.clone()) };
        let added = world.store().add(&request).unwrap();
        // Another machine, which has the lock alone.
        fs::remove_dir_all(world.home().join("plugins")).unwrap();
        fs::remove_dir_all(world.home().join("cache")).unwrap();
        put("2.0.0");
        let error = only(world.store().restore()).unwrap_err();
        assert_eq!(error.kind, Damaged, "{error}");
        assert!(error.to_string().contains("is not the file that plugins.lock lists"), "{error}");
        assert!(!added.file.exists());
        fs::write(&path, &first).unwrap();
        world.web.borrow_mut().insert(url.into(), first);
        assert_eq!(only(world.store().restore()).unwrap().locked, added.locked);

        // With trusted publishers by now, of whom its publisher is none, the cache does not help.
        fs::remove_file(&added.file).unwrap();
        let bob = SecretKey::generate().unwrap().public();
        let settings = Settings { publishers: [("bob".to_owned(), bob)].into(), ..world.settings() };
        let error = only(Store::open(world.host(), settings, &world).unwrap().restore()).unwrap_err();
        assert!(error.to_string().contains("not among plugins.publishers"), "{error}");
        assert!(!added.file.exists());
    }
}

/// The result for the only plugin that was missing.
fn only(restored: Vec<(Locked, Result<Added, PackageError>)>) -> Result<Added, PackageError> {
    assert_eq!(restored.len(), 1);
    restored.into_iter().next().unwrap().1
}

#[test]
fn an_index_revokes_what_came_from_it_and_what_its_publishers_gave_otherwise() {
    let world = World::new();
    let package = world.package(&manifest("granite", "1.0.0"));
    world.change(&IndexChange { package: Some(&package), ..IndexChange::default() });
    let digest = manifest("granite", "1.0.0").artifacts[0].sha256.clone();
    let key = SecretKey::generate().unwrap();
    let other = world.root().join("other-index");
    let signed = || (&key, jiff::SignedDuration::from_hours(1), *world.now.borrow(), false);
    let new = NewIndex { name: "other".into(), valid_for: jiff::SignedDuration::from_hours(1) };
    create_index(&other, &new, &key, *world.now.borrow()).unwrap();
    let revoked = [Revocation { sha256: digest.clone(), reason: "they say".into() }];
    publish(&other, &IndexChange { revoked: &revoked, ..IndexChange::default() }, signed()).unwrap();
    let store = |indexes: &[&Path]| Store::open(world.host(), world.settings_of(indexes), &world).unwrap();
    let both = [&*world.index(), &*other];
    let reason = || Installed::read(&world.home()).unwrap().revoked(digest.as_str()).map(str::to_owned);

    // From an index: no other one has a say.
    let granite = Request::parse("granite").unwrap();
    store(&both).add(&granite).unwrap();
    assert_eq!(reason(), None);
    store(&both).remove("granite").unwrap();
    // From a file: one that does not know the publisher has none either.
    let file = Request::File(package.clone());
    store(&both).add(&file).unwrap();
    store(&both).search(&[]).unwrap();
    assert_eq!(reason(), None);
    // One that lists the publisher's key has.
    let another = world.package(&manifest("another", "1.0.0"));
    publish(&other, &IndexChange { package: Some(&another), ..IndexChange::default() }, signed()).unwrap();
    store(&both).search(&[]).unwrap();
    assert_eq!(reason().as_deref(), Some("they say"));
    store(&both).remove("granite").unwrap();
    let error = store(&both).add(&file).unwrap_err();
    assert!(error.kind == Untrusted && error.to_string().contains("is revoked: they say"), "{error}");
    // A library that no package brought is the user's own, whatever an index says.
    assert_eq!(reason(), None);
    store(&both).add(&granite).unwrap();
    // A key that is trusted elsewhere is not enough.
    assert_eq!(reason(), None);
}

#[test]
fn one_index_is_one_however_its_location_is_spelt() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let spelt = |text: &str| text.replace("INDEX", world.index().to_str().unwrap());
    for spelling in ["INDEX", "INDEX/", "file://INDEX", "INDEX/.//"] {
        let settings = world.settings_of(&[spelt(spelling).as_ref()]);
        let mut store = Store::open(world.host(), settings, &world).unwrap();
        store.add(&Request::parse("granite").unwrap()).unwrap();
        assert_eq!(store.search(&[]).unwrap().len(), 1);
    }
    let said = world.said();
    assert!(said.len() == 1 && said[0].contains("first use of the index"), "{said:?}");
    let all: Vec<String> = ["INDEX", "file://INDEX/"].into_iter().map(spelt).collect();
    let settings = world.settings_of(&[all[0].as_ref(), all[1].as_ref()]);
    assert_eq!(Store::open(world.host(), settings, &world).unwrap().search(&[]).unwrap().len(), 1);
    // As it was written by a version that knew several.
    let text = fs::read_to_string(Trust::path(&world.home())).unwrap();
    let slashed = text.replace(&spelt("\"INDEX\""), &spelt("\"INDEX/\""));
    assert_ne!(slashed, text);
    fs::write(Trust::path(&world.home()), slashed).unwrap();
    world.store().search(&[]).unwrap();
    assert_eq!(world.said().len(), 1, "{:?}", world.said());
}

#[test]
fn a_key_is_trusted_aloud_only_after_its_signature_held() {
    let world = World::new();
    fs::write(world.index().join("index.pub"), SecretKey::generate().unwrap().public().as_str()).unwrap();
    assert_eq!(world.store().search(&[]).unwrap_err().kind, Untrusted);
    assert!(world.said().is_empty(), "{:?}", world.said());
    assert!(Trust::read(&world.home()).unwrap().indexes.is_empty());
}

#[test]
fn an_index_that_cannot_be_used_is_left_out_and_the_others_are_read() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    world.store().add(&Request::parse("granite").unwrap()).unwrap();
    let digest = manifest("granite", "1.0.0").artifacts[0].sha256.clone();
    world.revoke(&digest, "wrong results");
    let nowhere = world.root().join("nowhere");
    for indexes in [[&*nowhere, &*world.index()], [&*world.index(), &*nowhere]] {
        let mut store = Store::open(world.host(), world.settings_of(&indexes), &world).unwrap();
        assert_eq!(store.search(&[]).unwrap().len(), 1);
        let said = world.said();
        let last = said.last().unwrap();
        assert!(last.contains("nowhere is left out: ") && last.contains("has no index.pub"), "{said:?}");
    }
    assert_eq!(Installed::read(&world.home()).unwrap().revoked(digest.as_str()), Some("wrong results"));
    let mut store = Store::open(world.host(), world.settings_of(&[&nowhere]), &world).unwrap();
    assert_eq!(store.search(&[]).unwrap_err().kind, PackageErrorKind::Absent);
}
