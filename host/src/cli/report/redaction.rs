//! Keeps personal data out of reports. Sections measure none, but messages of the system, a compiler or a plugin may quote a
//! path, and a path has its owner's name.

use serde_json::Value;
use std::{
    env,
    path::{Path, PathBuf},
};

use crate::config::{Config, Source};

/// Names shorter than this would be found everywhere.
const NAME_CHARS_MIN: usize = 3;
/// Members whose texts are names out of our own code, a plugin or a chip, in which a user's name is a coincidence.
const NAMES_OF_OURS: [&str; 16] = [
    "architecture",
    "case",
    "chip",
    "device",
    "format",
    "id",
    "kernel",
    "law",
    "library",
    "name",
    "op",
    "outcome",
    "state",
    "system",
    "version",
    "weights",
];
/// Folders at the root that are the same on every machine.
const OF_THE_SYSTEM: [&str; 10] = ["usr", "System", "Library", "proc", "sys", "dev", "lib", "lib64", "bin", "etc"];

/// Texts that are replaced, longest first.
#[derive(Debug, Default)]
pub(super) struct Redaction {
    paths: Vec<(String, &'static str)>,
    /// Replaced as whole words, in whatever case.
    names: Vec<(String, &'static str)>,
}

impl Redaction {
    /// `models` are the checkpoints' files or folders.
    pub(super) fn of_this_machine(config: &Config, models: &[PathBuf]) -> Self {
        let mut redaction = Self::default();
        let home = env::var_os("HOME").map(PathBuf::from);
        redaction.path(home.as_deref(), "<home>");
        redaction.path(Some(&config.home), "<pensieve>");
        for folder in &config.plugins.folders {
            redaction.path(Some(folder), "<plugins>");
            redaction.path(std::path::absolute(folder).ok().as_deref(), "<plugins>");
        }
        redaction.path(env::current_dir().ok().as_deref(), "<here>");
        redaction.path(env::current_exe().ok().as_deref().and_then(Path::parent), "<program>");
        redaction.path(Some(&env::temp_dir()), "<temporary>");
        let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(|name| env::var(name).ok());
        let of_home = home.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned);
        users.chain(of_home).for_each(|user| redaction.name(&user, "<user>"));
        for host in super::system::host_names() {
            redaction.name(&host, "<host>");
            redaction.name(host.split('.').next().unwrap_or_default(), "<host>");
        }
        for model in &config.models {
            if let Source::Path(path) = &model.source {
                redaction.model(path);
                redaction.name(&model.source.id(), "<model>");
            }
        }
        models.iter().for_each(|path| redaction.model(path));
        redaction.sort();
        redaction
    }

    /// Longer ones go first; of the same path, those that were added first.
    fn sort(&mut self) {
        self.paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        self.names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    }

    /// A checkpoint: its path, its folder, and its name by itself.
    fn model(&mut self, path: &Path) {
        for path in [Some(path.to_path_buf()), path.canonicalize().ok()].into_iter().flatten() {
            self.path(path.parent(), "<models>");
            self.path(Some(&path), "<model>");
            self.name(path.file_name().and_then(|name| name.to_str()).unwrap_or_default(), "<model>");
        }
    }

    /// A folder or file, and what it is behind its links.
    fn path(&mut self, path: Option<&Path>, instead: &'static str) {
        let Some(path) = path else { return };
        for path in [Some(path.to_path_buf()), path.canonicalize().ok()].into_iter().flatten() {
            // The root is part of every path, and no secret; a relative path may be any word.
            if let Some(text) = path.to_str().filter(|text| text.len() > 1 && path.is_absolute()) {
                self.paths.push((text.trim_end_matches('/').to_owned(), instead));
            }
        }
    }

    fn name(&mut self, name: &str, instead: &'static str) {
        if name.chars().count() >= NAME_CHARS_MIN {
            self.names.push((name.to_owned(), instead));
        }
    }

    /// For free text.
    pub(super) fn apply(&self, text: &str) -> String {
        let text = self.without_paths(text);
        self.names.iter().fold(text, |text, (name, instead)| replace_whole(&text, name, instead, is_in_word, true))
    }

    fn without_paths(&self, text: &str) -> String {
        let known = self
            .paths
            .iter()
            .fold(text.to_owned(), |text, (path, instead)| replace_whole(&text, path, instead, is_in_file_name, false));
        without_unknown_paths(&known)
    }

    /// All texts of a value, keys aside, which are our own words.
    pub(super) fn apply_to(&self, value: &mut Value) {
        self.apply_to_member("", value);
    }

    fn apply_to_member(&self, key: &str, value: &mut Value) {
        match value {
            Value::String(text) if NAMES_OF_OURS.contains(&key) => *text = self.without_paths(text),
            Value::String(text) => *text = self.apply(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.apply_to_member(key, value)),
            Value::Object(members) => members.iter_mut().for_each(|(key, value)| self.apply_to_member(key, value)),
            _ => {}
        }
    }
}

fn is_in_word(letter: char) -> bool {
    letter.is_alphanumeric()
}

fn is_in_file_name(letter: char) -> bool {
    letter.is_alphanumeric() || "-_".contains(letter)
}

/// Replaces a text where no letter of the same word goes on before or after it.
fn replace_whole(text: &str, sought: &str, instead: &str, is_in: fn(char) -> bool, any_case: bool) -> String {
    let (mut replaced, mut rest, mut previous) = (String::new(), text, None);
    while let Some(letter) = rest.chars().next() {
        let after = if previous.is_some_and(is_in) { None } else { after_start(rest, sought, any_case) };
        if let Some(after) = after.filter(|after| !after.chars().next().is_some_and(is_in)) {
            replaced.push_str(instead);
            (rest, previous) = (after, sought.chars().next_back());
        } else {
            replaced.push(letter);
            (rest, previous) = (&rest[letter.len_utf8()..], Some(letter));
        }
    }
    replaced
}

/// The rest of a text that begins with `start`.
fn after_start<'a>(text: &'a str, start: &str, any_case: bool) -> Option<&'a str> {
    if !any_case {
        return text.strip_prefix(start);
    }
    let mut letters = text.chars();
    let is_start =
        start.chars().all(|letter| letters.next().is_some_and(|of| of.to_lowercase().eq(letter.to_lowercase())));
    is_start.then_some(letters.as_str())
}

