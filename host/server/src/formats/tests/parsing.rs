//! Parsing of answers, which must not depend on how they are chunked.

use std::sync::Arc;

use super::*;
use crate::chat::{Delta, Tool};

/// Joins adjacent deltas of one kind: `T:text`, `R:reasoning`, `C:name arguments`.
pub(super) fn joined(deltas: &[Delta]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for delta in deltas {
        let (kind, text) = match delta {
            Delta::Text { text, .. } => ("T:", text.clone()),
            Delta::Thinking(text) => ("R:", text.clone()),
            Delta::ToolCall { id, name } => {
                assert!(id.len() == 24 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
                joined.push(format!("C:{name} "));
                continue;
            }
            Delta::ToolArguments(text) => ("C:", text.clone()),
            other => panic!("{other:?}"),
        };
        match joined.last_mut() {
            Some(last) if last.starts_with(kind) => last.push_str(&text),
            _ => joined.push(format!("{kind}{text}")),
        }
    }
    joined
}

/// Chunks an answer at random.
pub(super) fn pieces_of<'a>(answer: &'a [u8], random: &mut fastrand::Rng) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), answer);
    while !rest.is_empty() {
        let (piece, left) = rest.split_at(random.usize(1..=rest.len().min(9)));
        pieces.push(piece);
        rest = left;
    }
    pieces
}

/// The tools that may be called.
pub(super) fn tools() -> Arc<[Signature]> {
    let schema = serde_json::json!({ "$defs": { "word": { "type": "string" } }, "properties": {
        "text": { "type": "string" }, "count": { "type": "integer" }, "flag": { "type": "boolean" },
        "list": { "type": "array" }, "maybe": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        "referred": { "$ref": "#/$defs/word" }, "a": { "type": "string" }, "b": { "type": "string" },
    } });
    let tool = |name: &str| Tool { name: name.into(), schema: schema.clone(), ..Tool::default() };
    ["Bash", "read_file", "typed"].map(|name| Signature::of(&tool(name))).into()
}

pub(super) fn read(format: &OutputFormat, thoughts: Thoughts, pieces: &[&[u8]], cut: bool) -> Vec<String> {
    read_calls_of(tools(), format, thoughts, pieces, cut)
}

/// Like [`read`], with these tools.
pub(super) fn read_calls_of(
    tools: Arc<[Signature]>,
    format: &OutputFormat,
    thoughts: Thoughts,
    pieces: &[&[u8]],
    cut: bool,
) -> Vec<String> {
    let mut parser = ToolParser::new(format, tools, thoughts);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish(cut));
    joined(&deltas)
}

/// Checks the result for the whole answer, byte by byte, split at every position, and in random chunks.
pub(super) fn check_from(format: &OutputFormat, thoughts: Thoughts, answer: &[u8], cut: bool, expect: &[&str]) {
    let shown = String::from_utf8_lossy(answer);
    assert_eq!(read(format, thoughts, &[answer], cut), expect, "{shown}");
    let single: Vec<&[u8]> = answer.chunks(1).collect();
    assert_eq!(read(format, thoughts, &single, cut), expect, "{shown}, by bytes");
    for place in 0..=answer.len() {
        let (head, tail) = answer.split_at(place);
        assert_eq!(read(format, thoughts, &[head, tail], cut), expect, "{shown}, cut at {place}");
    }
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        let pieces = pieces_of(answer, &mut random);
        assert_eq!(read(format, thoughts, &pieces, cut), expect, "{shown}, in {pieces:?}");
    }
}

pub(super) fn check(format: &OutputFormat, answer: &str, expect: &[&str]) {
    let thoughts = if format.reasoning.is_some() { Thoughts::Possible } else { Thoughts::Never };
    check_from(format, thoughts, answer.as_bytes(), false, expect);
}

#[test]
fn text_is_text() {
    check(&hermes(), "", &[]);
    check(&hermes(), " Größe: 日本 < 3 <tool\n\n", &["T: Größe: 日本 < 3 <tool\n\n"]);
    check(&OutputFormat::default(), "<tool_call> \n", &["T:<tool_call> \n"]);
    check_from(&hermes(), Thoughts::Never, b"a \xff\xe6\x97 b\xe6\x97", false, &["T:a \u{fffd}\u{fffd} b\u{fffd}"]);
}

#[test]
fn endless_white_space_is_looked_at_once() {
    let space = "\n".repeat(400_000);
    let began = std::time::Instant::now();
    for answer in [format!("a{space}"), format!("\u{e9}{space}"), format!("<think>{space}"), format!("<think>a{space}")]
    {
        let pieces: Vec<&[u8]> = answer.as_bytes().chunks(2).collect();
        for format in [hermes(), llama(), thinking(hermes())] {
            read(&format, Thoughts::Possible, &pieces, false);
        }
    }
    // Repeated scanning would take minutes.
    assert!(began.elapsed().as_secs() < 20, "it took {:?}", began.elapsed());
}

