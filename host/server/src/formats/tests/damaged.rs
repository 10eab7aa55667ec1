//! Calls as models damage them, in every known form: each row says how it ends, wherever the stream is cut into chunks.
//! Mended where it is plain what was meant, text otherwise; never lost, and never half a marker.

use super::{parsing::read, *};

/// A form of calls in JSON: signs in a template, the token that it needs, opener, closer, the field of the name and that
/// of the arguments, and whether calls are in a list.
type JsonForm = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, bool);

const JSON_FORMS: [JsonForm; 13] = [
    ("<tool_call>", "", "<tool_call>", "</tool_call>", "name", "arguments", false),
    ("[TOOL_CALLS]", "", "[TOOL_CALLS]", "", "name", "arguments", true),
    ("<|START_ACTION|>", "", "<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters", true),
    ("Action: ```json tool_name", "", "Action: ```json", "```", "tool_name", "parameters", true),
    ("<|tool", "<|/tool_call|>", "<|tool_call|>", "<|/tool_call|>", "name", "arguments", true),
    ("<|tool_call|>", "", "<|tool_call|>", "", "name", "arguments", true),
    ("<|tool|>", "", "<|tool_call|>", "", "name", "arguments", true),
    ("<tool_calls>", "", "<tool_calls>", "</tool_calls>", "name", "arguments", true),
    ("<TOOLCALL>", "", "<TOOLCALL>", "</TOOLCALL>", "name", "arguments", true),
    ("<|python_tag|>", "", "<|python_tag|>", "", "name", "parameters", false),
    ("<|python_start|> \"parameters\": ", "", "<|python_start|>", "<|python_end|>", "name", "parameters", false),
    ("<|tool_call|><|/tool_call|>", "", "<|tool_call|>", "<|/tool_call|>", "name", "arguments", true),
    ("<|start_header_id|> \"parameters\": ", "", "<|python_tag|>", "", "name", "parameters", false),
];