/// Replaces absolute paths that are not known: to the quote that closes one, else to a space or a mark.
fn without_unknown_paths(text: &str) -> String {
    let (mut replaced, mut rest, mut previous) = (String::new(), text, None);
    while let Some(letter) = rest.chars().next() {
        // Not in 'tokens/s' nor 'https://', and not behind a placeholder.
        let is_within = previous.is_some_and(|letter| is_in_file_name(letter) || "./>~".contains(letter));
        let begins = letter == '/'
            && (!is_within || replaced.ends_with("file://"))
            && rest[1..].chars().next().is_some_and(|letter| is_in_file_name(letter) || letter == '.');
        let length = if begins { path_length(rest, previous) } else { letter.len_utf8() };
        let (part, after) = rest.split_at(length);
        replaced.push_str(if begins && !is_of_the_system(part) { "<path>" } else { part });
        (rest, previous) = (after, part.chars().next_back());
    }
    replaced
}

fn path_length(text: &str, previous: Option<char>) -> usize {
    if let Some(quote) = previous.filter(|letter| "'\"`".contains(*letter)) {
        let ends = |at: &usize| !text[at + 1..].chars().next().is_some_and(char::is_alphanumeric);
        if let Some(at) = text.match_indices(quote).map(|(at, _)| at).find(ends) {
            return at;
        }
    }
    text.find(|letter: char| letter.is_whitespace() || "'\"`:,;()[]{}<>|".contains(letter)).unwrap_or(text.len())
}

fn is_of_the_system(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    parts.next().is_some_and(|first| OF_THE_SYSTEM.contains(&first)) && !parts.any(|part| part == "..")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_and_names_are_replaced_in_all_texts() {
        let mut redaction = Redaction::default();
        redaction.path(Some(Path::new("/Users/alice")), "<home>");
        redaction.name("alice", "<user>");
        redaction.name("alices-mac.local", "<host>");
        redaction.name("al", "<user>");
        redaction.sort();
        let mut value = json!({ "a": ["/Users/alice/x.metal:3: error", 4], "b": { "c": "alice@alices-mac.local, malice, alice2" } });
        redaction.apply_to(&mut value);
        let expected = json!({ "a": ["<home>/x.metal:3: error", 4], "b": { "c": "<user>@<host>, malice, alice2" } });
        assert_eq!(value, expected);
    }

    #[test]
    fn this_machine_has_something_to_hide() {
        let redaction = Redaction::of_this_machine(&Config::new(Path::new("/somewhere/secret")), &[]);
        let here = env::current_dir().unwrap();
        let said = redaction.apply(&format!("no '{}/x', no '/somewhere/secret/y'", here.display()));
        assert!(!said.contains("secret") && !said.contains(here.to_str().unwrap()), "{said}");
    }

    #[test]
    fn a_model_anywhere_is_named_nowhere() {
        let mut config = Config::new(Path::new("/somewhere"));
        let path = PathBuf::from("/opt/acme merger plans/acme.gguf");
        config.models = vec![crate::config::Model::new("acme", Source::Path(path.clone()))];
        config.plugins.folders = vec![PathBuf::from("/srv/acme plugins")];
        let redaction = Redaction::of_this_machine(&config, &[path]);
        for (said, expected) in [
            ("no /opt/acme merger plans/acme.gguf here", "no <model> here"),
            ("in /opt/acme merger plans/x: no", "in <models>/x: no"),
            ("acme.gguf is torn; model 'Acme' failed", "<model> is torn; model '<model>' failed"),
            ("/srv/acme plugins/libx.so", "<plugins>/libx.so"),
        ] {
            assert_eq!(redaction.apply(said), expected);
        }
    }

    #[test]
    fn absolute_paths_that_nobody_named_are_replaced_but_for_the_system_s() {
        for (said, expected) in [
            ("open /Volumes/NAME/x.gguf: no", "open <path>: no"),
            ("'/Volumes/My Disk/x.gguf' is torn", "'<path>' is torn"),
            ("file:///opt/a, (/opt/b) /opt/a:/opt/b", "file://<path>, (<path>) <path>:<path>"),
            (
                "/usr/lib/libc.so, /System/x, /proc/1 and /dev/full",
                "/usr/lib/libc.so, /System/x, /proc/1 and /dev/full",
            ),
            ("/usr/../opt/x", "<path>"),
            (
                "12 tokens/s, a / b, https://example.org/x, <home>/x",
                "12 tokens/s, a / b, https://example.org/x, <home>/x",
            ),
        ] {
            assert_eq!(without_unknown_paths(said), expected);
        }
    }

    #[test]
    fn users_are_replaced_in_any_case_but_not_in_names_of_devices() {
        let mut redaction = Redaction::default();
        redaction.name("cpu", "<user>");
        redaction.path(Some(Path::new("/opt/a")), "<models>");
        let mut value = json!({ "device": "cpu", "why": "CPU's file, /opt/a/x, /opt/a-b/x", "log": ["Cpu"] });
        redaction.apply_to(&mut value);
        let expected = json!({ "device": "cpu", "why": "<user>'s file, <models>/x, <path>", "log": ["<user>"] });
        assert_eq!(value, expected);
    }
}
