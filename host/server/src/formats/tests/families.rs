//! Call formats of all families: the calls that transformers renders with a family's template
//! (`tests/reference/templates.py`) are what its models write. They must be parsed however they are chunked, allowed by
//! the grammar, and refused once they violate the tool's schema.

use std::{fs, path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    constraints::Case,
    parsing::{pieces_of, read_calls_of},
    *,
};
use crate::chat::{Tool, ToolChoice};
use pensieve_grammar::Compiler;
use pensieve_protocol::vocabulary::Vocabulary;

struct Family {
    /// The template's name among the fixtures.
    template: &'static str,
    /// Text right before an answer.
    begin: &'static str,
    /// Text right after an answer.
    end: &'static str,
    /// Special tokens in the vocabulary.
    special: &'static [&'static str],
    /// The pieces expected for an answer with text and two calls, or one call if the family allows only one at a time.
    beside: &'static [&'static str],
}

const LOOK: &str = "T:I look.";
const BERN: &str = r#"C:get_weather {"place": "Bern"}"#;
const NOW: &str = "C:now {}";
const IM_START: &str = "<|im_start|>assistant\n";
const IM_END: &str = "<|im_end|>";
const DEEPSEEK: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
];

const fn family(
    template: &'static str,
    begin: &'static str,
    end: &'static str,
    special: &'static [&'static str],
    beside: &'static [&'static str],
) -> Family {
    Family { template, begin, end, special, beside }
}

