//! Tools, tool choice, and the legacy function fields.

use serde_json::{Value, json};

use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError,
        fields::{Field, Quote},
    },
};

const TOOLS_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tools {
    pub(super) tools: Vec<Tool>,
    pub(super) choice: ToolChoice,
    pub(super) single_call: bool,
}

impl Tools {
    pub(super) fn read(body: &Field<'_>) -> Result<Self, ApiError> {
        for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if let Some(field) = body.get(old).present() {
                return Err(field.invalid(format_args!("is an older form that is not served; use '{new}'")));
            }
        }
        let field = body.get("tools");
        let tools = field.optional(list)?.unwrap_or_default();
        let parallel = body.get("parallel_tool_calls");
        let parallel = parallel.flag(true)?;
        let mut read = Self { tools, choice: ToolChoice::Auto, single_call: !parallel };
        if let Some(choice) = body.get("tool_choice").present() {
            read.choose(choice)?;
        }
        Ok(read)
    }

    fn choose(&mut self, choice: &Field<'_>) -> Result<(), ApiError> {
        self.choice = if choice.is_string() {
            match choice.choice(&["none", "auto", "required"])? {
                0 => ToolChoice::None,
                1 => ToolChoice::Auto,
                _ => ToolChoice::Any,
            }
        } else {
            choice.object()?;
            match choice.get("type").choice(&["function", "allowed_tools", "custom"])? {
                0 => ToolChoice::Named(self.named(choice)?.to_owned()),
                1 => self.allow(&choice.get("allowed_tools"))?,
                _ => return Err(choice.invalid("custom tools are not served; use tools of type 'function'")),
            }
        };
        if self.choice == ToolChoice::Any && self.tools.is_empty() {
            return Err(choice.invalid("requires a tool, but 'tools' has none"));
        }
        Ok(())
    }

    /// Restricts the calls to the allowed tools. The others are shown all the same, so that the cached prompt remains valid.
    fn allow(&mut self, allowed: &Field<'_>) -> Result<ToolChoice, ApiError> {
        allowed.object()?;
        let required = allowed.get("mode").choice(&["auto", "required"])? == 1;
        let listed = allowed.get("tools");
        let names = listed.items(TOOLS_MAX)?.map(|tool| {
            tool.object()?;
            self.named(&tool)
        });
        let names = names.collect::<Result<Vec<&str>, ApiError>>()?;
        if let ([name], true) = (names.as_slice(), required) {
            return Ok(ToolChoice::Named((*name).to_owned()));
        }
        Tool::allow(&mut self.tools, &names);
        if required && names.is_empty() {
            return Err(listed.invalid("has no tool, but one is required"));
        }
        Ok(if required { ToolChoice::Any } else { ToolChoice::Auto })
    }

    /// The tool named by `{"function": {"name": …}}`.
    fn named<'a>(&self, field: &Field<'a>) -> Result<&'a str, ApiError> {
        let function = field.get("function");
        function.object()?;
        let name = function.get("name");
        let text = name.string()?;
        if self.tools.iter().any(|tool| tool.name == text) {
            Ok(text)
        } else {
            Err(name.invalid(format_args!("'{}' is none of 'tools'", Quote(text))))
        }
    }
}

