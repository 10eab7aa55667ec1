//! What is built in besides this tree: licences, sources and versions as `deny.toml` allows them, without its tool and without a
//! network.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};
use toml::Table;

use crate::{root, tidy::metadata};

fn table(name: &str) -> Table {
    let root = root();
    fs::read_to_string(root.join(name)).unwrap().parse().unwrap()
}

fn texts(value: &toml::Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Whether an SPDX expression can be kept to with these licences. Where both words stand without brackets, `AND` binds
/// more strongly.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // What a whole pair of brackets holds becomes one word that is allowed or not.
    if let Some(close) = expression.find(')')
        && let Some(open) = expression[..close].rfind('(')
    {
        let inner = if is_allowed(&expression[open + 1..close], allowed) { " *allowed* " } else { " *refused* " };
        return is_allowed(&format!("{}{inner}{}", &expression[..open], &expression[close + 1..]), allowed);
    }
    // Older manifests write a slash.
    let expression = expression.replace('/', " OR ");
    expression.split(" OR ").any(|part| {
        part.split(" AND ").map(str::trim).all(|licence| licence == "*allowed*" || allowed.contains(licence))
    })
}

#[test]
fn every_licence_is_one_that_is_allowed() {
    let deny = table("deny.toml");
    let allowed = texts(&deny["licenses"]["allow"]);
    let metadata = metadata();
    let mut refused = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let mut allowed = allowed.clone();
        for exception in deny["licenses"]["exceptions"].as_array().unwrap() {
            if exception["crate"].as_str() == Some(name) {
                allowed.extend(texts(&exception["allow"]));
            }
        }
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence, &allowed) {
            refused.push(format!("{name}: {licence}"));
        }
    }
    assert!(refused.is_empty(), "not in deny.toml: {refused:#?}");
}

#[test]
fn every_source_is_the_registry_and_every_second_version_is_known() {
    let (deny, lock) = (table("deny.toml"), table("Cargo.lock"));
    let sources = texts(&deny["sources"]["allow-registry"]);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if let Some(source) = package.get("source").and_then(toml::Value::as_str) {
            let registry = source.strip_prefix("registry+").unwrap_or("none");
            assert!(sources.contains(registry), "{name} comes from {source}");
            assert!(package.get("checksum").is_some(), "{name} has no checksum");
        }
        versions.entry(name).or_default().insert(package["version"].as_str().unwrap());
    }
    let skipped: BTreeSet<(&str, &str)> = deny["bans"]["skip"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skip| skip["crate"].as_str().unwrap().split_once('@').expect("name@version"))
        .collect();
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let found: BTreeSet<(&str, &str)> = several
        // The newest one is what there should be alone.
        .flat_map(|(name, all)| all.iter().filter(|version| **version != newest(all)).map(|version| (*name, *version)))
        .collect();
    let new: Vec<_> = found.difference(&skipped).collect();
    let gone: Vec<_> = skipped.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "second versions that deny.toml does not skip: {new:?}; skips in vain: {gone:?}"
    );
}

/// Crates that read a language in which somebody else may write: expressions, grammars, templates, tokenizers' patterns, programs.
/// Their input comes from checkpoints and clients, so they belong in limited children.
const INTERPRETERS: [&str; 37] = [
    "aho-corasick",
    "cel-interpreter",
    "derivre",
    "fancy-regex",
    "globset",
    "grep-regex",
    "handlebars",
    "ignore",
    "jaq-core",
    "jmespath",
    "jsonpath-rust",
    "jsonschema",
    "lalrpop",
    "lalrpop-util",
    "lark",
    "liquid",
    "llguidance",
    "logos",
    "minijinja",
    "minijinja-contrib",
    "mlua",
    "nom",
    "onig",
    "outlines-core",
    "pcre2",
    "pest",
    "regex",
    "regex-automata",
    "regex-lite",
    "regex-syntax",
    "rhai",
    "serde_json_path",
    "tera",
    "tokenizers",
    "toktrie",
    "wasmtime",
    "winnow",
];

