//! Function declarations and the choice among them.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{names::get, schema};
use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError, extensions,
        fields::{Field, Quote},
    },
};

const TOOLS_MAX: usize = 512;
pub(super) const NAME_BYTES_MAX: usize = 256;
/// Tools that Google's servers run.
const THEIRS: [&str; 8] = [
    "googleSearch",
    "googleSearchRetrieval",
    "codeExecution",
    "urlContext",
    "googleMaps",
    "fileSearch",
    "computerUse",
    "enterpriseWebSearch",
];

/// The tools that the model may call, and whether it must.
pub(super) fn read(body: &Field<'_>) -> Result<(Vec<Tool>, ToolChoice), ApiError> {
    let mut tools = Vec::new();
    let mut names = HashSet::new();
    if let Some(list) = get(body, "tools").present() {
        for item in list.items(TOOLS_MAX)? {
            item.object()?;
            for theirs in THEIRS.map(|name| get(&item, name)).iter().filter(|field| !field.is_absent()) {
                theirs.note("only Google's servers can run this tool; it is left out");
            }
            let Some(declared) = get(&item, "functionDeclarations").present().cloned() else { continue };
            for function in declared.items(TOOLS_MAX - tools.len())? {
                let tool = tool(&function)?;
                if !names.insert(tool.name.clone()) {
                    let why = format!("another function is called '{}' already", tool.name);
                    return Err(function.get("name").invalid(why));
                }
                tools.push(tool);
            }
        }
    }
    let choice = choose(&get(&get(body, "toolConfig"), "functionCallingConfig"), &mut tools)?;
    Ok((tools, choice))
}

fn tool(field: &Field<'_>) -> Result<Tool, ApiError> {
    field.object()?;
    let name = field.get("name");
    let text = name.text(NAME_BYTES_MAX)?;
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte)) {
        return Err(name.invalid("should have letters, digits, '_', '-', '.' and ':' only"));
    }
    let (given, json_schema) = (get(field, "parameters"), get(field, "parametersJsonSchema"));
    let (schema, path) = if let Some(json_schema) = json_schema.present() {
        extensions::schema(json_schema)?;
        (json_schema.json()?.clone(), json_schema.path())
    } else if let Some(given) = given.present() {
        (schema::read(given)?, given.path())
    } else {
        (json!({ "type": "object", "properties": {} }), "")
    };
    let schema = match schema {
        Value::Object(mut schema) => {
            schema.entry("type").or_insert_with(|| "object".into());
            Value::Object(schema)
        }
        other => other,
    };
    Ok(Tool {
        name: text.to_owned(),
        description: field.get("description").string_or_empty()?.to_owned(),
        schema,
        strict: false,
        field: path.to_owned(),
        ..Tool::default()
    })
}

/// `ANY` with one name requires that function; with several, the others are shown but cannot be called.
fn choose(config: &Field<'_>, tools: &mut [Tool]) -> Result<ToolChoice, ApiError> {
    if config.is_absent() {
        return Ok(ToolChoice::Auto);
    }
    config.object()?;
    let mode = config.get("mode");
    let mode = mode.optional(|mode| mode.choice(&["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"]))?;
    let names = get(config, "allowedFunctionNames");
    let mut allowed = Vec::new();
    if let Some(names) = names.present() {
        for name in names.items(TOOLS_MAX)? {
            let text = name.string()?;
            if !tools.iter().any(|tool| tool.name == text) {
                return Err(name.invalid(format_args!("there is no function '{}' among 'tools'", Quote(text))));
            }
            allowed.push(text);
        }
    }
    let choice = match mode {
        Some(2) => ToolChoice::Any,
        Some(3) => return Ok(ToolChoice::None),
        Some(4) => ToolChoice::Auto,
        _ => return Ok(ToolChoice::Auto),
    };
    if choice == ToolChoice::Any && tools.is_empty() {
        return Err(config.get("mode").invalid("requires a call, but 'tools' has no function"));
    }
    match allowed.as_slice() {
        [] => Ok(choice),
        [name] if choice == ToolChoice::Any => Ok(ToolChoice::Named((*name).to_owned())),
        names => {
            Tool::allow(tools, names);
            Ok(choice)
        }
    }
}
