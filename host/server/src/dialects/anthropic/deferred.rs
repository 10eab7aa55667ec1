//! Tools with `defer_loading`: they stay out of the head of the prompt. Where a `tool_reference` names one, in the result
//! of the client's search for tools, its definition is written in its place. What comes before it stays as it was, so a
//! tool that is found costs its own tokens and nothing of the cache.

use std::collections::{HashMap, HashSet};

use crate::{
    chat::{Part, Tool, Turn},
    dialects::{
        ApiError,
        fields::{Field, Quote},
    },
    formats::instruction,
};

const NAME_LEN_MAX: usize = 256;

/// The deferred tools of a request, and which of them were found so far.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    tools: HashMap<String, Tool>,
    /// Names of the tools in the prompt's head.
    loaded: HashSet<String>,
    found: HashSet<String>,
}

impl Deferred {
    pub(super) fn new(loaded: &[Tool], deferred: Vec<Tool>) -> Self {
        Self {
            loaded: loaded.iter().map(|tool| tool.name.clone()).collect(),
            tools: deferred.into_iter().map(|tool| (tool.name.clone(), tool)).collect(),
            found: HashSet::new(),
        }
    }

    /// The definitions that were found are no longer part of the prompt.
    pub(super) fn forget(&mut self) {
        self.found.clear();
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    pub(super) fn any(&self) -> bool {
        !self.tools.is_empty()
    }

    /// The text for a `tool_reference`.
    pub(super) fn reference(&mut self, block: &Field<'_>) -> Result<String, ApiError> {
        let field = block.get("tool_name");
        let name = field.text(NAME_LEN_MAX)?;
        let Some(tool) = self.tools.get(name) else {
            if self.loaded.contains(name) {
                return Ok(format!("The tool '{name}' can be called; it is described above."));
            }
            field.note(format_args!("there is no tool '{}' among the request's tools", Quote(name)));
            return Ok(format!("There is no tool '{name}' any more."));
        };
        if !self.found.insert(name.to_owned()) {
            return Ok(format!("The tool '{name}' can be called; it was found before."));
        }
        Ok(instruction::definition(tool))
    }

    /// The texts for the references in a block of Anthropic's own search for tools.
    pub(super) fn search_result(&mut self, block: &Field<'_>) -> Result<String, ApiError> {
        let references = block.get("content").get("tool_references");
        let mut texts = Vec::new();
        if let Some(references) = references.present() {
            for reference in references.items(self.tools.len() + self.loaded.len() + 1_000)? {
                reference.object()?;
                texts.push(self.reference(&reference)?);
            }
        }
        Ok(texts.join("\n"))
    }

    /// The tools that may be called besides those in the head: what was found, what was called in a turn whose search is
    /// no longer part of the conversation, and what must be called.
    pub(super) fn callable(mut self, turns: &[Turn], required: Option<&str>) -> Vec<Tool> {
        let called = turns.iter().flat_map(|turn| &turn.parts).filter_map(|part| match part {
            Part::ToolCall { name, .. } => Some(name.as_str()),
            _ => None,
        });
        let names: HashSet<&str> = called.chain(required).chain(self.found.iter().map(String::as_str)).collect();
        self.tools.retain(|name, _| names.contains(name.as_str()));
        let mut tools: Vec<Tool> = self.tools.into_values().collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        tools
    }
}