fn list(field: &Field<'_>) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::new();
    for item in field.items(TOOLS_MAX)? {
        let tool = tool(&item)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let name = item.get("function").get("name");
            return Err(name.invalid(format_args!("another tool is called '{}' already", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(field: &Field<'_>) -> Result<Tool, ApiError> {
    field.object()?;
    if field.get("type").string()? != "function" {
        return Err(field.get("type").invalid("only tools of type 'function' are served"));
    }
    let function = field.get("function");
    function.object()?;
    let description = function.get("description");
    let parameters = function.get("parameters");
    let schema = match parameters.present() {
        Some(parameters) => Value::Object(parameters.object()?.clone()),
        None => json!({ "type": "object", "properties": {} }),
    };
    Ok(Tool {
        name: name(&function.get("name"))?.to_owned(),
        description: description.string_or_empty()?.to_owned(),
        schema,
        strict: function.get("strict").flag(false)?,
        field: parameters.path().to_owned(),
        ..Tool::default()
    })
}

/// The name of a function or schema.
pub(super) fn name<'a>(field: &Field<'a>) -> Result<&'a str, ApiError> {
    let name = field.text(NAME_BYTES_MAX)?;
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)) {
        Ok(name)
    } else {
        Err(field.invalid("should have letters, digits, '_' and '-' only"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Tools, String> {
        Tools::read(&Field::root(&body)).map_err(|problem| problem.message)
    }

    fn tools(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect()
    }

    fn refuses(body: Value, expect: &str) {
        assert_eq!(read(body).unwrap_err(), expect);
    }

    #[test]
    fn tools_are_functions_with_schemas() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let function = json!({"name": "add", "description": "adds", "parameters": schema, "strict": true});
        let found = read(json!({"tools": [{"type": "function", "function": function}], "parallel_tool_calls": false}));
        let field = "tools.0.function.parameters".into();
        let tool =
            Tool { name: "add".into(), description: "adds".into(), schema, strict: true, field, ..Tool::default() };
        assert_eq!(found, Ok(Tools { tools: vec![tool], choice: ToolChoice::Auto, single_call: true }));
        let bare = &read(json!({"tools": tools(&["x"])})).unwrap().tools[0];
        assert_eq!((bare.schema["type"].as_str(), bare.strict), (Some("object"), false));
    }

    #[test]
    fn choices_name_tools() {
        let choice = |choice: Value| read(json!({"tools": tools(&["a", "b", "c"]), "tool_choice": choice}));
        let names = |tools: &Tools| {
            assert_eq!(tools.tools.len(), 3, "the prompt shows them all");
            tools.tools.iter().filter(|tool| !tool.barred).map(|tool| tool.name.as_str()).collect::<String>()
        };
        let table = [
            (json!("none"), ToolChoice::None, "abc"),
            (json!("auto"), ToolChoice::Auto, "abc"),
            (Value::Null, ToolChoice::Auto, "abc"),
            (json!("required"), ToolChoice::Any, "abc"),
            (json!({"type": "function", "function": {"name": "b"}}), ToolChoice::Named("b".into()), "abc"),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools(&["c", "a"])}}),
                ToolChoice::Auto,
                "ac",
            ),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools(&["a", "b"])}}),
                ToolChoice::Any,
                "ab",
            ),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools(&["b"])}}),
                ToolChoice::Named("b".into()),
                "abc",
            ),
        ];
        for (sent, expect, kept) in table {
            let found = choice(sent.clone()).unwrap();
            assert_eq!((&found.choice, names(&found).as_str()), (&expect, kept), "{sent}");
        }
        assert_eq!(read(json!({"tool_choice": "none"})).unwrap().choice, ToolChoice::None);
    }

    #[test]
    fn complaints_name_the_field() {
        refuses(json!({"functions": []}), "functions: is an older form that is not served; use 'tools'");
        refuses(
            json!({"function_call": "auto"}),
            "function_call: is an older form that is not served; use 'tool_choice'",
        );
        refuses(json!({"tools": {}}), "tools: should be a list, not an object");
        refuses(json!({"tools": tools(&["a"; 129])}), "tools: has 129 items, more than 128");
        refuses(json!({"tools": tools(&["a", "a"])}), "tools.1.function.name: another tool is called 'a' already");
        refuses(json!({"tools": tools(&[""])}), "tools.0.function.name: should not be empty");
        refuses(
            json!({"tools": tools(&["a b"])}),
            "tools.0.function.name: should have letters, digits, '_' and '-' only",
        );
        refuses(json!({"tools": tools(&[&"a".repeat(65)])}), "tools.0.function.name: has 65 bytes, more than 64");
        refuses(json!({"tools": [{"type": "custom"}]}), "tools.0.type: only tools of type 'function' are served");
        refuses(json!({"tools": [{"type": "function"}]}), "tools.0.function: this field is required");
        refuses(
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}),
            "tools.0.function.parameters: should be an object, not a list",
        );
        refuses(json!({"tool_choice": "required"}), "tool_choice: requires a tool, but 'tools' has none");
        refuses(json!({"tool_choice": "any"}), "tool_choice: should be one of 'none', 'auto', 'required', not 'any'");
        refuses(
            json!({"tools": tools(&["a"]), "tool_choice": {"type": "function", "function": {"name": "b"}}}),
            "tool_choice.function.name: 'b' is none of 'tools'",
        );
        refuses(
            json!({"tools": tools(&["a"]), "tool_choice":
                {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}}),
            "tool_choice.allowed_tools.tools: has no tool, but one is required",
        );
        refuses(json!({"parallel_tool_calls": "no"}), "parallel_tool_calls: should be true or false, not a string");
    }
}
