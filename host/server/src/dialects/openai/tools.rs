//! Tools, tool choice, and the legacy function fields.

use serde_json::{Value, json};

use crate::{
    chat::{Tool, ToolChoice},
    dialects::{
        ApiError,
        custom_tools::CustomTools,
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
    pub(super) custom: CustomTools,
}

impl Tools {
    pub(super) fn read(body: &Field<'_>) -> Result<Self, ApiError> {
        for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if let Some(field) = body.get(old).present() {
                return Err(field.invalid(format_args!("is an older form that is not served; use '{new}'")));
            }
        }
        let parallel = body.get("parallel_tool_calls");
        let mut read = Self { single_call: !parallel.flag(true)?, ..Self::default() };
        if let Some(list) = body.get("tools").present() {
            for item in list.items(TOOLS_MAX)? {
                read.add(&item)?;
            }
        }
        if let Some(choice) = body.get("tool_choice").present() {
            read.choose(choice)?;
        }
        Ok(read)
    }

    fn add(&mut self, field: &Field<'_>) -> Result<(), ApiError> {
        let definition = definition(field)?;
        let named = definition.get("name");
        let name = name(&named)?.to_owned();
        if self.tools.iter().any(|other| other.name == name) {
            return Err(named.invalid(format_args!("another tool is called '{name}' already")));
        }
        let is_custom = field.get("type").string()? == "custom";
        self.tools.push(if is_custom { self.custom.read(&definition, name)? } else { function(&definition, name)? });
        Ok(())
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
                1 => self.allow(&choice.get("allowed_tools"))?,
                _ => ToolChoice::Named(self.named(choice)?.to_owned()),
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

    /// The tool named by `{"function": {"name": …}}` or `{"custom": {"name": …}}`.
    fn named<'a>(&self, field: &Field<'a>) -> Result<&'a str, ApiError> {
        let definition = definition(field)?;
        let name = definition.get("name");
        let text = name.string()?;
        if self.tools.iter().any(|tool| tool.name == text) {
            Ok(text)
        } else {
            Err(name.invalid(format_args!("'{}' is none of 'tools'", Quote(text))))
        }
    }
}

/// The object that has a tool's name, under its type.
fn definition<'a>(field: &Field<'a>) -> Result<Field<'a>, ApiError> {
    field.object()?;
    let types = ["function", "custom"];
    let definition = field.get(types[field.get("type").choice(&types)?]);
    definition.object()?;
    Ok(definition)
}

fn function(function: &Field<'_>, name: String) -> Result<Tool, ApiError> {
    let description = function.get("description");
    let parameters = function.get("parameters");
    let schema = match parameters.present() {
        Some(parameters) => Value::Object(parameters.object()?.clone()),
        None => json!({ "type": "object", "properties": {} }),
    };
    Ok(Tool {
        name,
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
        assert_eq!(found, Ok(Tools { tools: vec![tool], single_call: true, ..Tools::default() }));
        let bare = &read(json!({"tools": tools(&["x"])})).unwrap().tools[0];
        assert_eq!((bare.schema["type"].as_str(), bare.strict), (Some("object"), false));
    }

    #[test]
    fn custom_tools_take_a_text() {
        let grammar = json!({"syntax": "regex", "definition": "a+"});
        let custom = json!({"name": "patch", "description": "d", "format": {"type": "grammar", "grammar": grammar}});
        let custom = json!({"type": "custom", "custom": custom});
        let named = json!({"type": "custom", "custom": {"name": "patch"}});
        let list = json!([tools(&["a"])[0], custom]);
        let found = read(json!({ "tools": list, "tool_choice": named })).unwrap();
        assert_eq!(found.choice, ToolChoice::Named("patch".into()));
        assert_eq!((found.custom.has("patch"), found.custom.has("a")), (true, false));
        let patch = &found.tools[1];
        assert_eq!((patch.name.as_str(), &patch.schema["required"]), ("patch", &json!(["input"])));
        assert!(patch.description.ends_with("regular expression:\na+"), "{}", patch.description);
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}});
        let found = read(json!({ "tools": list, "tool_choice": allowed })).unwrap();
        assert_eq!(found.tools.iter().map(|tool| tool.barred).collect::<Vec<_>>(), [true, false]);
        refuses(json!({"tools": [custom, custom]}), "tools.1.custom.name: another tool is called 'patch' already");
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
        refuses(json!({"tools": [{"type": "mcp"}]}), "tools.0.type: should be one of 'function', 'custom', not 'mcp'");
        refuses(json!({"tools": [{"type": "custom"}]}), "tools.0.custom: this field is required");
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