#[test]
fn hermes_calls_stand_between_tags() {
    let call = "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls \\\"{é}\\\"\"}}\n</tool_call>";
    let expect = "C:Bash {\"command\": \"ls \\\"{é}\\\"\"}";
    check(&hermes(), call, &[expect]);
    check(&hermes(), &format!("I look.\n\n{call}\n"), &["T:I look.", expect]);
    check(&hermes(), &format!("{call}\n{call}\nDone. "), &[expect, expect, "T:Done. "]);
    // Fields in another order, additional fields, arguments as a string, no arguments, and a list.
    check(
        &hermes(),
        r#"<tool_call>{"arguments":{"a":[1]},"id":{"x":"}"},"name":"Bash"}</tool_call>"#,
        &["C:Bash {\"a\":[1]}"],
    );
    check(&hermes(), r#"<tool_call>{"name":"Bash","arguments":"{\"a\":1}"}</tool_call>"#, &["C:Bash {\"a\":1}"]);
    check(&hermes(), r#"<tool_call>{"name": "Bash", "arguments": null}</tool_call>"#, &["C:Bash {}"]);
    check(&hermes(), r#"<tool_call>{"name": "Bash"}</tool_call> x"#, &["C:Bash {}", "T:x"]);
    check(
        &hermes(),
        r#"<tool_call>[{"name":"Bash","arguments":{}}, {"name":"read_file","arguments":{"p":"</tool_call>"}}]</tool_call>"#,
        &["C:Bash {}", "C:read_file {\"p\":\"</tool_call>\"}"],
    );
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "a <tool_call> b",
        "<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"name\": \"Bash\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"Bash\" \"arguments\"",
        "<tool_call>[]</tool_call>",
        "so: <tool_call>{}</tool_call>",
        "<tool_call>{\"name\": \"Bash\", \"argu",
        "<tool_call",
    ] {
        check(&hermes(), text, &[&format!("T:{text}")]);
    }
    // A call after a malformed one is found.
    let call = r#"<tool_call>{"name":"Bash","arguments":{}}</tool_call>"#;
    check(&hermes(), &format!("<tool_call>oh<tool_call>{call}"), &["T:<tool_call>oh", "C:Bash {}"]);
    // Arguments that have been emitted stay as they are.
    check(&hermes(), r#"<tool_call>{"name":"Bash","arguments":{"a": (no)}}"#, &["C:Bash {\"a\": ", "T:(no)}}"]);
}

#[test]
fn an_answer_that_is_cut_short_shows_no_half_markers() {
    let cut = |text: &str, expect: &[&str]| check_from(&hermes(), Thoughts::Never, text.as_bytes(), true, expect);
    cut("so <tool_ca", &["T:so"]);
    cut("so <tool_call>\n{\"name\": \"Ba", &["T:so"]);
    cut("so <tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"a\": \"é", &["T:so", "C:Bash {\"a\": \"é"]);
    cut("1 <", &["T:1 <"]);
    // Nor are partial characters.
    let half = |format: &OutputFormat, thoughts, text: &[u8], expect: &[&str]| {
        check_from(format, thoughts, text, true, expect);
    };
    half(&hermes(), Thoughts::Never, b"so \xe6\x97", &["T:so "]);
    half(&OutputFormat::default(), Thoughts::Never, b"\xf0\x9f\xab", &[]);
    half(&thinking(hermes()), Thoughts::Begun, b"so\xe6", &["R:so"]);
    half(
        &hermes(),
        Thoughts::Never,
        b"<tool_call>{\"name\": \"Bash\", \"arguments\": {\"a\": \"\xe6\x97",
        &["C:Bash {\"a\": \""],
    );
    half(&llama(), Thoughts::Never, b"{\"name\": \"\xe6", &["T:{\"name\": \""]);
    check_from(&llama(), Thoughts::Never, b"{\"name\": \"Al", true, &["T:{\"name\": \"Al"]);
}

#[test]
fn thoughts_come_before_the_answer() {
    let format = thinking(hermes());
    check(&format, "<think>\nHm, a <b>.\n\n</think>\n\nYes.\n", &["R:Hm, a <b>.", "T:Yes.\n"]);
    check(&format, "\n<think></think>\n\nYes", &["T:Yes"]);
    check(&format, "<thin air", &["T:<thin air"]);
    check(&format, "No <think>thoughts</think>", &["T:No <think>thoughts</think>"]);
    let call = "<tool_call>{\"name\":\"Bash\",\"arguments\":{}}</tool_call>";
    check(&format, &format!("<think>{call}</think>{call}"), &[&format!("R:{call}"), "C:Bash {}"]);
    let begun = |text: &str, expect: &[&str]| check_from(&format, Thoughts::Begun, text.as_bytes(), false, expect);
    begun("\nHm 日 \n</think>\n\nYes", &["R:Hm 日", "T:Yes"]);
    begun("never ends </thi", &["R:never ends </thi"]);
    check_from(&format, Thoughts::Never, b"<think>", false, &["T:<think>"]);
}

#[test]
fn llama_calls_may_have_no_marker() {
    let call = r#"{"name": "Bash", "parameters": {"command": "ls"}}"#;
    let expect = "C:Bash {\"command\": \"ls\"}";
    check(&llama(), call, &[expect]);
    check(&llama(), &format!("\n{call}; {call}\n"), &[expect, expect]);
    check(&llama(), &format!("<|python_tag|>{call}"), &[expect]);
    check(&llama(), &format!("Hm: <|python_tag|>{call}"), &["T:Hm:", expect]);
    check(&llama(), r#"{"type": "function", "name": "Bash", "parameters": {}}"#, &["C:Bash {}"]);
    // An answer in JSON.
    for text in [
        r#"{"name": "Alice", "parameters": {}}"#,
        r#" {"city": "Bash", "name": "Bash"}"#,
        "[1, 2]\n",
        "[]",
        "{not json}",
        "<|python_tag|>print(1)",
        "  ",
        "It is {\"name\": \"Bash\", \"parameters\": {}}",
    ] {
        check(&llama(), text, &[&format!("T:{text}")]);
    }
}

#[test]
fn mistral_calls_come_as_a_list_or_one_by_one() {
    let list = r#"[TOOL_CALLS] [{"name": "Bash", "arguments": {"a": "]"}, "id": "abcdefghi"}, {"name": "read_file", "arguments": {}}]"#;
    check(&mistral(), list, &["C:Bash {\"a\": \"]\"}", "C:read_file {}"]);
    check(&mistral(), r#"[TOOL_CALLS]{"name": "Bash", "arguments": {}}"#, &["C:Bash {}"]);
    check(
        &new_mistral(),
        "So.[TOOL_CALLS]Bash[CALL_ID]abcdefghi[ARGS]{\"a\": {}}[TOOL_CALLS]read_file[ARGS] {\"é\": \"}\"}",
        &["T:So.", "C:Bash {\"a\": {}}", "C:read_file {\"é\": \"}\"}"],
    );
    check(&new_mistral(), "[TOOL_CALLS]rm[ARGS]{}", &["T:[TOOL_CALLS]rm[ARGS]{}"]);
    check(&new_mistral(), "[TOOL_CALLS]Bash[ARGS]no", &["T:[TOOL_CALLS]Bash[ARGS]no"]);
}

#[test]
fn phi_and_functionary_have_markers_of_their_own() {
    let list = r#"<|tool_call|>[{"name": "Bash", "arguments": {"count": 1}}]<|/tool_call|>"#;
    check(&phi(), list, &["C:Bash {\"count\": 1}"]);
    check(&phi(), &format!("{list} and"), &["C:Bash {\"count\": 1}", "T:and"]);
    check(&functionary(), "<function=Bash>{\"a\": \">\"}</function>", &["C:Bash {\"a\": \">\"}"]);
}

#[test]
fn random_answers_come_out_the_same_however_they_are_cut() {
    let pieces = [
        "<tool_call>",
        "</tool_call>",
        "\n",
        " ",
        "{\"name\": \"Bash\", \"arguments\": ",
        "{\"a\": \"é\"}",
        "}",
        "{",
        "\"",
        "<tool_call>\n{\"name\": \"Bash\", \"arguments\": ",
        "{}}\n</tool_call>",
        "<think>",
        "</think>",
        "<tool",
        "日",
        "x",
        "[",
        "]",
        ",",
        "{\"name\":",
        "null",
        "\\",
    ];
    let mut random = fastrand::Rng::with_seed(11);
    let mut calls = 0;
    for round in 0..1500 {
        let count = random.usize(1..14);
        let text: String = (0..count).map(|_| pieces[random.usize(..pieces.len())]).collect();
        let format = if round % 2 == 0 { thinking(hermes()) } else { hermes() };
        let thoughts = if round % 2 == 0 { Thoughts::Possible } else { Thoughts::Never };
        let whole = read(&format, thoughts, &[text.as_bytes()], false);
        calls += whole.iter().filter(|piece| piece.starts_with("C:")).count();
        for _ in 0..6 {
            let cut = pieces_of(text.as_bytes(), &mut random);
            assert_eq!(read(&format, thoughts, &cut, false), whole, "{text:?} in {cut:?}");
        }
    }
    assert!(calls > 20, "{calls} calls: the test has lost its point");
}

#[test]
fn arguments_leave_as_they_come() {
    let bash = Signature::of(&Tool { name: "Bash".into(), ..Tool::default() });
    let mut parser = ToolParser::new(&hermes(), [bash].into(), Thoughts::Never);
    assert_eq!(parser.push(b"<tool_call>{\"name\": \"Bash\", \"arguments\":"), []);
    let begun = parser.push(b" {\"comm");
    assert!(
        matches!(&begun[..], [Delta::ToolCall { .. }, Delta::ToolArguments(text)] if text == "{\"comm"),
        "{begun:?}"
    );
    assert_eq!(parser.push(b"and\": \"\xc3"), [Delta::ToolArguments("and\": \"".into())]);
    assert_eq!(parser.push(b"\xa9"), [Delta::ToolArguments("é".into())]);
}
