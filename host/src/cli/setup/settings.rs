//! Claude Code's settings as JSON: variables in `env`, and the status line. All other fields stay as they are, and in
//! their order. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{fmt, path::Path};

use pensieve_protocol::outside::Outside;

/// Variables whose values are not shown.
const SECRETS: [&str; 2] = ["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"];
/// Variables that would point Claude Code elsewhere.
const OBSTACLES: [&str; 3] = ["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"];
const STATUS_LINE: &str = "statusLine";
const ENV: &str = "env.";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings(Map<String, Value>);

/// One line of a change: a name with its old and new value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Change {
    name: String,
    old: Option<Value>,
    new: Option<Value>,
}

/// Everything that setups have changed, kept beside the settings so that it can be undone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    changes: Vec<Change>,
    /// The settings had no `env`.
    made_env: bool,
}

impl Record {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("is not the record of a setup: {error}"))
    }

    pub(super) fn to_text(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// Adds the changes of a setup to the settings that were `before`.
    pub(super) fn add(&mut self, before: &Settings, changes: &[Change]) {
        self.made_env |= !before.0.contains_key("env");
        for change in changes {
            match self.changes.iter_mut().find(|known| known.name == change.name) {
                // What an earlier setup wrote is not what the user had.
                Some(known) if known.new == change.old => known.new = change.new.clone(),
                Some(known) => *known = change.clone(),
                None => self.changes.push(change.clone()),
            }
        }
    }
}

impl Settings {
    /// The error is a predicate about the file.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let value = if text.trim().is_empty() { Ok(json!({})) } else { serde_json::from_str(text) };
        let is_comment = |line: &str| ["//", "/*"].iter().any(|start| line.trim_start().starts_with(start));
        let help = if text.lines().any(is_comment) {
            " (comments would be lost when it is written; take them out)"
        } else {
            ""
        };
        let Value::Object(settings) = value.map_err(|error| format!("is not JSON: {error}{help}"))? else {
            return Err("is not a JSON object".into());
        };
        if settings.get("env").is_some_and(|env| !env.is_object()) {
            return Err("has an 'env' that is not an object".into());
        }
        Ok(Self(settings))
    }

    pub(super) fn to_text(&self) -> String {
        format!("{:#}\n", Value::Object(self.0.clone()))
    }

    /// Sets the variables, and the status line unless the user has another one.
    pub(super) fn merge(&mut self, variables: &[(&'static str, String)], status_line: &str) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in OBSTACLES {
            changes.extend(self.set_variable(name, None));
        }
        for (name, value) in variables {
            changes.extend(self.set_variable(name, Some(json!(value))));
        }
        let is_own = |line: &Value| line["command"].as_str().is_some_and(is_own_command);
        if self.0.get(STATUS_LINE).is_none_or(is_own) {
            let line = json!({ "type": "command", "command": status_line });
            let old = self.0.insert(STATUS_LINE.into(), line.clone());
            if old.as_ref() != Some(&line) {
                changes.push(Change { name: STATUS_LINE.into(), old, new: Some(line) });
            }
        }
        changes
    }

    /// Gives everything that still has the value that a setup wrote the value that it had before. What the user has changed
    /// since stays.
    pub(super) fn restore(&mut self, record: &Record) -> Vec<Change> {
        let mut changes = Vec::new();
        for Change { name, old, new } in &record.changes {
            match name.strip_prefix(ENV) {
                Some(variable) if self.variable(variable) == new.as_ref() => {
                    changes.extend(self.set_variable(variable, old.clone()));
                }
                None if self.0.get(name) == new.as_ref() => {
                    let now = match old {
                        Some(old) => self.0.insert(name.clone(), old.clone()),
                        None => self.0.shift_remove(name),
                    };
                    changes.push(Change { name: name.clone(), old: now, new: old.clone() });
                }
                _ => {}
            }
        }
        if record.made_env && self.0.get("env").is_some_and(|env| *env == json!({})) {
            self.0.shift_remove("env");
        }
        changes
    }

    fn variable(&self, name: &str) -> Option<&Value> {
        self.0.get("env")?.get(name)
    }

    fn set_variable(&mut self, name: &str, value: Option<Value>) -> Option<Change> {
        let old = self.variable(name).cloned();
        if old == value {
            return None;
        }
        let env = self.0.entry("env").or_insert_with(|| json!({})).as_object_mut()?;
        match &value {
            Some(value) => drop(env.insert(name.to_owned(), value.clone())),
            None => drop(env.shift_remove(name)),
        }
        Some(Change { name: format!("{ENV}{name}"), old, new: value })
    }
}

