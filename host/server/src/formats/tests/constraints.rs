//! Call grammars, compiled by the engine for the scripted model's vocabulary.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::json;

use super::*;
use crate::chat::{Tool, ToolChoice};
use pensieve_grammar::{Compiler, Constraint, is_allowed};
use pensieve_protocol::{
    grammar::{Grammar, Part, Spec},
    vocabulary::Vocabulary,
};

fn vocabulary() -> Arc<Vocabulary> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/scripted/tokenizer.json");
    Arc::new(Vocabulary::new(&std::fs::read_to_string(path).unwrap(), 2048, &[2037]).unwrap())
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str, schema| Tool { name: name.into(), schema, ..Tool::default() };
    let command = json!({
        "type": "object", "$defs": { "text": { "type": "string" } },
        "properties": { "command": { "$ref": "#/$defs/text" }, "timeout": { "type": "integer" } },
        "required": ["command"], "additionalProperties": false,
    });
    vec![
        tool("Bash", command),
        tool(
            "BashOutput",
            json!({ "type": "object", "properties": { "id": { "enum": ["a", "b"] } }, "required": ["id"] }),
        ),
        tool("hopeless", json!({ "type": "object", "properties": { "x": { "$ref": "https://example.org/x" } } })),
    ]
}

pub(super) struct Case {
    pub vocabulary: Arc<Vocabulary>,
    pub spec: Spec,
    pub compiler: Compiler,
}

impl Case {
    pub fn new(
        format: &OutputFormat,
        choice: &ToolChoice,
        single: bool,
        answer: Option<Grammar>,
        thoughts: Thoughts,
    ) -> Self {
        let vocabulary = vocabulary();
        let markers = Markers::of(format, &vocabulary);
        let answer = answer.map(|grammar| Part::new("answer", grammar));
        let (tools, answer) = (&tools(), answer.as_ref());
        let rules = Rules { format, markers: &markers, tools, choice, single, answer, thoughts, open: false };
        let spec = rules.spec().unwrap();
        let compiler = Compiler::new(vocabulary.clone(), Duration::from_secs(20));
        Self { vocabulary, spec, compiler }
    }

    pub fn of(format: &OutputFormat, choice: &ToolChoice) -> Self {
        Self::new(format, choice, false, None, Thoughts::Never)
    }

    /// These tools, one of which must be called.
    pub fn with_tools(format: &OutputFormat, tools: &[Tool]) -> Self {
        Self::with_choice(format, tools, &ToolChoice::Any)
    }

    pub fn with_choice(format: &OutputFormat, tools: &[Tool], choice: &ToolChoice) -> Self {
        let (vocabulary, thoughts) = (vocabulary(), Thoughts::Never);
        let markers = Markers::of(format, &vocabulary);
        let rules =
            Rules { format, markers: &markers, tools, choice, single: false, answer: None, thoughts, open: false };
        let compiler = Compiler::new(vocabulary.clone(), Duration::from_secs(20));
        Self { vocabulary, spec: rules.spec().unwrap(), compiler }
    }

    /// Writes a text token by token as far as the grammar allows. Returns the number of bytes written, and whether the
    /// turn may end there.
    pub fn write(&self, text: &str) -> (usize, bool) {
        let mut constraint = self.compiler.compile(&self.spec).unwrap();
        let mut written = 0;
        while written < text.len() && !constraint.is_complete() {
            let rest = &text.as_bytes()[written..];
            let fits = |token: &u32| {
                let bytes = self.vocabulary.bytes(*token);
                !bytes.is_empty() && rest.starts_with(bytes)
            };
            let mut tokens: Vec<u32> = (0..self.vocabulary.size()).filter(fits).collect();
            tokens.sort_by_key(|token| std::cmp::Reverse(self.vocabulary.bytes(*token).len()));
            let Some(token) = tokens.into_iter().find(|token| allows(&mut constraint, *token)) else { break };
            constraint.accept(token).unwrap();
            written += self.vocabulary.bytes(token).len();
        }
        let may_end = constraint.is_complete() || allows(&mut constraint, 2037);
        (written, may_end)
    }

    /// Returns whether an answer may begin with a token.
    pub fn allows_token(&self, token: u32) -> bool {
        allows(&mut self.compiler.compile(&self.spec).unwrap(), token)
    }

    pub fn allows(&self, text: &str) {
        assert_eq!(self.write(text), (text.len(), true), "{text}: {:#?}", self.spec);
    }

    /// Asserts that exactly the text before `¦` is allowed.
    pub fn refuses(&self, text: &str) {
        let (head, tail) = text.split_once('¦').unwrap();
        let (written, _) = self.write(&format!("{head}{tail}"));
        assert_eq!(&format!("{head}{tail}")[..written], head, "{:#?}", self.spec);
    }
}

fn allows(constraint: &mut Constraint, token: u32) -> bool {
    constraint.mask().unwrap().is_none_or(|mask| is_allowed(mask, token))
}

