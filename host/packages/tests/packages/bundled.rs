//! Newer releases of the plugins that came with the program, and packages that lie elsewhere than their index.

use std::fs;

use pensieve_packages::{Bundled, IndexChange, PackageErrorKind, Request, Settings, Store, Update};

use crate::world::{World, manifest};

/// A program that came with these versions of the plugin `granite`, and of `phi`.
fn with<'w>(world: &'w World, granite: &str) -> Store<'w> {
    let versions = [("granite", granite), ("phi", "1.0.0")];
    let bundled = Bundled {
        // As a user may write it.
        index: format!("{}/", world.index().display()),
        variant: "cpu".into(),
        plugins: versions.map(|(name, version)| (name.to_owned(), version.parse().unwrap())).into(),
    };
    Store::open(world.host(), Settings { bundled, ..world.settings() }, world).unwrap()
}

fn outdated(store: &mut Store<'_>) -> Vec<String> {
    let outdated = store.outdated().unwrap();
    outdated.into_iter().map(|one| format!("{} {} -> {}", one.name, one.installed, one.newest)).collect()
}

#[test]
fn a_newer_release_stands_in_for_the_programs_plugin_until_the_program_is_newer() {
    let world = World::new();
    for version in ["1.0.0", "1.1.0", "2.0.0-beta.1"] {
        world.publish(&manifest("granite", version));
    }
    world.publish(&manifest("phi", "1.0.0"));
    world.publish(&manifest("other", "1.0.0"));
    assert_eq!(outdated(&mut with(&world, "1.1.0")), [""; 0]);
    assert_eq!(outdated(&mut with(&world, "1.0.0")), ["granite 1.0.0 -> 1.1.0"], "no pre-release for a stable one");
    let updates = with(&world, "1.0.0").update(&[]).unwrap();
    let [Update::Updated(added)] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(added.before.as_ref().unwrap().to_string(), "1.0.0");
    let library = world.home().join("plugins/libgranite.so");
    assert_eq!(fs::read(&library).unwrap(), b"library of granite 1.1.0 for linux-x86_64 (cpu)");
    assert_eq!(outdated(&mut with(&world, "1.0.0")), [""; 0]);
    assert!(matches!(&with(&world, "1.0.0").update(&["granite".into()]).unwrap()[..], [Update::Newest(_)]));
    // The same version is no reason to remove it, and neither is a program that has another variant.
    assert!(matches!(&with(&world, "1.1.0").update(&[]).unwrap()[..], [Update::Newest(_)]));
    let updates = with(&world, "1.2.0").update(&[]).unwrap();
    let [Update::Superseded { locked, by }] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!((locked.version.to_string(), by.to_string()), ("1.1.0".into(), "1.2.0".into()));
    assert!(!library.exists());
    assert!(world.said().is_empty() || !world.said().concat().contains("changed since"), "{:?}", world.said());
    // A name that is the program's is known, whether there is something newer or not; others are not.
    assert!(with(&world, "1.2.0").update(&["phi".into()]).unwrap().is_empty());
    assert!(world.said().last().unwrap().contains("phi 1.0.0, which came with the program, is the newest"));
    let unknown = with(&world, "1.2.0").update(&["other".into()]).unwrap_err();
    assert_eq!(unknown.kind, PackageErrorKind::Absent);
}

#[test]
fn what_a_user_added_from_elsewhere_or_in_another_variant_stays() {
    let world = World::new();
    world.publish(&manifest("granite", "1.1.0"));
    let cuda = pensieve_packages::Host { variant: Some("cuda".into()), ..world.host_of("linux-x86_64", &["cuda"]) };
    world.store_of(cuda).add(&Request::parse("granite").unwrap()).unwrap();
    let updates = with(&world, "1.2.0").update(&[]).unwrap();
    assert!(matches!(&updates[..], [Update::Newest(locked)] if locked.variant == "cuda"), "{updates:?}");
    world.store().remove("granite").unwrap();
    let package = world.package(&manifest("granite", "1.0.0"));
    world.store().add(&Request::File(package)).unwrap();
    assert!(with(&world, "1.2.0").update(&[]).unwrap().is_empty());
    assert_eq!(with(&world, "1.2.0").lock().find("granite").unwrap().version.to_string(), "1.0.0");
}

#[test]
fn a_package_may_lie_elsewhere_than_its_index() {
    let world = World::new();
    let package = world.package(&manifest("granite", "1.0.0"));
    let at = |location| IndexChange { package: Some(&package), location: Some(location), ..IndexChange::default() };
    for location in ["http://example.org", "../elsewhere", ""] {
        let refused = world.try_change(&at(location), false).unwrap_err();
        assert!(refused.to_string().contains("without a usable package"), "{location}: {refused}");
    }
    world.change(&at("https://example.org/v1/"));
    assert!(!world.index().join("granite-1.0.0.pensieve").exists());
    let url = "https://example.org/v1/granite-1.0.0.pensieve";
    let add = || world.store().add(&Request::parse("granite").unwrap());
    assert_eq!(add().unwrap_err().kind, PackageErrorKind::Network);
    world.web.borrow_mut().insert(url.to_owned(), fs::read(&package).unwrap());
    assert!(add().unwrap().is_new);
}
