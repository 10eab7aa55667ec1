//! Help, completions and manual pages.

use super::Desk;

const VERBS: [&str; 12] =
    ["serve", "run", "launch", "pull", "models", "plugins", "new", "bench", "doctor", "completions", "man", "help"];

#[test]
fn help_lists_the_verbs_and_none_of_the_inner_ones() {
    let desk = Desk::new();
    let help = desk.run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for verb in VERBS {
        assert!(help.stdout.lines().any(|line| line.trim_start().starts_with(verb)), "{verb}: {}", help.stdout);
    }
    for inner in ["probe", "worker"] {
        assert!(!help.stdout.contains(inner), "{}", help.stdout);
    }
    for verb in ["serve", "run", "launch", "pull", "new", "bench", "completions", "man"] {
        let said = desk.run(&[verb, "--help"]);
        assert!(
            said.stdout.contains(&format!("Examples:\n  pensieve {verb}")) || said.stdout.contains("\n  pensieve "),
            "{said:?}"
        );
    }
    let bare = desk.run(&[]);
    assert_eq!(bare.code, Some(2));
    assert!(bare.stderr.contains("Usage: pensieve"), "{bare:?}");
}

#[test]
fn completions_and_manual_pages_know_the_flags() {
    let desk = Desk::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = desk.run(&["completions", shell]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stdout.contains("pensieve") && said.stdout.contains("concurrency"), "{shell}");
    }
    assert_eq!(desk.run(&["completions", "cmd"]).code, Some(2));
    let page = desk.run(&["man"]);
    assert!(page.stdout.contains(".TH pensieve 1") && page.stdout.contains("doctor"), "{}", page.stdout);
    let page = desk.run(&["man", "bench"]);
    assert!(page.stdout.contains("\\-\\-concurrency") && page.stdout.contains("pensieve\\-bench"), "{}", page.stdout);
    assert_eq!(desk.run(&["man", "worker"]).code, Some(2));
}
