//! Tools of a request: functions as they are, custom tools as functions with one string, namespaces flattened, and the way
//! back from a flat name to what the client called it.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::lark;
use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError, extensions,
        fields::{Field, Quote},
    },
};

const TOOLS_MAX: usize = 512;
pub(super) const NAME_BYTES_MAX: usize = 128;
const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Stands between a namespace and the name of its tool.
const SEPARATOR: &str = "__";
/// The argument of the function that a custom tool becomes.
pub(super) const CUSTOM_ARGUMENT: &str = "input";

/// How the client calls a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Whether it takes a text instead of arguments.
    pub(super) is_custom: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    pub(super) list: Vec<Tool>,
    pub(super) choice: ToolChoice,
    pub(super) single_call: bool,
    origins: HashMap<String, Origin>,
    /// Whether the request has tools that are not served here.
    has_dropped: bool,
}

/// The name under which the model knows a tool.
pub(super) fn flat(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}{SEPARATOR}{name}"))
}

impl Tools {
    pub(super) fn read(body: &Field<'_>) -> Result<Self, ApiError> {
        let mut tools = Self::default();
        if let Some(list) = body.get("tools").present() {
            for item in list.items(TOOLS_MAX)? {
                tools.add(&item, None)?;
            }
        }
        let parallel = body.get("parallel_tool_calls");
        tools.single_call = !parallel.flag(true)?;
        if let Some(choice) = body.get("tool_choice").present() {
            tools.choice = tools.choice(choice)?;
        }
        Ok(tools)
    }

    /// What the client calls the tool of this flat name.
    pub(super) fn origin(&self, flat: &str) -> Origin {
        let plain = || Origin { namespace: None, name: flat.to_owned(), is_custom: false };
        self.origins.get(flat).cloned().unwrap_or_else(plain)
    }

    fn add(&mut self, item: &Field<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        item.object()?;
        match item.get("type").string()? {
            "function" => self.push(function(item)?, namespace, item, false),
            "custom" => self.push(custom(item)?, namespace, item, true),
            "namespace" if namespace.is_none() => {
                let name = name(&item.get("name"))?.to_owned();
                for inner in item.get("tools").items(TOOLS_MAX)? {
                    self.add(&inner, Some(&name))?;
                }
                Ok(())
            }
            other => {
                self.has_dropped = true;
                item.note(format_args!("tools of type '{}' are not served here; it is left out", Quote(other)));
                Ok(())
            }
        }
    }

    fn push(&mut self, tool: Tool, namespace: Option<&str>, item: &Field<'_>, is_custom: bool) -> Result<(), ApiError> {
        let name = flat(namespace, &tool.name);
        let origin = Origin { namespace: namespace.map(str::to_owned), name: tool.name.clone(), is_custom };
        if self.list.len() == TOOLS_MAX {
            return Err(item.invalid(format_args!("there are more than {TOOLS_MAX} tools")));
        }
        if self.origins.insert(name.clone(), origin).is_some() {
            return Err(item.get("name").invalid(format_args!("another tool is called '{}' already", Quote(&name))));
        }
        self.list.push(Tool { name, ..tool });
        Ok(())
    }

    fn choice(&mut self, choice: &Field<'_>) -> Result<ToolChoice, ApiError> {
        let wanted = if choice.is_string() {
            match choice.choice(&["none", "auto", "required"])? {
                0 => ToolChoice::None,
                1 => ToolChoice::Auto,
                _ => ToolChoice::Any,
            }
        } else {
            choice.object()?;
            match choice.get("type").string()? {
                "function" | "custom" => ToolChoice::Named(self.named(choice)?),
                "allowed_tools" => self.allow(choice)?,
                other => {
                    choice.note(format_args!("'{}' is not served here; any tool or none may be called", Quote(other)));
                    ToolChoice::Auto
                }
            }
        };
        if wanted == ToolChoice::Any && self.list.is_empty() {
            if !self.has_dropped {
                return Err(choice.invalid("requires a tool, but 'tools' has none"));
            }
            choice.note("no tool is left that could be called");
            return Ok(ToolChoice::Auto);
        }
        Ok(wanted)
    }

    fn allow(&mut self, choice: &Field<'_>) -> Result<ToolChoice, ApiError> {
        let required = choice.get("mode").choice(&["auto", "required"])? == 1;
        let mut names = Vec::new();
        for tool in choice.get("tools").items(TOOLS_MAX)? {
            tool.object()?;
            if matches!(tool.get("type").string()?, "function" | "custom") {
                names.push(self.named(&tool)?);
            }
        }
        self.list.retain(|tool| names.contains(&tool.name));
        Ok(if required { ToolChoice::Any } else { ToolChoice::Auto })
    }

    fn named(&self, field: &Field<'_>) -> Result<String, ApiError> {
        let namespace = field.get("namespace").optional(Field::string)?;
        let name = field.get("name");
        let flat = flat(namespace, name.text(NAME_BYTES_MAX)?);
        if self.origins.contains_key(&flat) {
            return Ok(flat);
        }
        Err(name.invalid(format_args!("'{}' is none of 'tools'", Quote(&flat))))
    }
}

fn function(item: &Field<'_>) -> Result<Tool, ApiError> {
    let parameters = item.get("parameters");
    let schema = match parameters.present() {
        Some(parameters) => {
            extensions::schema(parameters)?;
            Value::Object(parameters.object()?.clone())
        }
        None => json!({ "type": "object", "properties": {} }),
    };
    Ok(Tool {
        name: name(&item.get("name"))?.to_owned(),
        description: description(item)?,
        schema,
        // Without it, a schema beyond the grammar engine degrades to any JSON: a 400 would end a session of Codex.
        strict: item.get("strict").flag(false)?,
        field: parameters.path().to_owned(),
    })
}

/// A custom tool as a function. Its format is shown in the description, and enforced as an expression if it can be one.
fn custom(item: &Field<'_>) -> Result<Tool, ApiError> {
    let format = item.get("format");
    let mut text = json!({ "type": "string" });
    let mut description = description(item)?;
    let definition = format.get("definition");
    if let Some(format) = format.present() {
        format.object()?;
        if format.get("type").choice(&["text", "grammar"])? == 1 {
            let given = definition.text(GRAMMAR_BYTES_MAX)?;
            let (kind, expression) = match format.get("syntax").choice(&["lark", "regex"])? {
                0 => ("Lark grammar", lark::pattern(given)),
                _ => ("regular expression", lark::checked(given).map(|()| given.to_owned())),
            };
            match expression {
                Ok(expression) => text["pattern"] = format!("^(?:{expression})$").into(),
                // A 400 would end a session of Codex.
                Err(why) => definition.note(format_args!("is shown to the model, but not enforced: {why}")),
            }
            description.push_str(&format!("\nThe input has to match this {kind}:\n{given}"));
        }
    }
    Ok(Tool {
        name: name(&item.get("name"))?.to_owned(),
        description,
        schema: json!({
            "type": "object", "properties": { CUSTOM_ARGUMENT: text }, "required": [CUSTOM_ARGUMENT],
            "additionalProperties": false,
        }),
        strict: false,
        field: definition.path().to_owned(),
    })
}

fn description(item: &Field<'_>) -> Result<String, ApiError> {
    let description = item.get("description").optional(Field::string)?;
    Ok(description.unwrap_or_default().to_owned())
}

fn name<'a>(field: &Field<'a>) -> Result<&'a str, ApiError> {
    let name = field.text(NAME_BYTES_MAX)?;
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) {
        Ok(name)
    } else {
        Err(field.invalid("should have letters, digits, '_', '-' and '.' only"))
    }
}
