//! Tools that Anthropic's API defines by type alone (`bash_20250124`), as its models know their schemas. They run on
//! the client's machine, so any model can call them if it is given the schema.

use serde_json::{Value, json};

/// Description and schema of a tool, by its type without the date; `None` for tools that run on Anthropic's servers.
pub(super) fn find(kind: &str) -> Option<(&'static str, Value)> {
    let (name, date) = kind.rsplit_once('_')?;
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match name {
        "bash" => Some((
            "Run a command in a bash session that keeps its state between calls.",
            json!({
                "type": "object",
                "properties": {
                    "command": { "type": "string", "description": "The command to run." },
                    "restart": { "type": "boolean", "description": "Restart the session instead." },
                },
            }),
        )),
        "text_editor" => Some((
            "View, create and edit text files.",
            json!({
                "type": "object",
                "properties": {
                    "command": { "type": "string", "enum": ["view", "create", "str_replace", "insert"] },
                    "path": { "type": "string", "description": "The file or the folder." },
                    "file_text": { "type": "string", "description": "The text of a new file, for create." },
                    "old_str": { "type": "string", "description": "The text to replace, for str_replace." },
                    "new_str": { "type": "string", "description": "The new text, for str_replace." },
                    "insert_line": { "type": "integer", "description": "The line to insert after, for insert." },
                    "insert_text": { "type": "string", "description": "The text to insert, for insert." },
                    "view_range": { "type": "array", "items": { "type": "integer" }, "description": "First and last line." },
                },
                "required": ["command", "path"],
            }),
        )),
        "memory" => Some((
            "Keep notes in files below /memories between conversations.",
            json!({
                "type": "object",
                "properties": {
                    "command": {
                        "type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
                    },
                    "path": { "type": "string" },
                    "file_text": { "type": "string" },
                    "old_str": { "type": "string" },
                    "new_str": { "type": "string" },
                    "insert_line": { "type": "integer" },
                    "insert_text": { "type": "string" },
                    "old_path": { "type": "string" },
                    "new_path": { "type": "string" },
                    "view_range": { "type": "array", "items": { "type": "integer" } },
                },
                "required": ["command"],
            }),
        )),
        _ => None,
    }
}