#[test]
fn hermes_calls_keep_to_their_tools_schema() {
    let case = Case::of(&hermes(), &ToolChoice::Auto);
    let call = "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>";
    case.allows("Any text, {\"name\": 7}.");
    case.allows(call);
    case.allows(&format!("First.\n{call}\n{call}\nThen."));
    case.allows("<tool_call>{\"name\":\"BashOutput\",\"arguments\":{\"id\":\"b\"}}</tool_call>");
    case.allows("<tool_call>{\"name\":\"hopeless\",\"arguments\":{\"y\":[1]}}</tool_call>");
    case.refuses("Now <tool_call>{\"name\": \"¦rm");
    case.refuses("<tool_call>{\"name\": \"Bash\", \"arguments\": {\"¦wrong\": 1}}");
    case.refuses("<tool_call>{\"name\": \"Bash\", \"arguments\": {¦}}");
    case.refuses("<tool_call>{\"name\": \"BashOutput\", \"arguments\": {\"id\": \"¦c\"}}");
    case.refuses("<tool_call>{\"name\": \"hopeless\", \"arguments\": ¦7}");
}

#[test]
fn a_tool_that_is_barred_is_not_called_by_any_form() {
    let mut tools = tools();
    Tool::allow(&mut tools, &["BashOutput"]);
    for choice in [ToolChoice::Auto, ToolChoice::Any] {
        let case = Case::with_choice(&hermes(), &tools, &choice);
        case.allows("<tool_call>{\"name\": \"BashOutput\", \"arguments\": {\"id\": \"a\"}}</tool_call>");
        case.refuses("<tool_call>{\"name\": \"Bash¦\"");
        case.refuses("<tool_call>{\"name\": \"¦hopeless\"");
        let case = Case::with_choice(&llama(), &tools, &choice);
        case.allows("{\"name\": \"BashOutput\", \"parameters\": {\"id\": \"a\"}}");
        if choice == ToolChoice::Any {
            case.refuses("{\"name\": \"Bash¦\", \"parameters\": {}}");
        } else {
            // Without a marker such a call is free text, and the parser knows no tool of that name.
            case.allows("{\"name\": \"Bash\", \"parameters\": {}}");
        }
        let case = Case::with_choice(&new_mistral(), &tools, &choice);
        case.refuses("[TOOL_CALLS]Bash¦[ARGS]");
    }
}

#[test]
fn a_single_call_ends_the_answer() {
    let case = Case::new(&hermes(), &ToolChoice::Auto, true, None, Thoughts::Never);
    let call = "<tool_call>{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}</tool_call>";
    case.allows(call);
    case.refuses(&format!("{call}¦\n{call}"));
}

#[test]
fn a_call_can_be_forced() {
    let call = "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>";
    let case = Case::of(&hermes(), &ToolChoice::Any);
    case.allows(call);
    case.allows(&format!("{call}\n{call}"));
    case.refuses("¦Text");
    assert_eq!(case.write(""), (0, false));
    let named = Case::of(&hermes(), &ToolChoice::Named("BashOutput".into()));
    named.allows("<tool_call>{\"name\": \"BashOutput\", \"arguments\": {\"id\": \"a\"}}</tool_call>");
    named.refuses("<tool_call>\n{\"name\": \"Bash¦\", \"arguments\": {}}");
    let single = Case::new(&hermes(), &ToolChoice::Any, true, None, Thoughts::Never);
    single.allows(call);
    single.refuses(&format!("{call}¦\n{call}"));
}

#[test]
fn calls_can_be_barred() {
    let case = Case::of(&hermes(), &ToolChoice::None);
    case.allows("Text with <tool> and <tool_ca> in it.");
    case.allows("");
    let (written, _) = case.write("Text <tool_call>");
    assert!(written < "Text <tool_call>".len());
    let case = Case::of(&new_mistral(), &ToolChoice::None);
    let marker = (0..2048).find(|token| case.vocabulary.bytes(*token) == b"[TOOL_CALLS]").unwrap();
    assert!(!case.allows_token(marker));
    let case = Case::of(&llama(), &ToolChoice::None);
    case.allows("{\"name\": \"Alice\"}");
    let (written, _) = case.write("{\"name\": \"Bash\", ");
    assert!(written < "{\"name\": \"Bash\"".len(), "{written}");
}

#[test]
fn llama_calls_without_a_marker_are_seen_by_their_tools_name() {
    let case = Case::of(&llama(), &ToolChoice::Auto);
    case.allows("Just text.");
    case.allows("{\"name\": \"Alice\", \"age\": 3}");
    case.allows("{\"name\": \"Bash\", \"parameters\": {\"command\": \"ls\"}}");
    case.allows("<|python_tag|>{\"name\": \"Bash\", \"parameters\": {\"command\": \"ls\"}}");
    case.refuses("{\"name\": \"Bash\", \"parameters\": {\"¦wrong\": 1}}");
    case.refuses("Text <|python_tag|>{\"name\": \"¦rm");
    let forced = Case::of(&llama(), &ToolChoice::Any);
    forced.allows("{\"name\": \"Bash\", \"parameters\": {\"command\": \"ls\"}}; {\"name\": \"BashOutput\", \"parameters\": {\"id\": \"a\"}}");
    forced.refuses("¦Text");
}

