//! Tools of a request: functions, custom tools as functions with one string, and flattened namespaces, with a map from
//! flat names back to the client's names.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::{
    chat::{Client, Tool, ToolChoice},
    dialects::{
        ApiError, extensions,
        fields::{Field, Quote},
    },
    requests::Chats,
};
use pensieve_protocol::prompt::Syntax;

const TOOLS_MAX: usize = 512;
pub(super) const NAME_BYTES_MAX: usize = 128;
const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Limits of the formats that are enforced per request: number and total bytes.
const FORMATS_MAX: usize = 32;
const FORMATS_BYTES_MAX: usize = 256 << 10;
/// Warnings per request; further ones would only repeat them.
const WARNINGS_MAX: usize = 16;
/// Between a namespace and a tool's name.
const SEPARATOR: &str = "__";
/// The argument of a custom tool's function.
pub(super) const CUSTOM_ARGUMENT: &str = "input";

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
    /// Formats of custom tools, for [`Tools::enforce`].
    formats: Vec<Format>,
    /// The request has unsupported tools, which were dropped.
    has_dropped: bool,
}

/// The format that the input of a custom tool must match.
#[derive(Clone, Debug)]
pub(super) struct Format {
    /// Flat name of the tool.
    tool: String,
    /// The request field with the definition.
    path: String,
    syntax: Syntax,
    definition: String,
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

    /// Enforces the formats of custom tools among `tools`: a grammar process converts each to a regular expression. One
    /// that cannot be converted is a warning, as a 400 would end a Codex session.
    pub(super) async fn enforce(
        &mut self,
        chats: &Chats,
        client: &Client,
        tools: &mut [Tool],
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let asked = self.formats_of(tools, warnings);
        let formats: Vec<_> = asked.iter().map(|format| (format.syntax, format.definition.as_str())).collect();
        let expressed = chats.expressions(client, &formats).await.map_err(ApiError::of_model)?;
        for (format, expressed) in asked.into_iter().zip(expressed) {
            format.apply(tools, expressed, warnings);
        }
        // Formats and schemas may be long, and are not needed for the answer.
        (self.formats, self.list) = (Vec::new(), Vec::new());
        Ok(())
    }

    /// The formats of these tools, up to the limits.
    pub(super) fn formats_of(&self, tools: &[Tool], warnings: &mut Vec<String>) -> Vec<&Format> {
        let mut remaining = FORMATS_BYTES_MAX;
        let mut formats = Vec::new();
        for format in
            self.formats.iter().filter(|format| tools.iter().any(|tool| tool.name == format.tool && !tool.barred))
        {
            match remaining.checked_sub(format.definition.len()).filter(|_| formats.len() < FORMATS_MAX) {
                Some(left) => {
                    remaining = left;
                    formats.push(format);
                }
                None => format.warn("the request has too many formats, or they are too long together", warnings),
            }
        }
        formats
    }

    fn add(&mut self, item: &Field<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        item.object()?;
        match item.get("type").string()? {
            "function" => self.push(function(item)?, namespace, item, false),
            "custom" => {
                let (tool, format) = custom(item)?;
                self.formats.extend(format.map(|format| Format { tool: flat(namespace, &tool.name), ..format }));
                self.push(tool, namespace, item, true)
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

impl Format {
    /// Constrains the tool's input to the regular expression, or adds the reason to the warnings.
    pub(super) fn apply(&self, tools: &mut [Tool], expressed: Result<String, String>, warnings: &mut Vec<String>) {
        match (expressed, tools.iter_mut().find(|tool| tool.name == self.tool)) {
            (Ok(expression), Some(tool)) => {
                let pattern = format!("^(?:{expression})$");
                tool.schema["properties"][CUSTOM_ARGUMENT]["pattern"] = pattern.into();
                tool.input = Some(expression);
            }
            (Err(why), _) => self.warn(&why, warnings),
            (Ok(_), None) => {}
        }
    }

    fn warn(&self, why: &str, warnings: &mut Vec<String>) {
        if warnings.len() < WARNINGS_MAX {
            warnings.push(format!("{}: is shown to the model, but not enforced: {why}", self.path));
        }
    }
}

/// Converts a custom tool to a function and its format, which is also put into the description.
fn custom(item: &Field<'_>) -> Result<(Tool, Option<Format>), ApiError> {
    let given = item.get("format");
    let mut description = description(item)?;
    let definition = given.get("definition");
    let mut format = None;
    if let Some(given) = given.present() {
        given.object()?;
        if given.get("type").choice(&["text", "grammar"])? == 1 {
            let text = definition.text(GRAMMAR_BYTES_MAX)?;
            let (kind, syntax) = match given.get("syntax").choice(&["lark", "regex"])? {
                0 => ("Lark grammar", Syntax::Lark),
                _ => ("regular expression", Syntax::Regex),
            };
            let (path, definition) = (definition.path().to_owned(), text.to_owned());
            format = Some(Format { tool: String::new(), path, syntax, definition });
            description.push_str(&format!("\nThe input has to match this {kind}:\n{text}"));
        }
    }
    let tool = Tool {
        name: name(&item.get("name"))?.to_owned(),
        description,
        schema: json!({
            "type": "object", "properties": { CUSTOM_ARGUMENT: { "type": "string" } }, "required": [CUSTOM_ARGUMENT],
            "additionalProperties": false,
        }),
        strict: false,
        field: definition.path().to_owned(),
        ..Tool::default()
    };
    Ok((tool, format))
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
