//! Conversations in the form common to all APIs: turns, tools and tool choice. The server parses them from a client's JSON and
//! sends them to the prompt process, which renders them.
//!
//! JSON values are sent as text, because postcard is not self-describing; the order of fields is preserved.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The system prompt; empty for none.
    pub system: String,
    /// The turns, oldest first. If the last one is the assistant's, the model continues it.
    pub turns: Vec<Turn>,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    /// Allows at most one tool call per answer.
    pub single_call: bool,
    /// Turns reasoning on or off; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Additional variables for the template.
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
    /// Instructions in the middle of a conversation, rendered in place.
    System,
    /// The user, tool results included.
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
        /// Usually a JSON object.
        #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
        arguments: Value,
    },
    ToolResult {
        /// The id of the call.
        id: String,
        text: String,
        /// Pictures in the text, in order.
        images: Vec<PlacedImage>,
        is_error: bool,
    },
    /// A picture: the index of an item of the request.
    Image(u32),
}

/// A picture within a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedImage {
    /// Byte index in the text, at a character's boundary.
    pub at: u32,
    /// The index of an item of the request.
    pub item: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    /// May be empty.
    pub description: String,
    /// JSON schema of the arguments, properties in the client's order.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub schema: Value,
    /// Arguments must match the schema exactly, and a schema that cannot be enforced is an error. Other schemas are enforced
    /// as far as possible.
    pub strict: bool,
    /// Regular expression for a custom tool's only argument, for call formats other than JSON; the schema has it as a
    /// pattern, too.
    pub input: Option<String>,
    /// The request field that holds the schema, for errors.
    pub field: String,
    /// The prompt describes it, so that it stays the same from request to request, but this request may not call it.
    pub barred: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolChoice {
    /// The model decides whether to call tools.
    #[default]
    Auto,
    None,
    /// The model must call at least one tool.
    Any,
    /// The model must call this tool.
    Named(String),
}

impl Tool {
    /// Bars all tools except those of these names.
    pub fn allow(tools: &mut [Self], names: &[impl AsRef<str>]) {
        for tool in tools {
            tool.barred = !names.iter().any(|name| name.as_ref() == tool.name);
        }
    }
}

impl Conversation {
    /// The items that its turns show, in order.
    pub fn items(&self) -> impl Iterator<Item = u32> {
        self.turns.iter().flat_map(|turn| &turn.parts).flat_map(Part::items)
    }
}

impl Part {
    /// The items that it shows, in order.
    pub fn items(&self) -> impl Iterator<Item = u32> {
        let (own, placed): (_, &[PlacedImage]) = match self {
            Self::Image(item) => (Some(*item), &[]),
            Self::ToolResult { images, .. } => (None, images),
            Self::Text(_) | Self::Thinking(_) | Self::ToolCall { .. } => (None, &[]),
        };
        own.into_iter().chain(placed.iter().map(|image| image.item))
    }
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
