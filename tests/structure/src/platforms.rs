//! What differs between Linux and macOS stands where it is known to: a test that writes out one system's way passes on the
//! other without having seen anything.

use std::{fs, path::PathBuf};

use crate::{root, unsafe_code};

/// What one system alone has, and the files of tests that may name it: those that are for one system, or say what holds on
/// the other.
const WAYS: [(&str, &[&str]); 3] = [
    (
        "\"/proc",
        &[
            "plugins/attacks_on_linux.rs",
            "src/fleet/kills.rs",
            "src/http/in_process.rs",
            "src/processes.rs",
            "src/prompts.rs",
        ],
    ),
    // Commands of the documentation are run with the suffix of this system.
    (".so\"", &["src/docs/commands.rs", "src/docs/mod.rs", "src/http/in_process.rs"]),
    (".dylib\"", &[]),
];
/// A file that is not there has the same name everywhere.
const NOWHERE: &str = "\"/nowhere";

fn sources() -> Vec<(String, String)> {
    let tests = root().join("tests");
    let mut open: Vec<PathBuf> = ["src", "plugins", "fuzz"].map(|folder| tests.join(folder)).into();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(&tests).unwrap().to_str().unwrap().to_owned();
            found.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    found.sort();
    found
}

/// Complaints about the sources, for a person.
fn written_out(sources: &[(String, String)]) -> Vec<String> {
    let of_linux = |text: &str| text.contains("#![cfg(target_os = \"linux\")]");
    let mut wrong = Vec::new();
    for (file, text) in sources.iter().filter(|(_, text)| !of_linux(text)) {
        let lines = || text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.contains(NOWHERE));
        for (way, known) in WAYS {
            let is_known = known.contains(&file.as_str());
            let names_it = lines().any(|line| line.contains(way));
            match (names_it, is_known) {
                (true, false) => wrong.push(format!(
                    "{file} writes out `{way}`: use processes::{{all, memory}} or artifacts::library_name"
                )),
                (false, true) => wrong.push(format!("{file} no longer names `{way}`: take it off the list")),
                _ => {}
            }
        }
    }
    wrong
}

#[test]
fn tests_ask_the_system_for_its_way() {
    let sources = sources();
    assert!(sources.iter().any(|(file, _)| file == "plugins/hostile.rs"), "{}", sources.len());
    assert_eq!(written_out(&sources), [] as [String; 0]);
}

#[test]
fn a_test_that_writes_out_one_systems_way_is_found() {
    let of = |file: &str, line: &str| written_out(&[(file.to_owned(), format!("//! A test.\n{line}\n"))]).len();
    for line in ["fs::read(\"/proc/self/status\")", "home.put(\"libx.so\", &bytes)", "format!(\"/proc/{pid}/stat\")"] {
        assert_eq!(of("src/new.rs", line), 1, "{line}");
    }
    let harmless =
        ["// \"/proc\"", "open(\"/nowhere/x.so\")", "library_name(\"x\")", "#![cfg(target_os = \"linux\")]\n\"/proc\""];
    for line in harmless {
        assert_eq!(of("src/new.rs", line), 0, "{line}");
    }
    assert_eq!(of("src/processes.rs", "nothing"), 1);
}

/// Steps of a workflow that compute on a GPU.
fn unguarded(workflow: &str) -> Vec<&str> {
    let steps =
        workflow.split("      - ").skip(1).filter(|step| step.contains("--device metal") || step.contains("metal:0"));
    steps.filter(|step| !step.contains("if: steps.gpu.outputs.counts == 'true'")).collect()
}

#[test]
fn results_of_a_paravirtualised_gpu_do_not_count() {
    let workflow = fs::read_to_string(root().join(".github/workflows/macos.yml")).unwrap();
    assert!(workflow.contains("supportsFamily(.apple7)") && workflow.contains("--device metal:0"));
    assert_eq!(unguarded(&workflow), [""; 0]);
    let (guard, removed) =
        ("        if: steps.gpu.outputs.counts == 'true'\n", workflow.replace("steps.gpu.outputs.counts ==", "x"));
    assert!(workflow.matches(guard).count() > 2 && unguarded(&removed).len() > 2);
}

/// The lowest macOS that binaries say they need.
fn lowest_macos() -> (u32, u32) {
    let config = fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    let line = config.lines().find_map(|line| line.strip_prefix("MACOSX_DEPLOYMENT_TARGET = ")).unwrap();
    version(line.trim().trim_matches('"')).unwrap()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Uses of `available!` in a source that are constantly true: the compiler takes the lowest version for granted.
fn taken_for_granted(text: &str, lowest: (u32, u32)) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_constant = |line: &&str| {
        let mut arguments = line.split("available!(").skip(1).filter_map(|rest| rest.split(')').next());
        arguments.any(|arguments| {
            let versions = arguments.split(',').filter_map(|argument| argument.split_once('='));
            let of_macos = versions.filter(|(system, _)| system.trim() == "macos");
            of_macos.map(|(_, text)| version(text)).any(|asked| asked.is_none_or(|asked| asked <= lowest))
        })
    };
    lines.filter(is_constant).collect()
}

#[test]
fn no_source_asks_for_a_macos_that_every_build_requires() {
    let lowest = lowest_macos();
    assert!(lowest >= (11, 0), "{lowest:?}");
    for path in unsafe_code::FOLDERS.iter().flat_map(|folder| unsafe_code::sources(root().join(folder))) {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(taken_for_granted(&text, lowest), [""; 0], "{}: ask for a class instead", path.display());
    }
}

#[test]
fn a_check_that_is_constantly_true_is_found() {
    for line in ["if objc2::available!(macos = 15.0) {", "available!(ios = 18.0, macos = 14)", "available!(macos = X)"]
    {
        assert_eq!(taken_for_granted(line, (15, 0)), [line], "{line}");
    }
    for line in
        ["available!(macos = 15.1)", "available!(macos = 26)", "// available!(macos = 11.0)", "available!(ios = 9)"]
    {
        assert_eq!(taken_for_granted(line, (15, 0)), [""; 0], "{line}");
    }
}