/// Arguments as they are damaged, and as they are meant.
const ARGUMENTS: [(&str, &str); 17] = [
    (r#"{"text": "x",}"#, r#"{"text": "x"}"#),
    (r#"{"list": [1, 2,], "text": "x"}"#, r#"{"list": [1, 2], "text": "x"}"#),
    (r#"{,"text": "x"}"#, r#"{"text": "x"}"#),
    (r#"{'text': 'say "x"'}"#, r#"{"text": "say \"x\""}"#),
    (r#"{'text': 'it\'s'}"#, r#"{"text": "it's"}"#),
    (r#"{"flag": True, "maybe": None}"#, r#"{"flag": true, "maybe": null}"#),
    (r#"{text: "x", count: 5}"#, r#"{"text": "x", "count": 5}"#),
    ("{\"text\": \"a\nb\tc\"}", r#"{"text": "a\nb\tc"}"#),
    (r#"{"text": "a\d"}"#, r#"{"text": "a\\d"}"#),
    (r#"{"count": "5", "flag": "true"}"#, r#"{"count": 5, "flag": true}"#),
    (r#"{"count": "five"}"#, r#"{"count": "five"}"#),
    (r#"{"text": 5}"#, r#"{"text": "5"}"#),
    (r#"{"list": [1, [2}"#, r#"{"list": [1, [2]]}"#),
    (r#"{"text": "x"]}"#, r#"{"text": "x"}"#),
    (r#"{"text": "say "hi" now"}"#, r#"{"text": "say \"hi\" now"}"#),
    (r#"{"text": ls -la}"#, r#"{"text": "ls -la"}"#),
    (r#"{"count": , "text": "x"}"#, r#"{"count":  null, "text": "x"}"#),
];

#[derive(Clone)]
struct Row {
    format: OutputFormat,
    answer: String,
    cut: bool,
    expect: Vec<String>,
}

fn row(format: &OutputFormat, answer: impl Into<String>, expect: &[&str]) -> Row {
    let expect = expect.iter().map(|part| (*part).to_owned()).collect();
    Row { format: format.clone(), answer: answer.into(), cut: false, expect }
}

fn cut(format: &OutputFormat, answer: impl Into<String>, expect: &[&str]) -> Row {
    Row { cut: true, ..row(format, answer, expect) }
}

fn json_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (signs, token, open, close, name, arguments, is_list) in JSON_FORMS {
        let format = &OutputFormat::find(signs, |known| known == token);
        let calls = format.calls.as_ref().unwrap();
        assert_eq!((calls.open.as_str(), calls.close.as_str()), (open, close), "{signs}");
        let listed = |call: &str| if is_list { format!("[{call}]") } else { call.to_owned() };
        let marked = |call: &str| format!("{open}{}{close}", listed(call));
        let call = |tool: &str, given: &str| format!(r#"{{"{name}": "{tool}", "{arguments}": {given}}}"#);
        for (given, meant) in ARGUMENTS {
            rows.push(row(format, marked(&call("Bash", given)), &[&format!("C:Bash {meant}")]));
        }
        let x = r#"{"text": "x"}"#;
        let good = &format!("C:Bash {x}");
        let quoted = serde_json::Value::from(x);
        for damaged in [
            call("bash", x),
            call("functions.Bash", x),
            call("Bash", &quoted.to_string()),
            call("Bash", &quoted.to_string().replace("}\"", ",}\"")),
            format!(r#"{{"{arguments}": {x}, "{name}": "Bash"}}"#),
            format!(r#"{{"{arguments}": {{'text': 'x',}}, "{name}": "Bash"}}"#),
            format!(r#"{{'{name}': 'Bash', '{arguments}': {x}}}"#),
            format!(r#"{{{name}: "Bash", {arguments}: {x}}}"#),
            format!(r#"{{"{name}": "Bash" "{arguments}": {x}}}"#),
            format!(r#"{{"{name}": "Bash", "{arguments}": {x},}}"#),
            format!("\n {{\n \"{name}\" : \"Bash\" ,\n \"{arguments}\" :\n {x}\n}}\n"),
        ] {
            rows.push(row(format, marked(&damaged), &[good]));
        }
        let whole = marked(&call("Bash", x));
        rows.push(row(format, format!("{open}\n{whole}"), &[good]));
        rows.push(row(format, format!("So: {whole}"), &["T:So:", good]));
        let unknown = marked(&call("Nope", x));
        rows.push(row(format, &unknown, &[&format!("T:{unknown}")]));
        let swapped = marked(&format!(r#"{{"{name}": {x}, "{arguments}": "Bash"}}"#));
        rows.push(row(format, &swapped, &[&format!("T:{swapped}")]));
        let unfinished = r#"{"text": "x", "list": [1"#;
        let begun =
            format!(r#"{open}{}{{"{name}": "Bash", "{arguments}": {unfinished}"#, if is_list { "[" } else { "" });
        rows.push(row(format, &begun, &[&format!("C:Bash {unfinished}]}}")]));
        rows.push(cut(format, &begun, &[&format!("C:Bash {unfinished}")]));
        rows.push(cut(format, format!("So {}", &open[..open.len() - 1]), &["T:So"]));
        if !close.is_empty() {
            rows.push(row(format, format!("{whole}\nDone."), &[good, "T:Done."]));
            let short = call("Bash", x);
            let short = format!("{open}{}", listed(&short[..short.len() - 1]));
            rows.push(row(format, format!("{short}\n{close}"), &[good]));
            let shorter = format!("{open}{}", listed(&call("Bash", x).replace("}}", "")));
            rows.push(row(format, format!("{shorter}{close}Done."), &[good, "T:Done."]));
            rows.push(row(format, format!("{open}{}}}\n}}{close}", listed(&call("Bash", x))), &[good]));
        }
        let fenced = format!("{open}\n```json\n{}\n```\n{close}", listed(&call("Bash", x)));
        // Without a closer the end of the fence is text.
        let rest: &[&str] = if close.is_empty() { &["T:```\n"] } else { &[] };
        if close != "```" {
            rows.push(row(format, fenced, &[&[good.as_str()], rest].concat()));
        }
    }
    rows
}

/// Forms in which a call begins with the tool's name, followed by JSON: signs, what precedes the name, what follows it,
/// and what follows the arguments.
const NAMED_FORMS: [(&str, &str, &str, &str); 6] = [
    ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]", "[ARGS]", ""),
    ("[TOOL_CALLS][ARGS][CALL_ID]", "[TOOL_CALLS]", "[CALL_ID]abc[ARGS]", ""),
    (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        ":0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ("<function=", "<function=", ">", "</function>"),
    ("<|channel|><|message|>", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>"),
];

fn named_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (signs, before, between, after) in NAMED_FORMS {
        let format = &OutputFormat::find(signs, |_| false);
        assert!(format.has_calls(), "{signs}");
        let call = |tool: &str, given: &str| format!("{before}{tool}{between}{given}{after}");
        for (given, meant) in ARGUMENTS {
            rows.push(row(format, call("Bash", given), &[&format!("C:Bash {meant}")]));
        }
        let x = r#"{"text": "x"}"#;
        let good = &format!("C:Bash {x}");
        rows.push(row(format, call("bash", x), &[good]));
        rows.push(row(format, call("Bash", &format!("\n {x}\n")), &[good]));
        if !after.is_empty() {
            rows.push(row(format, call("Bash", r#"{"text": "x""#), &[good]));
        }
        let unfinished = format!(r#"{before}Bash{between}{{"text": "x", "list": [1"#);
        rows.push(row(format, &unfinished, &[r#"C:Bash {"text": "x", "list": [1]}"#]));
        rows.push(cut(format, &unfinished, &[r#"C:Bash {"text": "x", "list": [1"#]));
    }
    rows
}

/// Forms in which arguments stand between tags: signs, what precedes the name, what follows it, the parts around key and
/// value, and what follows the arguments.
const TAGGED_FORMS: [(&str, [&str; 6]); 4] = [
    (
        "<tool_call><parameter=",
        ["<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool_call>"],
    ),
    (
        "<minimax:tool_call>",
        [
            "<minimax:tool_call>\n<invoke name=\"",
            "\">\n",
            "<parameter name=\"",
            "\">",
            "</parameter>\n",
            "</invoke>\n</minimax:tool_call>",
        ],
    ),
    (
        "<seed:tool_call>",
        ["<seed:tool_call>\n<function=", ">\n", "<parameter=", ">", "</parameter>\n", "</function>\n</seed:tool_call>"],
    ),
    (
        "<tool_call><arg_key>",
        ["<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"],
    ),
];

fn tagged_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (signs, [before, between, key, value, end, after]) in TAGGED_FORMS {
        let format = &OutputFormat::find(signs, |_| false);
        assert!(format.has_calls(), "{signs}");
        let argument = |name: &str, given: &str| format!("{key}{name}{value}{given}{end}");
        let call = |tool: &str, arguments: &str| format!("{before}{tool}{between}{arguments}{after}");
        for (name, given, meant) in [
            ("count", "5", "5"),
            ("count", "'5'", "\"'5'\""),
            ("flag", "True", "true"),
            ("maybe", "None", "null"),
            ("list", "['a', None,]", r#"["a", null]"#),
            ("text", "5", r#""5""#),
            ("text", "a \"b\" </b>\nc", r#""a \"b\" </b>\nc""#),
        ] {
            let expect = format!("C:Bash {{\"{name}\": {meant}}}");
            rows.push(row(format, call("Bash", &argument(name, given)), &[&expect]));
            rows.push(row(format, call("bash", &argument(name, given)), &[&expect]));
        }
        let x = argument("text", "x");
        let good = r#"C:Bash {"text": "x"}"#;
        rows.push(row(format, format!("So: {}", call("Bash", &x)), &["T:So:", good]));
        rows.push(row(format, format!("{before}Bash{between}{x}"), &[good]));
        rows.push(row(format, format!("{before}Bash{between}{key}text{value}x"), &[good]));
        rows.push(cut(format, format!("{before}Bash{between}{key}text{value}x"), &[r#"C:Bash {"text": "x"#]));
        rows.push(row(format, format!("{before}Bash{between}{key}text{value}x{after}"), &[good]));
        let unknown = call("Nope", &x);
        rows.push(row(format, &unknown, &[&format!("T:{unknown}")]));
    }
    rows
}

/// Python's calls: signs, what precedes the name, and what follows the arguments' parenthesis. LFM2, OLMo, Llama 4.
const PYTHON_FORMS: [(&str, &str, &str); 3] = [
    ("<|tool_call_start|>", "<|tool_call_start|>[", "]<|tool_call_end|>"),
    ("<function_calls>", "<function_calls>", "</function_calls>"),
    ("<|python_start|> func_name1(", "<|python_start|>[", "]<|python_end|>"),
];

/// Arguments in Python's notation as they are damaged, and as they are meant.
const PYTHON_ARGUMENTS: [(&str, &str); 16] = [
    ("text=\"x\",", r#"{"text": "x"}"#),
    ("list=[1, 2,], text='x'", r#"{"list": [1, 2], "text": "x"}"#),
    (", text='x',, count=5", r#"{"text": "x", "count": 5}"#),
    ("text='say \"x\"'", r#"{"text": "say \"x\""}"#),
    ("flag=true, maybe=null", r#"{"flag": true, "maybe": null}"#),
    ("text: \"x\", count: 5", r#"{"text": "x", "count": 5}"#),
    ("\"text\"=\"x\"", r#"{"text": "x"}"#),
    ("'text': 'x'", r#"{"text": "x"}"#),
    ("text=\"a\nb\tc\"", r#"{"text": "a\nb\tc"}"#),
    (r#"text="a\d""#, r#"{"text": "a\\d"}"#),
    (r#"text="say "hi" now""#, r#"{"text": "say \"hi\" now"}"#),
    ("text=ls -la, count=5", r#"{"text": "ls -la", "count": 5}"#),
    ("count=, text=\"x\"", r#"{"count": null, "text": "x"}"#),
    ("list=[1, [2", r#"{"list": [1, [2]]}"#),
    ("text=\"x\"}", r#"{"text": "x"}"#),
    ("list=[{k: 1}]", r#"{"list": [{"k": 1}]}"#),
];

fn python_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (signs, before, after) in PYTHON_FORMS {
        let format = &OutputFormat::find(signs, |_| false);
        assert!(format.has_calls(), "{signs}");
        let call = |tool: &str, given: &str| format!("{before}{tool}({given}){after}");
        for (given, meant) in PYTHON_ARGUMENTS {
            rows.push(row(format, call("Bash", given), &[&format!("C:Bash {meant}")]));
        }
        rows.extend(unfinished_literals(format, before, &["(", "=", "\"", after]));
        let good = r#"C:Bash {"text": "x"}"#;
        rows.push(row(format, call("bash", "text='x'"), &[good]));
        rows.push(row(format, call("functions.Bash", " text = 'x' "), &[good]));
        let two = format!("{before}Bash(text='x',), bash(text='x'{after}");
        rows.push(row(format, two, &[good, good]));
        let unknown = call("Nope", "text='x'");
        rows.push(row(format, &unknown, &[&format!("T:{unknown}")]));
    }
    rows
}

/// Gemma's calls: signs, what precedes the name, the marker around strings, and what follows the arguments' brace.
const QUOTED_FORMS: [(&str, &str, &str, &str); 2] = [
    ("<start_function_call>", "<start_function_call>call:", "<escape>", "<end_function_call>"),
    ("<|tool_call>", "<|tool_call>call:", "<|\"|>", "<tool_call|>"),
];

/// Arguments in Gemma's notation, with `Q` for the marker.
const QUOTED_ARGUMENTS: [(&str, &str); 15] = [
    ("text:QxQ,", r#"{"text": "x"}"#),
    ("list:[1,2,],text:QxQ", r#"{"list": [1, 2], "text": "x"}"#),
    (",text:QxQ,,count:5", r#"{"text": "x", "count": 5}"#),
    ("text:\"x\"", r#"{"text": "x"}"#),
    ("text:'x'", r#"{"text": "x"}"#),
    ("text:x y", r#"{"text": "x y"}"#),
    ("QtextQ:QxQ", r#"{"text": "x"}"#),
    ("\"text\":QxQ", r#"{"text": "x"}"#),
    ("text=QxQ", r#"{"text": "x"}"#),
    ("text: QxQ , count: 5", r#"{"text": "x", "count": 5}"#),
    ("flag:True,maybe:None", r#"{"flag": true, "maybe": null}"#),
    ("count:,text:QxQ", r#"{"count": null, "text": "x"}"#),
    ("list:[1,[2", r#"{"list": [1, [2]]}"#),
    ("text:QxQ]", r#"{"text": "x"}"#),
    ("text:\"say \"hi\" now\"", r#"{"text": "say \"hi\" now"}"#),
];

fn quoted_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (signs, before, quote, after) in QUOTED_FORMS {
        let format = &OutputFormat::find(signs, |_| false);
        assert!(format.has_calls(), "{signs}");
        let call = |tool: &str, given: &str| format!("{before}{tool}{{{}}}{after}", given.replace('Q', quote));
        for (given, meant) in QUOTED_ARGUMENTS {
            rows.push(row(format, call("Bash", given), &[&format!("C:Bash {meant}")]));
        }
        rows.extend(unfinished_literals(format, before, &["{", ":", quote, after]));
        rows.push(row(format, call("bash", "text:QxQ"), &[r#"C:Bash {"text": "x"}"#]));
        let unknown = call("Nope", "text:QxQ");
        rows.push(row(format, &unknown, &[&format!("T:{unknown}")]));
    }
    rows
}

/// Calls without their end; the signs are the opening bracket, what follows a key, the marks of a string, and what follows
/// the closing bracket.
fn unfinished_literals(format: &OutputFormat, before: &str, signs: &[&str; 4]) -> Vec<Row> {
    let [open, is, quote, after] = signs;
    let text = format!("{before}Bash{open}text{is}{quote}x");
    let list = format!("{text}{quote}, list{is}[1");
    let good = r#"C:Bash {"text": "x"}"#;
    vec![
        row(format, format!("{text}{quote}{after}"), &[good]),
        row(format, format!("So: {text}{quote}{after}"), &["T:So:", good]),
        row(format, format!("{text}{quote}"), &[good]),
        row(format, &text, &[good]),
        row(format, &list, &[r#"C:Bash {"text": "x", "list": [1]}"#]),
        cut(format, &text, &[r#"C:Bash {"text": "x"#]),
        cut(format, format!("{text}{quote}"), &[r#"C:Bash {"text": "x""#]),
        cut(format, &list, &[r#"C:Bash {"text": "x", "list": [1"#]),
    ]
}

#[test]
fn damaged_calls_end_as_they_are_meant_or_as_text_wherever_the_stream_is_cut() {
    let rows = [json_rows(), named_rows(), tagged_rows(), python_rows(), quoted_rows()].concat();
    assert!(rows.len() >= 500, "{} rows", rows.len());
    let mut wrong = Vec::new();
    for Row { format, answer, cut, expect } in &rows {
        let bytes = answer.as_bytes();
        let thoughts = if format.channels.is_some() { Thoughts::Possible } else { Thoughts::Never };
        let ends = read(format, thoughts, &[bytes], *cut);
        if ends != *expect {
            wrong.push(format!("{answer:?}\n   is {ends:?}\n  not {expect:?}"));
            continue;
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(format, thoughts, &single, *cut), *expect, "{answer:?}, byte by byte");
        for place in 1..bytes.len() {
            let (head, tail) = bytes.split_at(place);
            assert_eq!(read(format, thoughts, &[head, tail], *cut), *expect, "{answer:?}, cut at {place}");
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}
