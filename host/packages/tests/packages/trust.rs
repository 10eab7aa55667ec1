//! An installed plugin is replaced only by packages of its publisher's key, from its own index, and of the lock by the same file.

use std::{fs, path::Path};

use pensieve_packages::{Lock, PackageErrorKind, Request, SecretKey, Settings, Store, Trust, Update};

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
    world.change(Some(&successor("1.1.0")), &[]);
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
        let error = world.store().restore().unwrap_err();
        assert_eq!(error.kind, Damaged, "{error}");
        assert!(error.to_string().contains("is not the file that plugins.lock lists"), "{error}");
        assert!(!added.file.exists());
        fs::write(&path, &first).unwrap();
        world.web.borrow_mut().insert(url.into(), first);
        assert_eq!(world.store().restore().unwrap()[0].locked, added.locked);

        // With trusted publishers by now, of whom its publisher is none, the cache does not help.
        fs::remove_file(&added.file).unwrap();
        let bob = SecretKey::generate().unwrap().public();
        let settings = Settings { publishers: [("bob".to_owned(), bob)].into(), ..world.settings() };
        let error = Store::open(world.host(), settings, &world).unwrap().restore().unwrap_err();
        assert!(error.to_string().contains("not among plugins.publishers"), "{error}");
        assert!(!added.file.exists());
    }
}
