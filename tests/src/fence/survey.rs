//! Every existing system call, made by each kind of child, and the table of the results in `docs/security.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use super::{KINDS, can_fence, said_by, users};
use crate::http::server::home;

const BEGIN: &str = "<!-- system calls: begin -->\n";
const END: &str = "<!-- system calls: end -->";
const COLUMNS: [&str; 4] = ["look", "prompt", "worker", "GPU"];
/// Calls with their allowed arguments, by the kinds of children that may make them.
type Allowed = BTreeMap<[bool; 4], BTreeMap<String, BTreeSet<String>>>;

/// Combines the surveys of all kinds.
fn allowed(said: &[Vec<String>; 4]) -> Allowed {
    let mut kinds: BTreeMap<(String, String), [bool; 4]> = BTreeMap::new();
    for (kind, lines) in said.iter().enumerate() {
        for line in lines {
            let (outcome, call) = line.split_once(' ').unwrap();
            let (name, what) = call.split_once(' ').unwrap_or((call, ""));
            let is_allowed = match outcome {
                "allowed" | "untried" => true,
                "refused" | "absent" => false,
                _ => panic!("the fence does not hold: {line}"),
            };
            kinds.entry((name.into(), what.into())).or_default()[kind] = is_allowed;
        }
    }
    let mut found = Allowed::new();
    for ((name, what), kinds) in kinds.into_iter().filter(|(_, kinds)| kinds.contains(&true)) {
        found.entry(kinds).or_default().entry(name).or_default().insert(what);
    }
    found
}

/// Calls allowed to all children come first.
fn table(allowed: &Allowed) -> String {
    let mut text = format!("| system calls | {} |\n|---|---|---|---|---|\n", COLUMNS.join(" | "));
    for (kinds, calls) in allowed.iter().rev() {
        let calls = calls.iter().map(|(name, what)| {
            let what: Vec<&str> = what.iter().map(String::as_str).filter(|what| !what.is_empty()).collect();
            if what.is_empty() { format!("`{name}`") } else { format!("`{name}` ({})", what.join("; ")) }
        });
        let marks = kinds.map(|is_allowed| if is_allowed { "yes" } else { "" });
        text.push_str(&format!("| {} | {} |\n", calls.collect::<Vec<_>>().join(", "), marks.join(" | ")));
    }
    text
}

#[cfg(target_arch = "x86_64")]
#[test]
fn children_may_make_the_system_calls_of_the_table_and_no_others() {
    if !can_fence() {
        return;
    }
    let mut tables = BTreeSet::new();
    for user in users() {
        let home = home();
        fs::create_dir(home.path().join("model")).unwrap();
        let said = KINDS.map(|kind| said_by("survey", kind, user, home.path()));
        for lines in &said {
            let without: Vec<&String> = lines.iter().filter(|line| line.starts_with("without")).collect();
            assert!(without.is_empty(), "as {user:?}: {without:?}");
            assert!(lines.len() > 471, "as {user:?}: {} calls", lines.len());
        }
        tables.insert(table(&allowed(&said)));
    }
    assert_eq!(tables.len(), 1, "users may make different calls: {tables:#?}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (known, after) = rest.split_once(END).unwrap();
    let found = tables.first().unwrap();
    if env::var_os("PENSIEVE_WRITE_TABLES").is_some() {
        fs::write(&page, format!("{before}{BEGIN}{found}{END}{after}")).unwrap();
        return;
    }
    assert!(
        known == found,
        "docs/security.md has another table. If all of this is meant, PENSIEVE_WRITE_TABLES=1 before this test writes it:\n{found}"
    );
}

#[test]
fn a_call_stands_in_the_row_of_those_who_may_make_it() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let all = lines(
        "allowed read\nallowed fcntl F_GETFD\nrefused fcntl F_SETOWN\nuntried exit\nabsent 435\nrefused socket local",
    );
    let mut gpu = all.clone();
    gpu[5] = "allowed socket local".into();
    let found = table(&allowed(&[all.clone(), all.clone(), all, gpu]));
    let rows: Vec<&str> = found.lines().skip(2).collect();
    assert_eq!(
        rows,
        ["| `exit`, `fcntl` (F_GETFD), `read` | yes | yes | yes | yes |", "| `socket` (local) |  |  |  | yes |"]
    );
}
