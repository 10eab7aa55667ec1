//! A request for rows, whatever API it came from.

use std::sync::Arc;

use crate::chat::Client;

/// Texts to make rows of.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowsRequest {
    /// The model name from the client, optionally `MODEL:ADAPTER`.
    pub(crate) model: String,
    pub(crate) client: Client,
    pub(crate) texts: Vec<RowText>,
    /// The text to put before texts.
    pub(crate) prompt: PromptChoice,
    /// The instruction for pairs, for a model that takes one.
    pub(crate) instruction: Option<String>,
    /// Width of the rows; `None` for the model's own.
    pub(crate) dimensions: Option<u32>,
    /// Cuts texts that are too long instead of refusing them.
    pub(crate) truncate: bool,
    /// The longest text that the client wants, in tokens; `None` for the model's own limit.
    pub(crate) tokens_max: Option<u32>,
    pub(crate) fields: FieldNames,
}

/// One text, or a pair of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowText {
    Text(String),
    /// Token ids, to which nothing is added.
    Tokens(Vec<u32>),
    Pair {
        query: Arc<str>,
        document: String,
    },
}

/// The choice of a text's prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PromptChoice {
    /// The model's usual one, if it has one.
    #[default]
    Usual,
    /// One of the model's, which must exist.
    Named {
        name: String,
        /// The field that names it.
        field: String,
    },
    /// The first of these that the model has, or none.
    Suggested(&'static [&'static str]),
}

/// The client's names of fields that errors and warnings are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldNames {
    /// The texts, or the documents of pairs.
    pub(crate) texts: TextField,
    /// The queries of pairs.
    pub(crate) queries: TextField,
    pub(crate) dimensions: &'static str,
}

/// A field with one text, or with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextField {
    Text(String),
    List(String),
    /// A list of objects, which have their text in this member.
    Members(&'static str, &'static str),
}

impl Default for FieldNames {
    fn default() -> Self {
        let text = |name: &str| TextField::Text(name.to_owned());
        Self { texts: text("input"), queries: text("query"), dimensions: "dimensions" }
    }
}

impl TextField {
    /// The path of a text in the request.
    pub(super) fn path(&self, index: usize) -> String {
        match self {
            Self::Text(name) => name.clone(),
            Self::List(name) => format!("{name}.{index}"),
            Self::Members(name, member) => format!("{name}.{index}.{member}"),
        }
    }
}
