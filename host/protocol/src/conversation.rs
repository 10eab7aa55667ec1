//! A conversation as every API has it: turns, tools, and what the model may do in its own turn. Plain data that travels from
//! the server, which reads it out of a client's JSON, to the prompt process that renders it.
//!
//! JSON values travel as text, because a frame's encoding does not describe itself; the order of fields is kept.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};

/// Turns, and what the model may do in its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// What stands before the first turn; empty for nothing.
    pub system: String,
    /// The turns, oldest first. If the last one is the assistant's, the model continues it.
    pub turns: Vec<Turn>,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    pub single_call: bool,
    /// Whether the model thinks before it answers; none for the template's own way.
    pub thinking: Option<bool>,
    /// More variables for the template.
    #[serde(serialize_with = "map_to_text", deserialize_with = "map_from_text")]
    pub variables: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    pub role: Role,
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Instructions in the middle of a conversation. They stay where they are.
    System,
    /// The client's, tool results included.
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    Text(String),
    Thinking(String),
    ToolCall {
        id: String,
        name: String,
        /// Its arguments, a JSON object as a rule.
        #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
        arguments: Value,
    },
    ToolResult {
        /// The id of the call.
        id: String,
        text: String,
        is_error: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// The JSON schema of its arguments, properties in the client's order.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub schema: Value,
    /// Whether arguments must fit the schema in every point, so that a schema that cannot be enforced is an error. The
    /// others are enforced as far as that goes.
    pub strict: bool,
    /// The field of the request that has the schema, for errors.
    pub field: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolChoice {
    /// Any or none.
    #[default]
    Auto,
    None,
    /// At least one.
    Any,
    Named(String),
}

fn to_text<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn map_to_text<S: Serializer>(map: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = serde_json::to_string(map).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}

fn map_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}
