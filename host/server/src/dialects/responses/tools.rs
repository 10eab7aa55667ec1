//! Tools of a request: functions, custom tools as functions with one string, and flattened namespaces, with a map from
//! flat names back to the client's names.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError,
        custom_tools::CustomTools,
        extensions,
        fields::{Field, Quote},
    },
};

const TOOLS_MAX: usize = 512;
pub(super) const NAME_BYTES_MAX: usize = 128;
/// Between a namespace and a tool's name.
const SEPARATOR: &str = "__";

/// A tool's name at the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// A custom tool, which takes text instead of arguments.
    pub(super) is_custom: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    pub(super) list: Vec<Tool>,
    pub(super) choice: ToolChoice,
    pub(super) single_call: bool,
    origins: HashMap<String, Origin>,
    pub(super) custom: CustomTools,
    /// The request has unsupported tools, which were dropped.
    has_dropped: bool,
}

/// The tool name that the model sees.
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

    /// The client's name for a flat name.
    pub(super) fn origin(&self, flat: &str) -> Origin {
        let plain = || Origin { namespace: None, name: flat.to_owned(), is_custom: false };
        self.origins.get(flat).cloned().unwrap_or_else(plain)
    }

    fn add(&mut self, item: &Field<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        item.object()?;
        match item.get("type").string()? {
            "function" => self.push(function(item)?, namespace, item, false),
            "custom" => {
                let own = name(&item.get("name"))?;
                let tool = self.custom.read(item, flat(namespace, own))?;
                self.push(Tool { name: own.to_owned(), ..tool }, namespace, item, true)
            }
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
        if required && names.is_empty() && !self.has_dropped {
            return Err(choice.get("tools").invalid("has no tool that is served here, but one is required"));
        }
        Tool::allow(&mut self.list, &names);
        if required && names.is_empty() {
            choice.note("no tool is left that could be called");
            return Ok(ToolChoice::Auto);
        }
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
        // Unless strict, a schema that the grammar engine does not support degrades to any JSON: a 400 would end a
        // Codex session.
        strict: item.get("strict").flag(false)?,
        field: parameters.path().to_owned(),
        ..Tool::default()
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
