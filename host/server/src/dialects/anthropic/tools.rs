//! Tools that a message may call, and which of them it must.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError, extensions,
        fields::{Field, Quote},
    },
};

const TOOLS_MAX: usize = 512;
const NAME_LEN_MAX: usize = 128;

/// Reads `tools`.
pub(super) fn list(body: &Field<'_>) -> Result<Vec<Tool>, ApiError> {
    let field = body.get("tools");
    if field.is_absent() {
        return Ok(Vec::new());
    }
    let mut names = HashSet::new();
    let tool = |item: Field<'_>| {
        let tool = tool(&item)?;
        if !names.insert(tool.name.clone()) {
            return Err(item.get("name").problem(format_args!("there is another tool called '{}'", tool.name)));
        }
        Ok(tool)
    };
    field.items(TOOLS_MAX)?.map(tool).collect()
}

/// Reads `tool_choice`, and whether one call is all that is wanted.
pub(super) fn choice(body: &Field<'_>, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let field = body.get("tool_choice");
    if field.is_absent() {
        return Ok((ToolChoice::Auto, false));
    }
    field.object()?;
    let kind = field.get("type").choice(&["auto", "any", "tool", "none"])?;
    let single = field.get("disable_parallel_tool_use").present().map(Field::boolean).transpose()?.unwrap_or(false);
    if tools.is_empty() && matches!(kind, 1 | 2) {
        return Err(field.problem("asks for a call, but the request has no tools"));
    }
    let choice = match kind {
        0 => ToolChoice::Auto,
        1 => ToolChoice::Any,
        2 => {
            let name = field.get("name");
            let wanted = name.text(NAME_LEN_MAX)?;
            if !tools.iter().any(|tool| tool.name == wanted) {
                return Err(
                    name.problem(format_args!("there is no tool '{}' among the request's tools", Quote(wanted)))
                );
            }
            ToolChoice::Named(wanted.to_owned())
        }
        _ => ToolChoice::None,
    };
    Ok((choice, single))
}

fn tool(item: &Field<'_>) -> Result<Tool, ApiError> {
    item.object()?;
    let kind = item.get("type");
    if let Some(kind) = kind.present() {
        let name = kind.string()?;
        if name != "custom" {
            return Err(kind.problem(format_args!(
                "tools of type '{}' run on Anthropic's servers or are known to its models alone; \
                 describe the tool as one of type 'custom'",
                Quote(name)
            )));
        }
    }
    let name = item.get("name");
    let text = name.text(NAME_LEN_MAX)?;
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
        return Err(name.problem(format_args!("may have letters, digits, '_' and '-' only, unlike '{}'", Quote(text))));
    }
    let description = item.get("description").present().map(Field::string).transpose()?.unwrap_or_default();
    let strict = item.get("strict").present().map(Field::boolean).transpose()?.unwrap_or(false);
    let field = item.get("input_schema");
    let schema = schema(&field)?;
    let field = field.path().to_owned();
    Ok(Tool { name: text.to_owned(), description: description.to_owned(), schema, strict, field })
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