const FAMILIES: &[Family] = &[
    family("commandr", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>", &[], &[LOOK, BERN, NOW]),
    family("deepseek", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", DEEPSEEK, &[LOOK, BERN, NOW]),
    family("deepseek31", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>", DEEPSEEK, &[LOOK, BERN, NOW]),
    family(
        "gemma4",
        "<|turn>model\n",
        "<|tool_response>",
        &["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"],
        &[LOOK, BERN, NOW],
    ),
    family("glm45", "<|assistant|>", "<|observation|>", &["<|observation|>"], &[LOOK, BERN, NOW]),
    family(
        "granite3",
        "<|start_of_role|>assistant<|end_of_role|>",
        "<|end_of_text|>",
        &["<|tool_call|>"],
        &[LOOK, BERN, NOW],
    ),
    family(
        "harmony",
        "<|start|>assistant",
        "<|start|>functions",
        &["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"],
        &["R:I look.", BERN],
    ),
    family("hermes", "<|im_start|>assistant\n<", IM_END, &[], &[BERN, NOW]),
    family(
        "kimi",
        "<|im_assistant|>assistant<|im_middle|>",
        "<|im_end|>",
        &[
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_argument_begin|>",
        ],
        &[LOOK, BERN, NOW],
    ),
    family("lfm2", IM_START, IM_END, &["<|tool_call_start|>", "<|tool_call_end|>"], &[LOOK, BERN, NOW]),
    family("llama31", "assistant<|end_header_id|>\n\n{", "<|eot_id|>", &["<|python_tag|>"], &[BERN]),
    family(
        "llama4python",
        "assistant<|header_end|>\n\n",
        "<|eot|>",
        &["<|python_start|>", "<|python_end|>"],
        &[LOOK, BERN, NOW],
    ),
    family("minimax", "]~b]ai\n", "[e~[", &[], &[LOOK, BERN, NOW]),
    family("mistral3", "[/INST]", "</s>", &["[TOOL_CALLS]"], &[BERN, NOW]),
    family("mistral_small", "[/INST]", "</s>", &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"], &[LOOK, BERN, NOW]),
    family("qwen25", IM_START, IM_END, &[], &[LOOK, BERN, NOW]),
    family("qwen3", IM_START, IM_END, &[], &[LOOK, BERN, NOW]),
    family("qwen3coder", IM_START, IM_END, &[], &[LOOK, BERN, NOW]),
];

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates");
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A family with its detected format and the conversations rendered by its template.
struct Known {
    family: &'static Family,
    format: OutputFormat,
    cases: Value,
}

impl Known {
    /// Splits a rendered conversation into the prompt and the answer.
    fn answer(&self, conversation: &str, asked: &str) -> (String, String) {
        let case = &self.cases[conversation];
        let text = case["folded"].as_str().or(case["text"].as_str()).unwrap();
        let Family { template, begin, end, .. } = self.family;
        let asked = text.find(asked).unwrap_or_else(|| panic!("{template}: {text}"));
        // A call's first letter at the end of `begin` belongs to the call; it is there to skip text before the call.
        let kept = begin.len() - begin.trim_end_matches(['{', '<']).len();
        let start =
            text[asked..].find(begin).unwrap_or_else(|| panic!("{template}: {text}")) + asked + begin.len() - kept;
        let length = text[start..].find(end).unwrap_or_else(|| panic!("{template}: {text}"));
        (text[..start].to_owned(), text[start..start + length].to_owned())
    }
}

fn families() -> Vec<Known> {
    let rendered: Value = serde_json::from_str(&file("rendered.json")).unwrap();
    let known = FAMILIES.iter().map(|family| {
        let format = OutputFormat::find(&file(&format!("{}.jinja", family.template)), |_| false);
        Known { family, format, cases: rendered[family.template]["cases"].clone() }
    });
    known.collect()
}

fn tools() -> Vec<Tool> {
    let given: Value = serde_json::from_str(&file("conversations.json")).unwrap();
    let tool = |tool: &Value| {
        let (name, schema) = (tool["function"]["name"].as_str().unwrap(), tool["function"]["parameters"].clone());
        Tool { name: name.into(), schema, ..Tool::default() }
    };
    given["tools"].as_array().unwrap().iter().map(tool).collect()
}

/// The signatures of these tools, for the parser.
pub(super) fn signatures() -> Vec<Signature> {
    tools().iter().map(Signature::of).collect()
}

fn read(format: &OutputFormat, thoughts: Thoughts, pieces: &[&[u8]], cut: bool) -> Vec<String> {
    read_calls_of(signatures().into(), format, thoughts, pieces, cut)
}

/// Every family's format, with the answers that its template writes.
pub(super) fn written() -> Vec<(OutputFormat, Vec<String>)> {
    let cases = [("a_call", "Look."), ("typed_arguments", "Look."), ("calls_beside_text", "time?")];
    let answers = |known: &Known| cases.iter().map(|(case, asked)| known.answer(case, asked).1).collect();
    families().into_iter().map(|known| (known.format.clone(), answers(&known))).collect()
}

/// Parses the arguments of calls as JSON; other pieces stay as they are.
fn meant(pieces: &[String]) -> Vec<(String, Value)> {
    let meant = pieces.iter().map(|piece| match piece.strip_prefix("C:").and_then(|call| call.split_once(' ')) {
        Some((name, arguments)) => {
            let arguments = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
            (format!("C:{name}"), arguments)
        }
        None => (piece.clone(), Value::Null),
    });
    meant.collect()
}

/// Checks that the result is the same for all chunks, and that a truncated answer shows nothing that the whole does not
/// show.
fn check(known: &Known, thoughts: Thoughts, answer: &str, expect: &[(String, Value)]) {
    let (name, bytes) = (known.family.template, answer.as_bytes());
    let whole = read(&known.format, thoughts, &[bytes], false);
    assert_eq!(meant(&whole), expect, "{name}: {answer}");
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&known.format, thoughts, &single, false), whole, "{name}: {answer}, by bytes");
    let mut random = fastrand::Rng::with_seed(5);
    for place in 0..=bytes.len() {
        let (head, tail) = bytes.split_at(place);
        assert_eq!(read(&known.format, thoughts, &[head, tail], false), whole, "{name}: {answer}, cut at {place}");
        assert_eq!(read(&known.format, thoughts, &pieces_of(bytes, &mut random), false), whole, "{name}: {answer}");
        if known.format.calls.as_ref().is_some_and(Calls::may_begin) {
            // Text that could be an unmarked call is shown.
            continue;
        }
        let broken_off = read(&known.format, thoughts, &[head], true);
        for (piece, full) in broken_off.iter().zip(&whole) {
            // A single character may be the beginning of a marker, or just that character.
            let but_one = piece.strip_suffix(|_| true).unwrap_or_default();
            let same = full.starts_with(piece.as_str())
                || full.starts_with(but_one.trim_end())
                || ["T:", "R:"].contains(&but_one.trim_end());
            assert!(same, "{name}: {piece:?} is shown of {full:?} where {answer:?} ends at {place}");
        }
        assert!(broken_off.len() <= whole.len(), "{name}: {broken_off:?} of {whole:?}");
    }
}

#[test]
fn calls_that_templates_write_are_read_however_they_are_cut() {
    let given: Value = serde_json::from_str(&file("conversations.json")).unwrap();
    let arguments = |conversation: &str| given["conversations"][conversation]["turns"][1]["parts"][0]["call"].clone();
    for known in families() {
        for conversation in ["a_call", "typed_arguments"] {
            let (prompt, answer) = known.answer(conversation, "Look.");
            let call = arguments(conversation);
            let expect = [(format!("C:{}", call["name"].as_str().unwrap()), call["arguments"].clone())];
            check(&known, known.format.thoughts(&prompt), &answer, &expect);
        }
        let (prompt, answer) = known.answer("calls_beside_text", "time?");
        let expect: Vec<_> = known.family.beside.iter().map(|piece| (*piece).to_owned()).collect();
        check(&known, known.format.thoughts(&prompt), &answer, &meant(&expect));
    }
}

#[test]
fn thoughts_are_told_apart_from_calls_and_text() {
    let mut tried = 0;
    for known in families() {
        let (prompt, answer) = known.answer("typed_arguments", "Look.");
        let (opened, thoughts) = match (&known.format.reasoning, &known.format.channels) {
            (Some(Reasoning { open, close }), _) => (format!("{open}\nHm <b>.\n{close}\n\n"), Thoughts::Possible),
            (None, Some(_)) => {
                let opened = "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant";
                (opened.to_owned(), known.format.thoughts(&prompt))
            }
            (None, None) => continue,
        };
        tried += 1;
        // The template's own answer may contain empty reasoning.
        let answer = answer.trim_start_matches("\n<think></think>");
        let mut expect = vec![("R:Hm <b>.".to_owned(), Value::Null)];
        expect.extend(meant(&read(&known.format, known.format.thoughts(&prompt), &[answer.as_bytes()], false)));
        check(&known, thoughts, &format!("{opened}{answer}"), &expect);
        let text = if known.format.channels.is_some() { "<|channel|>final<|message|>Yes." } else { "Yes." };
        expect.truncate(1);
        expect.push(("T:Yes.".into(), Value::Null));
        check(&known, thoughts, &format!("{opened}{text}"), &expect);
    }
    assert!(tried >= 6, "{tried}");
}

/// The scripted model's vocabulary with more special tokens.
fn vocabulary(special: &[&str]) -> Arc<Vocabulary> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/scripted/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let new: Vec<_> = special.iter().filter(|name| !added.iter().any(|token| token["content"] == **name)).collect();
    let mut size = 2048;
    for name in new {
        added.push(json!({ "id": size, "content": name, "special": true }));
        size += 1;
    }
    Arc::new(Vocabulary::new(&tokenizer.to_string(), size, &[2037]).unwrap())
}

fn case(known: &Known, choice: &ToolChoice, thoughts: Thoughts) -> Case {
    case_with(known, &tools(), choice, thoughts, false)
}

fn case_with(known: &Known, tools: &[Tool], choice: &ToolChoice, thoughts: Thoughts, open: bool) -> Case {
    let vocabulary = vocabulary(known.family.special);
    let markers = Markers::of(&known.format, &vocabulary);
    let rules =
        Rules { format: &known.format, markers: &markers, tools, choice, single: false, answer: None, thoughts, open };
    let compiler = Compiler::new(vocabulary.clone(), Duration::from_secs(20));
    Case { vocabulary, spec: rules.spec().unwrap(), compiler }
}

#[test]
fn grammars_allow_what_templates_write_and_keep_arguments_to_their_schema() {
    for known in families() {
        let name = known.family.template;
        let (prompt, answer) = known.answer("typed_arguments", "Look.");
        let thoughts = known.format.thoughts(&prompt);
        let answer = answer.trim_start_matches("\n<think></think>");
        let answer = &answer.replace(", \"id\": \"abcDEF123\"", "");
        for choice in [ToolChoice::Auto, ToolChoice::Any, ToolChoice::Named("get_weather".into())] {
            let case = case(&known, &choice, thoughts);
            // A call that may be unmarked has no markers if it is required.
            let bare = known.format.calls.as_ref().filter(|calls| calls.may_begin() && choice != ToolChoice::Auto);
            let unmarked =
                bare.map_or(answer.clone(), |calls| answer.replace(&calls.open, "").replace(&calls.close, ""));
            let answer = &unmarked;
            case.allows(answer);
            if let (Some(Reasoning { open, close }), Thoughts::Possible) = (&known.format.reasoning, thoughts) {
                case.allows(&format!("{open}\nHm <b>.\n{close}{answer}"));
            }
            let refuses = |wrong: &str, why: &str| {
                let (written, may_end) = case.write(wrong);
                assert!(written < wrong.len() || !may_end, "{name}, {choice:?}: {why}: {wrong}");
            };
            refuses(&answer.replace("°C", "°K"), "a value that is none of the schema's");
            refuses(&answer.replace("place", "palace"), "an argument that must be there");
            let days = answer.rfind('3').unwrap();
            refuses(&format!("{}soon{}", &answer[..days], &answer[days + 1..]), "a text for a number");
            // An unmarked call of another tool is a text.
            let marked = known.format.calls.as_ref().is_none_or(|calls| answer.contains(&calls.open));
            if marked || choice != ToolChoice::Auto {
                refuses(&answer.replace("get_weather", "get_winter"), "a tool that is not on offer");
            }
        }
        let (_, beside) = known.answer("calls_beside_text", "time?");
        let beside = beside.trim_start_matches("\n<think></think>");
        let beside = beside.replace(", \"id\": \"C7kTHHmZ3\"", "").replace(", \"id\": \"Rg01d6oqv\"", "");
        case(&known, &ToolChoice::Auto, thoughts).allows(&beside);
        let barred = case(&known, &ToolChoice::None, thoughts);
        let open = known.format.calls.as_ref().map_or("<|call|>", |calls| &calls.open);
        // A special token that is spelled out is text, and does not open a call.
        let token = (0..barred.vocabulary.size())
            .find(|token| barred.vocabulary.is_special(*token) && barred.vocabulary.bytes(*token) == open.as_bytes());
        match token.filter(|_| known.format.calls.is_some()) {
            Some(token) => assert!(!barred.allows_token(token), "{name}: {open}"),
            None => assert!(barred.write(answer).0 < answer.len(), "{name}: {answer}"),
        }
    }
}

/// A family's answer with a call of a tool whose only argument, `place`, is "Bern".
fn call_of(known: &Known) -> (String, Thoughts) {
    let (prompt, _) = known.answer("typed_arguments", "Look.");
    let (_, answer) = known.answer("calls_beside_text", "time?");
    let answer = answer.trim_start_matches("\n<think></think>");
    let answer = answer.replace(", \"id\": \"C7kTHHmZ3\"", "").replace(", \"id\": \"Rg01d6oqv\"", "");
    assert!(answer.contains("place") && answer.matches("Bern").count() == 1, "{answer}");
    (answer, known.format.thoughts(&prompt))
}

/// The tools of that answer, the first of which is this one.
fn and_now(tool: Tool) -> Vec<Tool> {
    let now = tools().into_iter().filter(|tool| tool.name == "now");
    [tool].into_iter().chain(now).collect()
}

fn get_weather(schema: Value) -> Tool {
    Tool { name: "get_weather".into(), schema, ..Tool::default() }
}

#[test]
fn a_tool_takes_other_arguments_only_where_its_schema_says_so() {
    let days = json!({ "days": { "type": "integer" } });
    for known in families() {
        let (answer, thoughts) = call_of(&known);
        for (schema, open, takes) in [
            (json!({ "type": "object", "properties": {} }), false, false),
            (json!({ "type": "object", "properties": {} }), true, true),
            (json!({ "type": "object", "additionalProperties": false }), false, false),
            (json!({ "type": "object", "properties": {}, "additionalProperties": true }), false, true),
            (json!({ "type": "object" }), false, true),
            (json!({ "properties": {}, "anyOf": [{ "properties": { "place": { "type": "string" } } }] }), false, true),
            (json!({ "properties": {}, "required": ["place"] }), false, true),
            (json!({ "type": "object", "properties": days }), false, false),
            (json!({ "type": "object", "properties": days }), true, true),
            (json!({ "type": "object", "properties": days, "additionalProperties": true }), false, true),
            (json!({ "type": "object", "properties": days, "additionalProperties": false }), true, false),
        ] {
            let tools = and_now(get_weather(schema.clone()));
            let case = case_with(&known, &tools, &ToolChoice::Auto, thoughts, open);
            let (written, may_end) = case.write(&answer);
            let is_taken = written == answer.len() && may_end;
            assert_eq!(is_taken, takes, "{}: {schema}, {open}: {written} of {answer}", known.family.template);
        }
        // A listed argument keeps to its schema beside others.
        let schema = json!({ "properties": { "place": { "enum": ["Bern"] } }, "additionalProperties": true });
        let case = case_with(&known, &and_now(get_weather(schema)), &ToolChoice::Auto, thoughts, false);
        case.allows(&answer);
        let (written, may_end) = case.write(&answer.replace("Bern", "Genf"));
        assert!(written < answer.len() || !may_end, "{}: {answer}", known.family.template);
    }
}

#[test]
fn the_input_of_a_custom_tool_keeps_to_its_grammar_in_every_form() {
    let tool = |expression: &str| {
        let place = json!({ "type": "string", "pattern": format!("^(?:{expression})$") });
        let schema = json!({ "type": "object", "properties": { "place": place }, "required": ["place"],
            "additionalProperties": false });
        Tool { input: Some(expression.into()), ..get_weather(schema) }
    };
    for known in families() {
        let (name, (answer, thoughts)) = (known.family.template, call_of(&known));
        let case = |expression| case_with(&known, &and_now(tool(expression)), &ToolChoice::Auto, thoughts, false);
        let patch = case("a+/[b/]\\.?");
        patch.allows(&answer.replace("Bern", "aa/b"));
        patch.allows(&answer.replace("Bern", "a//."));
        for wrong in ["a/c", "a/b. ", "", "Bern"] {
            let wrong = answer.replace("Bern", wrong);
            let (written, may_end) = patch.write(&wrong);
            assert!(written < wrong.len() || !may_end, "{name}: {wrong}");
        }
        // What cannot be enforced is a text like any other.
        case("(?<=a)b").allows(&answer);
    }
}