#[test]
fn mistral_and_phi_calls_keep_to_their_schemas() {
    let case = Case::of(&mistral(), &ToolChoice::Auto);
    case.allows("[TOOL_CALLS] [{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}, {\"name\": \"BashOutput\", \"arguments\": {\"id\": \"a\"}}]");
    case.refuses("[TOOL_CALLS] [{\"name\": \"¦rm\"");
    let case = Case::of(&mistral(), &ToolChoice::Any);
    case.allows("[TOOL_CALLS][{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}]");
    case.refuses("¦[{");
    let case = Case::of(&new_mistral(), &ToolChoice::Auto);
    case.allows(
        "[TOOL_CALLS]Bash[CALL_ID]abcdefghi[ARGS]{\"command\": \"ls\"}[TOOL_CALLS]BashOutput[ARGS]{\"id\": \"a\"}",
    );
    case.refuses("[TOOL_CALLS]Bash[ARGS]{\"¦wrong\"");
    case.refuses("[TOOL_CALLS]¦rm");
    let case = Case::of(&phi(), &ToolChoice::Named("Bash".into()));
    case.allows("<|tool_call|>[{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}]<|/tool_call|>");
    let case = Case::of(&functionary(), &ToolChoice::Any);
    case.allows("<function=Bash>{\"command\": \"ls\"}</function>");
    case.refuses("<function=Bash>{\"¦x\": 1}");
}

#[test]
fn an_answer_of_a_given_form_and_calls_stand_beside_each_other() {
    let answer = Grammar::json_schema(json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"], "additionalProperties": false }).to_string(), false);
    for format in [hermes(), llama(), new_mistral(), mistral()] {
        let case = Case::new(&format, &ToolChoice::Auto, false, Some(answer.clone()), Thoughts::Never);
        case.allows("{\"ok\": true}");
        case.refuses("¦Text");
        case.refuses("{\"¦no\": 1}");
    }
    let case = Case::new(&hermes(), &ToolChoice::Auto, false, Some(answer.clone()), Thoughts::Never);
    case.allows("<tool_call>{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}</tool_call>");
    let case = Case::new(&hermes(), &ToolChoice::None, false, Some(answer.clone()), Thoughts::Never);
    case.allows("{\"ok\": true}");
    case.refuses("¦<tool_call>");
    let case = Case::new(&llama(), &ToolChoice::Auto, false, Some(answer.clone()), Thoughts::Never);
    case.allows("<|python_tag|>{\"name\": \"Bash\", \"parameters\": {\"command\": \"ls\"}}");
    let case = Case::new(&thinking(hermes()), &ToolChoice::Auto, false, Some(answer), Thoughts::Possible);
    case.allows("<think>\nHm, anything.\n</think>\n\n{\"ok\": true}");
    case.refuses("<think>Hm.</think>¦Text");
}

#[test]
fn thoughts_are_free() {
    let case = Case::new(&thinking(hermes()), &ToolChoice::Any, false, None, Thoughts::Begun);
    let call = "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>";
    case.allows(&format!("Anything, <tool_call> {{}}.\n</think>\n\n{call}"));
    case.refuses("So.</think>\n\n¦No.");
}

#[test]
fn strict_tools_say_which_of_them_cannot_be_enforced() {
    let vocabulary = vocabulary();
    let tools: Vec<Tool> =
        tools().into_iter().map(|tool| Tool { field: format!("tools.{}", tool.name), strict: true, ..tool }).collect();
    let (format, choice) = (hermes(), ToolChoice::Auto);
    let markers = Markers::of(&format, &vocabulary);
    let rules = Rules {
        format: &format,
        markers: &markers,
        tools: &tools,
        choice: &choice,
        single: false,
        answer: None,
        thoughts: Thoughts::Never,
        open: false,
    };
    let compiler = Compiler::new(vocabulary.clone(), Duration::from_secs(20));
    let error = compiler.compile(&rules.spec().unwrap()).err().unwrap().to_string();
    assert!(error.starts_with("tools.hopeless: "), "{error}");
}

#[test]
fn many_tools_are_one_grammar() {
    let tools: Vec<Tool> = (0..200)
        .map(|index| {
            let schema = json!({ "type": "object", "properties": { format!("p{index}"): { "type": "string" } } });
            Tool { name: format!("tool_{index}"), schema, ..Tool::default() }
        })
        .collect();
    let case = Case::with_tools(&hermes(), &tools);
    case.allows("<tool_call>{\"name\": \"tool_187\", \"arguments\": {\"p187\": \"x\"}}</tool_call>");
}
