//! Tools and tool choice.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError, extensions,
        fields::{Field, Quote},
    },
};

use super::{deferred::Deferred, known_tools};

const TOOLS_MAX: usize = 512;
const NAME_LEN_MAX: usize = 128;
/// Start of the types of Anthropic's own search for tools.
const SEARCH: &str = "tool_search_tool_";

/// The tools for the prompt's head, and those whose loading is deferred.
pub(super) fn list(body: &Field<'_>) -> Result<(Vec<Tool>, Vec<Tool>), ApiError> {
    let field = body.get("tools");
    if field.is_absent() {
        return Ok(Default::default());
    }
    let mut names = HashSet::new();
    let (mut tools, mut deferred) = (Vec::new(), Vec::new());
    let is_theirs = |item: Field<'_>| item.get("type").string().is_ok_and(|kind| kind.starts_with(SEARCH));
    // What only a search that is not served could find must be in the head.
    let may_defer = !field.items(TOOLS_MAX)?.any(is_theirs);
    for item in field.items(TOOLS_MAX)? {
        let Some(tool) = tool(&item)? else { continue };
        if !names.insert(tool.name.clone()) {
            return Err(item.get("name").invalid(format_args!("there is another tool called '{}'", tool.name)));
        }
        if item.get("defer_loading").flag(false)? && may_defer { deferred.push(tool) } else { tools.push(tool) }
    }
    Ok((tools, deferred))
}

/// Reads `tool_choice`; the flag is true if parallel calls are disabled.
pub(super) fn choice(body: &Field<'_>, tools: &[Tool], deferred: &Deferred) -> Result<(ToolChoice, bool), ApiError> {
    let field = body.get("tool_choice");
    if field.is_absent() {
        return Ok((ToolChoice::Auto, false));
    }
    field.object()?;
    let kind = field.get("type").choice(&["auto", "any", "tool", "none"])?;
    let single = field.get("disable_parallel_tool_use").flag(false)?;
    let is_known = |name: &str| tools.iter().any(|tool| tool.name == name) || deferred.knows(name);
    // Unsupported tools have been dropped, so the chosen tool may be missing.
    let listed = body.get("tools");
    let is_listed = |name: &str| {
        let items = listed.present().map(|tools| tools.items(TOOLS_MAX));
        items.is_some_and(|items| {
            items.is_ok_and(|mut items| items.any(|item| item.get("name").string().is_ok_and(|own| own == name)))
        })
    };
    let has_lost = |name: Option<&str>| match name {
        None => {
            tools.is_empty()
                && !deferred.any()
                && listed.json().is_ok_and(|list| list.as_array().is_some_and(|list| !list.is_empty()))
        }
        Some(name) => is_listed(name) && !is_known(name),
    };
    let wanted = field.get("name");
    if kind == 1 && has_lost(None) || kind == 2 && has_lost(wanted.string().ok()) {
        field.note("the tool that has to be called is not served here; any tool or none may be called");
        return Ok((ToolChoice::Auto, single));
    }
    if tools.is_empty() && !deferred.any() && matches!(kind, 1 | 2) {
        return Err(field.invalid("asks for a call, but the request has no tools"));
    }
    let choice = match kind {
        0 => ToolChoice::Auto,
        1 => ToolChoice::Any,
        2 => {
            let name = field.get("name");
            let wanted = name.text(NAME_LEN_MAX)?;
            if !is_known(wanted) {
                return Err(
                    name.invalid(format_args!("there is no tool '{}' among the request's tools", Quote(wanted)))
                );
            }
            ToolChoice::Named(wanted.to_owned())
        }
        _ => ToolChoice::None,
    };
    Ok((choice, single))
}

/// `None` for a tool that only Anthropic's servers can run.
fn tool(item: &Field<'_>) -> Result<Option<Tool>, ApiError> {
    item.object()?;
    let kind = item.get("type");
    let kind = kind.optional(Field::string)?.unwrap_or("custom");
    if kind != "custom" {
        let known = known_tools::find(kind);
        if known.is_none() {
            item.note(format_args!("tools of type '{}' are not served here; it is left out", Quote(kind)));
        }
        return known.map(|(description, schema)| named(item, description, schema)).transpose();
    }
    let description = item.get("description").string_or_empty()?;
    let strict = item.get("strict").flag(false)?;
    let field = item.get("input_schema");
    let tool = named(item, description, schema(&field)?)?;
    Ok(Some(Tool { strict, field: field.path().to_owned(), ..tool }))
}

fn named(item: &Field<'_>, description: &str, schema: Value) -> Result<Tool, ApiError> {
    let name = item.get("name");
    let text = name.text(NAME_LEN_MAX)?;
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
        return Err(name.invalid(format_args!("may have letters, digits, '_' and '-' only, unlike '{}'", Quote(text))));
    }
    Ok(Tool { name: text.to_owned(), description: description.to_owned(), schema, ..Tool::default() })
}

fn schema(field: &Field<'_>) -> Result<Value, ApiError> {
    extensions::schema(field)?;
    let mut schema = field.object()?.clone();
    let kind = field.get("type");
    if kind.is_absent() {
        schema.insert("type".into(), json!("object"));
    } else {
        kind.choice(&["object"])?;
    }
    Ok(Value::Object(schema))
}