/// True for a status line as a setup writes it, so that a later one may replace it.
fn is_own_command(command: &str) -> bool {
    let Some((program, rest)) = command.split_once(" statusline") else { return false };
    let is_one_word = !program.contains(' ') || program.starts_with('\'');
    let is_alone = !rest.contains(['|', ';', '&', '>']);
    is_one_word && is_alone && Path::new(program.trim_matches('\'')).file_name().is_some_and(|name| name == "pensieve")
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_secret = SECRETS.iter().any(|secret| self.name.ends_with(secret));
        let shown = |value: &Value| {
            if is_secret { "…".to_owned() } else { Outside::new(value.to_string()).at_most(200).to_string() }
        };
        match (&self.old, &self.new) {
            (None, Some(new)) => write!(f, "+ {}: {}", self.name, shown(new)),
            (Some(old), Some(new)) => write!(f, "~ {}: {} -> {}", self.name, shown(old), shown(new)),
            (Some(old), None) => write!(f, "- {}: {}", self.name, shown(old)),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LINE: &str = "pensieve statusline";
    const VARIABLES: [(&str, &str); 3] = [
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
        ("ANTHROPIC_AUTH_TOKEN", "secret"),
        ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "8192"),
    ];

    fn variables() -> Vec<(&'static str, String)> {
        VARIABLES.map(|(name, value)| (name, value.to_owned())).into()
    }

    /// Sets up, and takes that back; returns the settings in between and the lines shown.
    fn there_and_back(text: &str) -> (String, Vec<String>) {
        let before = Settings::parse(text).unwrap();
        let mut settings = before.clone();
        let changes = settings.merge(&variables(), LINE);
        let mut record = Record::default();
        record.add(&before, &changes);
        let record = Record::parse(&record.to_text()).unwrap();
        let shown = changes.iter().map(ToString::to_string).collect();
        let after = settings.to_text();
        assert_eq!(settings.clone().merge(&variables(), LINE), [], "a second setup changes nothing");
        let mut reread = Settings::parse(&after).unwrap();
        reread.restore(&record);
        assert_eq!(reread.to_text(), before.to_text(), "{text}");
        (after, shown)
    }

    #[test]
    fn only_its_own_fields_change_and_all_of_that_is_undone() {
        let (after, shown) = there_and_back("{}");
        assert_eq!(
            shown,
            [
                "+ env.ANTHROPIC_BASE_URL: \"http://127.0.0.1:8000\"",
                "+ env.ANTHROPIC_AUTH_TOKEN: …",
                "+ env.CLAUDE_CODE_MAX_CONTEXT_TOKENS: \"8192\"",
                "+ statusLine: {\"type\":\"command\",\"command\":\"pensieve statusline\"}",
            ]
        );
        assert!(after.contains("\"CLAUDE_CODE_MAX_CONTEXT_TOKENS\": \"8192\""), "{after}");
        let own = r#"{"model": "opus", "env": {"FOO": "1", "ANTHROPIC_BASE_URL": "https://x", "ANTHROPIC_API_KEY": "k"},
            "statusLine": {"type": "command", "command": "mine"}, "permissions": {"allow": ["Bash(ls:*)"]}}"#;
        let (after, shown) = there_and_back(own);
        assert_eq!(shown[0], "- env.ANTHROPIC_API_KEY: …");
        assert_eq!(shown[1], "~ env.ANTHROPIC_BASE_URL: \"https://x\" -> \"http://127.0.0.1:8000\"");
        assert!(
            after.contains("\"mine\"") && after.contains("Bash(ls:*)") && after.contains("\"FOO\": \"1\""),
            "{after}"
        );
        assert!(
            after.find("\"model\"") < after.find("\"env\"") && after.find("\"env\"") < after.find("\"permissions\"")
        );
        there_and_back("");
        there_and_back("\u{feff}{\"env\": {}}");
    }

    #[test]
    fn an_undo_keeps_what_the_user_has_changed_meanwhile() {
        let before = Settings::parse(r#"{"model": "opus", "env": {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "7"}}"#).unwrap();
        let (mut settings, mut record) = (before.clone(), Record::default());
        record.add(&before, &settings.merge(&variables(), LINE));
        let other = [("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "4096".to_owned())];
        record.add(&before, &settings.merge(&other, "/opt/pensieve statusline --url http://127.0.0.1:9"));
        let edits =
            [("opus", "sonnet"), ("\"secret\"", "\"mine\""), ("\"command\": \"/opt", "\"command\": \"time /opt")];
        let edited = edits.iter().fold(settings.to_text(), |text, (old, new)| text.replace(old, new));
        let mut settings = Settings::parse(&edited).unwrap();
        settings.restore(&record);
        let line = "time /opt/pensieve statusline --url http://127.0.0.1:9";
        let expected = json!({
            "model": "sonnet",
            "env": {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "7", "ANTHROPIC_AUTH_TOKEN": "mine"},
            "statusLine": {"type": "command", "command": line},
        });
        assert_eq!(Value::Object(settings.0), expected);
    }

    #[test]
    fn a_file_that_is_not_understood_is_left_alone() {
        for (text, words) in [
            ("{\"env\": [1]}", "has an 'env' that is not an object"),
            ("[1]", "is not a JSON object"),
            ("{ // a comment\n}", "is not JSON: "),
            ("{\n  // a comment\n}", "is not JSON: key must be a string at line 2 column 3 (comments would be lost"),
            ("{\"a\": 1", "is not JSON: "),
        ] {
            assert!(Settings::parse(text).unwrap_err().starts_with(words), "{text}");
        }
    }
}
