//! Every function of the SDK that a host calls goes through `guard`: elsewhere a panic would end the process, and what Metal
//! leaves for an autorelease pool would stay until the process ends.

use std::collections::BTreeMap;

use crate::{root, unsafe_code};

/// The functions that open a pool and catch panics.
const GUARDS: [&str; 4] = ["guard", "own", "discard", "caught"];

/// Entries without a guard of their own. They run no author's code, and none of Metal's.
const WITHOUT: [(&str, &str); 7] = [
    ("adapter_format", "looks into a list"),
    ("architecture", "looks into a list"),
    ("constructor", "calls `construct`"),
    ("describe_sampler", "calls the guarded function of this name"),
    ("extension", "looks into a list"),
    ("manifest", "copies what `construct` has built"),
    ("sampler", "looks into a list"),
];
/// Guarded functions that such entries call.
const CALLED: [&str; 2] = ["construct", "describe_sampler"];

/// A function's name and body.
type Function<'a> = (&'a str, &'a str);

/// From a brace to the one that closes it.
fn block(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return &text[..=at],
            '}' => depth -= 1,
            _ => {}
        }
    }
    panic!("a brace is not closed in {text}")
}

/// The functions that begin with this word.
fn functions<'a>(text: &'a str, word: &str) -> Vec<Function<'a>> {
    let starts = text.match_indices(word).map(|(at, _)| &text[at + word.len()..]);
    let function = |rest: &'a str| {
        let (name, _) = rest.split_once(['(', '<'])?;
        let is_name = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        is_name.then(|| (name, block(&rest[rest.find('{').unwrap()..])))
    };
    starts.filter_map(function).collect()
}

/// All that a host calls: functions with C's conventions, and methods of the contract's objects.
fn entries(text: &str) -> Vec<Function<'_>> {
    let impls = text.match_indices("\nimpl api::").map(|(at, _)| block(&text[at + text[at..].find('{').unwrap()..]));
    functions(text, "extern \"C\" fn ").into_iter().chain(impls.flat_map(|text| functions(text, "\n    fn "))).collect()
}

fn is_guarded(body: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
    let calls = |name: &&str| {
        let call = format!("{name}(");
        body.match_indices(&call).any(|(at, _)| !body[..at].ends_with(is_letter))
    };
    GUARDS.iter().any(calls)
}

/// The source without its tests and comments.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.fold("\n".to_owned(), |code, line| code + line + "\n")
}

/// Entries of a source that are not guarded, but for those that are known.
fn unguarded(code: &str) -> Vec<&str> {
    let entries = entries(code).into_iter();
    let wrong = entries.filter(|(name, body)| !is_guarded(body) && !WITHOUT.iter().any(|(known, _)| known == name));
    wrong.map(|(name, _)| name).collect()
}

#[test]
fn every_entry_of_a_plugin_is_guarded() {
    let export = root().join("sdk/src/export");
    let paths = unsafe_code::sources(export.clone()).into_iter().filter(|path| !path.ends_with("guard.rs"));
    let code = paths.map(|path| (path.clone(), code(&std::fs::read_to_string(path).unwrap())));
    let code: BTreeMap<_, _> = code.collect();
    for (path, code) in &code {
        assert_eq!(unguarded(code), [""; 0], "{}: what a host calls goes through `guard`", path.display());
    }
    let all: Vec<&str> = code.values().flat_map(|code| entries(code)).map(|(name, _)| name).collect();
    assert!(all.len() > 30, "{all:?}");
    for (name, why) in WITHOUT {
        assert!(all.contains(&name), "'{name}' is no entry: take it off the list ({why})");
    }
    for called in CALLED {
        let mut found = code
            .values()
            .flat_map(|code| functions(code, "\npub fn ").into_iter().chain(functions(code, "\npub(super) fn ")));
        let (_, body) = found.find(|(name, _)| *name == called).unwrap();
        assert!(is_guarded(body), "{called}");
    }
}

#[test]
fn an_entry_without_a_guard_is_found() {
    let found = |text: &str| unguarded(&code(text)).join(" ");
    assert_eq!(found("unsafe extern \"C\" fn fork(model: X) -> R {\n    copying(model)?.fork()\n}"), "fork");
    assert_eq!(
        found(
            "impl api::Stage for S {\n    fn sample(&mut self) -> R {\n        // guard(\n        self.0.sample()\n    }\n}"
        ),
        "sample"
    );
    assert_eq!(
        found("extern \"C\" fn one() {\n    unguarded(2)\n}\nextern \"C\" fn two() {\n    guard(\"x\", || Ok(1))\n}"),
        "one"
    );
    for guarded in [
        "extern \"C\" fn close() {\n    let _ = guard(\"close\", || Ok(format!(\"{x}\")));\n}",
        "pub get: unsafe extern \"C\" fn(model: X) -> R,",
        "impl api::Model for M {\n    fn extension(&self) -> O {\n        own(|| None)\n    }\n}",
        "impl Model for M {\n    fn forward(&self) {}\n}",
        "#[cfg(test)]\nmod tests {\n    extern \"C\" fn helper() {}\n}",
    ] {
        assert_eq!(found(guarded), "", "{guarded}");
    }
}
