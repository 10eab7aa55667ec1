//! Converts `system` and `messages` to turns.
//!
//! Adjacent messages of one role become one turn, as in the original. Tool results come first in their turn, and
//! nothing comes between a call and its result: a system message there is deferred until all results are in. A request
//! that extends the previous one thus only appends to its prompt, which lets the prefix cache work.

use std::collections::HashSet;

use super::{
    billing,
    content::{self, Call},
    deferred::Deferred,
};
use crate::{
    chat::{Part, Role, Turn},
    dialects::{
        ApiError,
        fields::{Field, Quote},
        orphans,
    },
    requests::summary,
};

const MESSAGES_MAX: usize = 100_000;

pub(super) fn read(body: &Field<'_>, deferred: &mut Deferred) -> Result<(String, Vec<Turn>), ApiError> {
    let field = body.get("system");
    let system = if field.is_absent() { String::new() } else { system(&field, deferred)? };
    let messages = body.get("messages");
    let items = messages.items(MESSAGES_MAX)?;
    if items.len() == 0 {
        return Err(messages.invalid("should have a message"));
    }
    let mut reader = Reader::new(deferred);
    for message in items {
        message.object()?;
        reader.message(&message)?;
    }
    Ok((system, reader.finish()?))
}

/// A system prompt: a string, or a list of blocks, which are joined by an empty line.
fn system(field: &Field<'_>, deferred: &mut Deferred) -> Result<String, ApiError> {
    if field.is_string() {
        return field.string().map(|text| billing::strip(text).to_owned());
    }
    let mut texts = Vec::new();
    for block in content::blocks(field)? {
        let text = content::only_text(&block, deferred)?;
        let text = billing::strip(&text);
        if !text.is_empty() {
            texts.push(text.to_owned());
        }
    }
    Ok(texts.join("\n\n"))
}

fn is_blank(content: &Field<'_>) -> bool {
    content.json().is_ok_and(|value| value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty))
}

struct Reader<'a> {
    tools: &'a mut Deferred,
    turns: Vec<Turn>,
    /// Calls of the last assistant turn that have no result yet.
    open: Vec<Call>,
    /// System messages deferred until all calls have results.
    deferred: Vec<Turn>,
    /// Ids of all calls, which must be unique.
    calls: HashSet<String>,
}

impl<'a> Reader<'a> {
    fn new(tools: &'a mut Deferred) -> Self {
        Self { tools, turns: Vec::new(), open: Vec::new(), deferred: Vec::new(), calls: HashSet::new() }
    }

    fn message(&mut self, message: &Field<'_>) -> Result<(), ApiError> {
        let role = match message.get("role").choice(&["user", "assistant", "system"])? {
            0 => Role::User,
            1 => Role::Assistant,
            _ => Role::System,
        };
        let content = message.get("content");
        match role {
            Role::System => {
                let text = system(&content, self.tools)?;
                if !text.is_empty() {
                    let turn = Turn { role, parts: vec![Part::Text(text)] };
                    if self.open.is_empty() { self.turns.push(turn) } else { self.deferred.push(turn) }
                }
            }
            Role::User => {
                // Memories that keep the last messages only leave empty ones behind.
                let parts =
                    if is_blank(&content) { vec![Part::Text(String::new())] } else { self.parts(role, &content)? };
                self.user(parts)?;
            }
            Role::Assistant => {
                self.all_answered()?;
                // An empty one is left out; as the last one it means that there is no prefill.
                let parts = if is_blank(&content) { Vec::new() } else { self.parts(role, &content)? };
                if !parts.is_empty() {
                    self.append(role, parts);
                }
            }
        }
        Ok(())
    }

    fn parts(&mut self, role: Role, content: &Field<'_>) -> Result<Vec<Part>, ApiError> {
        if content.is_string() {
            return Ok(vec![Part::Text(content.string()?.to_owned())]);
        }
        let mut parts = Vec::new();
        for block in content::blocks(content)? {
            if let Some(text) = content::compaction(&block)? {
                self.compacted(text);
                parts.clear();
                continue;
            }
            let part = content::part(role, &block, self.tools)?;
            match &part {
                Some(Part::ToolCall { id, .. }) => {
                    if !self.calls.insert(id.clone()) {
                        return Err(block.get("id").invalid("another call has this id"));
                    }
                    self.open.push(Call { id: id.clone(), path: block.path().to_owned() });
                }
                Some(Part::ToolResult { id, text, images, .. }) if !self.calls.contains(id) => {
                    parts.extend(orphans::parts(&block, text, images));
                    continue;
                }
                Some(Part::ToolResult { id, .. }) => {
                    let place = self.open.iter().position(|call| call.id == *id);
                    let Some(place) = place else {
                        return Err(block.get("tool_use_id").invalid(format_args!(
                            "the assistant's message before it has no call '{}' without a result",
                            Quote(id)
                        )));
                    };
                    self.open.remove(place);
                }
                _ => {}
            }
            parts.extend(part);
        }
        Ok(parts)
    }

    /// A summary stands for all that was read so far.
    fn compacted(&mut self, text: &str) {
        self.turns = vec![summary::turn(text)];
        self.open.clear();
        self.deferred.clear();
        self.calls.clear();
        self.tools.forget();
    }

    fn user(&mut self, parts: Vec<Part>) -> Result<(), ApiError> {
        let (results, others): (Vec<Part>, Vec<Part>) =
            parts.into_iter().partition(|part| matches!(part, Part::ToolResult { .. }));
        if results.is_empty() {
            self.all_answered()?;
        }
        self.append(Role::User, results.into_iter().chain(others).collect());
        if self.open.is_empty() {
            self.turns.append(&mut self.deferred);
        }
        Ok(())
    }

    fn append(&mut self, role: Role, parts: Vec<Part>) {
        match self.turns.last_mut() {
            Some(turn) if turn.role == role => turn.parts.extend(parts),
            _ => self.turns.push(Turn { role, parts }),
        }
    }

    fn all_answered(&self) -> Result<(), ApiError> {
        match self.open.first() {
            None => Ok(()),
            Some(call) => {
                Err(ApiError::field(&call.path, "the call should be followed by its tool_result in the next message"))
            }
        }
    }

    fn finish(self) -> Result<Vec<Turn>, ApiError> {
        self.all_answered()?;
        Ok(self.turns)
    }
}
