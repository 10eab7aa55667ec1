//! Keeps personal data out of reports. Sections measure none, but messages of the system, a compiler or a plugin may quote a
//! path, and a path has its owner's name.

use serde_json::Value;
use std::{
    env,
    path::{Path, PathBuf},
};

use crate::config::Config;

/// Names shorter than this would be found everywhere.
const NAME_CHARS_MIN: usize = 3;

/// Texts that are replaced, longest first.
#[derive(Debug, Default)]
pub(super) struct Redaction {
    paths: Vec<(String, &'static str)>,
    /// Replaced as whole words.
    names: Vec<(String, &'static str)>,
}

impl Redaction {
    pub(super) fn of_this_machine(config: &Config) -> Self {
        let mut redaction = Self::default();
        let home = env::var_os("HOME").map(PathBuf::from);
        redaction.path(home.as_deref(), "<home>");
        redaction.path(Some(&config.home), "<pensieve>");
        for folder in &config.plugins.folders {
            redaction.path(Some(folder), "<plugins>");
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
        redaction.paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        redaction.names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        redaction
    }

    /// A folder, and what it is behind its links.
    fn path(&mut self, path: Option<&Path>, instead: &'static str) {
        let Some(path) = path else { return };
        for path in [Some(path.to_path_buf()), path.canonicalize().ok()].into_iter().flatten() {
            // The root is part of every path, and no secret.
            if let Some(text) = path.to_str().filter(|text| text.len() > 1) {
                self.paths.push((text.trim_end_matches('/').to_owned(), instead));
            }
        }
    }

    fn name(&mut self, name: &str, instead: &'static str) {
        if name.chars().count() >= NAME_CHARS_MIN {
            self.names.push((name.to_owned(), instead));
        }
    }

    pub(super) fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (path, instead) in &self.paths {
            text = text.replace(path, instead);
        }
        for (name, instead) in &self.names {
            text = replace_word(&text, name, instead);
        }
        text
    }

    /// All texts of a value, keys aside, which are our own words.
    pub(super) fn apply_to(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.apply(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.apply_to(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.apply_to(value)),
            _ => {}
        }
    }
}

/// Replaces a name where no letter or digit goes on before or after it.
fn replace_word(text: &str, name: &str, instead: &str) -> String {
    let (mut replaced, mut rest) = (String::new(), text);
    let is_word = |letter: char| letter.is_alphanumeric();
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let previous = before.chars().next_back().or_else(|| replaced.chars().next_back());
        let is_whole = !previous.is_some_and(is_word) && !after.chars().next().is_some_and(is_word);
        replaced.push_str(before);
        replaced.push_str(if is_whole { instead } else { name });
        rest = after;
    }
    replaced + rest
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
        redaction.names.reverse();
        let mut value = json!({ "a": ["/Users/alice/x.metal:3: error", 4], "b": { "c": "alice@alices-mac.local, malice, alice2" } });
        redaction.apply_to(&mut value);
        let expected = json!({ "a": ["<home>/x.metal:3: error", 4], "b": { "c": "<user>@<host>, malice, alice2" } });
        assert_eq!(value, expected);
    }

    #[test]
    fn this_machine_has_something_to_hide() {
        let redaction = Redaction::of_this_machine(&Config::new(Path::new("/somewhere/secret")));
        let here = env::current_dir().unwrap();
        let said = redaction.apply(&format!("no '{}/x', no '/somewhere/secret/y'", here.display()));
        assert!(!said.contains("secret") && !said.contains(here.to_str().unwrap()), "{said}");
    }
}