/// The packages that each package links, as resolved with the features of this workspace.
fn linked() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let list = |value: &serde_json::Value| value.as_array().unwrap().clone();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let names: BTreeMap<String, String> =
        list(&metadata["packages"]).iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
    let mut linked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let all = list(&node["deps"]);
        let normal = all.iter().filter(|dep| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()));
        let found = normal.map(|dep| names[&text(&dep["pkg"])].clone());
        // Two versions of a package count as one.
        linked.entry(names[&text(&node["id"])].clone()).or_default().extend(found);
    }
    linked
}

/// The ways from a package to an interpreter, each as names with arrows.
fn ways_to_interpreters(linked: &BTreeMap<String, BTreeSet<String>>, package: &str) -> Vec<String> {
    let mut open = vec![(package.to_owned(), package.to_owned())];
    let (mut seen, mut ways) = (BTreeSet::new(), Vec::new());
    while let Some((name, way)) = open.pop() {
        for next in linked.get(&name).into_iter().flatten().filter(|next| seen.insert((*next).clone())) {
            let way = format!("{way} -> {next}");
            if INTERPRETERS.contains(&next.as_str()) {
                ways.push(way.clone());
            }
            open.push((next.clone(), way));
        }
    }
    ways
}

#[test]
fn what_listens_to_clients_links_nothing_that_interprets_a_language() {
    let linked = linked();
    for package in ["pensieve-server", "pensieve-protocol"] {
        let ways = ways_to_interpreters(&linked, package);
        assert!(ways.is_empty(), "the server's own crates interpret nothing of a stranger: {ways:#?}");
    }
    // The children do, each its own.
    let found = |package: &str, interpreter: &str| {
        ways_to_interpreters(&linked, package).iter().any(|way| way.ends_with(&format!(" -> {interpreter}")))
    };
    for (package, interpreter, links) in [
        ("pensieve-prompt", "regex-syntax", true),
        ("pensieve-prompt", "minijinja", true),
        ("pensieve-prompt", "tokenizers", true),
        ("pensieve-prompt", "llguidance", true),
        ("pensieve-worker", "llguidance", true),
        ("pensieve-worker", "minijinja", false),
        ("pensieve-grammar", "llguidance", true),
        ("pensieve-grammar", "minijinja", false),
        ("pensieve-grammar", "tokenizers", false),
    ] {
        assert_eq!(found(package, interpreter), links, "{package} and {interpreter}");
    }
    // The program has all of it; the promise is about the crates that its server is made of.
    assert!(found("pensieve", "regex-syntax") && found("pensieve", "llguidance"));
}

#[test]
fn an_interpreter_far_below_the_server_is_found() {
    let edges =
        [("pensieve-server", "tracing"), ("tracing", "matchers"), ("matchers", "regex-automata"), ("other", "regex")];
    let mut linked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        linked.entry(from.to_owned()).or_default().insert(to.to_owned());
    }
    let way = "pensieve-server -> tracing -> matchers -> regex-automata";
    assert_eq!(ways_to_interpreters(&linked, "pensieve-server"), [way]);
    linked.remove("matchers");
    assert!(ways_to_interpreters(&linked, "pensieve-server").is_empty());
}

fn newest<'a>(versions: &BTreeSet<&'a str>) -> &'a str {
    let numbers =
        |version: &str| -> Vec<u64> { version.split(['.', '-', '+']).filter_map(|part| part.parse().ok()).collect() };
    versions.iter().copied().max_by_key(|version| numbers(version)).unwrap()
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed = ["MIT", "ISC", "Zlib"].map(str::to_owned).into();
    for (expression, expect) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND ISC", true),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("(MIT OR GPL-3.0) AND GPL-2.0", false),
        ("GPL-2.0 OR (MIT AND (Zlib OR GPL-3.0))", true),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expect, "{expression}");
    }
}
