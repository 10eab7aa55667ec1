//! Deviations of models from their own formats: omitted tags, odd values, truncated answers.

use serde_json::json;

use super::{
    constraints::Case,
    parsing::{check, check_from, joined, read},
    *,
};
use crate::chat::{Tool, ToolChoice};

/// The format detected in a template with these signs.
fn found(signs: &str) -> OutputFormat {
    let format = OutputFormat::find(signs, |_| false);
    assert!(format.has_calls(), "{signs}");
    format
}

fn coder() -> OutputFormat {
    found("<tool_call><function=<parameter=")
}

fn glm() -> OutputFormat {
    found("<tool_call><arg_key>")
}

fn lfm() -> OutputFormat {
    found("<|tool_call_start|>")
}

fn gemma() -> OutputFormat {
    found("<start_function_call>")
}

fn harmony() -> OutputFormat {
    found("<|channel|><|message|>")
}

#[test]
fn tagged_arguments_are_what_their_schema_says() {
    let typed = |key: &str, value: &str| {
        format!("<tool_call>\n<function=typed>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>")
    };
    let tagged = |key: &str, value: &str, json: &str| {
        check(&coder(), &typed(key, value), &[&format!("C:typed {{\"{key}\": {json}}}")]);
        let glm_call =
            format!("<tool_call>typed\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>");
        check(&glm(), &glm_call, &[&format!("C:typed {{\"{key}\": {json}}}")]);
    };
    tagged("text", "42", "\"42\"");
    tagged("text", "", "\"\"");
    tagged("text", "\n a \"b\" \\ <c> é\t\n", r#""\n a \"b\" \\ <c> é\t\n""#);
    tagged("count", "42", "42");
    tagged("count", "many", "\"many\"");
    tagged("flag", "True", "true");
    tagged("flag", "false", "false");
    tagged("list", "[1, \"a\"]", "[1, \"a\"]");
    tagged("list", "['it''s', None]", "\"['it''s', None]\"");
    tagged("list", "['a', None, 1.5]", "[\"a\", null, 1.5]");
    tagged("maybe", "null", "null");
    tagged("maybe", "nil", "\"nil\"");
    tagged("other", "{\"a\": {}}", "{\"a\": {}}");
    tagged("other", "plain", "\"plain\"");
    tagged("referred", "007", "\"007\"");
}

#[test]
fn tagged_calls_come_without_arguments_without_margins_and_several_at_a_time() {
    check(&coder(), "<tool_call>\n<function=Bash>\n</function>\n</tool_call>", &["C:Bash {}"]);
    check(
        &coder(),
        "<tool_call><function=Bash><parameter=a>x</parameter></function></tool_call> So.",
        &["C:Bash {\"a\": \"x\"}", "T:So."],
    );
    let call = "<function=Bash>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\ny\n</parameter>\n</function>";
    let expect = "C:Bash {\"a\": \"x\", \"b\": \"y\"}";
    check(
        &coder(),
        &format!("<tool_call>\n{call}\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>"),
        &[expect, expect, expect],
    );
    // Models sometimes omit the outer tag, and the closing ones.
    check(&coder(), &format!("I look.\n{call}\n</tool_call>\nSo."), &["T:I look.", expect, "T:So."]);
    check(&coder(), &format!("{call}\n\n{call}"), &[expect, expect]);
    check(&coder(), "<tool_call>\n<function=Bash>\n<parameter=a>\nx\n</parameter>\n", &["C:Bash {\"a\": \"x\"}"]);
    check(&glm(), "<tool_call>Bash\n</tool_call>\n<tool_call>Bash</tool_call>", &["C:Bash {}", "C:Bash {}"]);
    check(
        &glm(),
        "<tool_call>Bash<arg_key>a</arg_key><arg_value>x\n</arg_value></tool_call>",
        &["C:Bash {\"a\": \"x\\n\"}"],
    );
}

#[test]
fn arguments_that_words_interrupt_are_those_before_the_words() {
    let call = "<tool_call>\n<function=Bash>\n<parameter=a>\nx\n</parameter>\nSo.\n</function>";
    check(&coder(), call, &["C:Bash {\"a\": \"x\"}", "T:So.\n</function>"]);
}

#[test]
fn tags_around_what_is_no_call_stay_text() {
    for text in [
        "Use <function=name> and </function>.",
        "<tool_call>\n<function=rm>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=Bash>\nls\n</function>\n</tool_call>",
        "<tool_call> is a tag",
        "<function=Bash>",
    ] {
        check(&coder(), text, &[&format!("T:{text}")]);
    }
    for text in
        ["<tool_call>Bash is a shell</tool_call>", "<tool_call>rm\n</tool_call>", "<tool_call>{\"name\": \"Bash\"}"]
    {
        check(&glm(), text, &[&format!("T:{text}")]);
    }
    let cut = |format: &OutputFormat, text: &str, expect: &[&str]| {
        check_from(format, Thoughts::Never, text.as_bytes(), true, expect);
    };
    cut(&coder(), "So.\n<tool_call>\n<function=Ba", &["T:So."]);
    cut(&coder(), "So.\n<func", &["T:So."]);
    cut(&coder(), "<tool_call>\n<function=Bash>\n<parameter=a>\nx\n</para", &["C:Bash {\"a\": \"x"]);
    cut(&glm(), "<tool_call>Bash\n<arg_key>a</arg_key>\n<arg_value>é</arg", &["C:Bash {\"a\": \"é"]);
}

#[test]
fn tagged_texts_leave_as_they_come() {
    let mut parser = ToolParser::new(&coder(), [bash()].into(), Thoughts::Never);
    let mut push = |text: &str| joined(&parser.push(text.as_bytes()));
    assert_eq!(push("<tool_call>\n<function=Bash>\n<parameter=command>"), ["C:Bash {\"command\": \""]);
    assert_eq!(push("\nls -la <"), ["C:ls -la "]);
    assert_eq!(push("b\n"), ["C:<b"]);
    assert_eq!(push("\n</parameter"), ["C:\\n"]);
    assert_eq!(push(">\n</function>"), ["C:\"}"]);
}

fn bash() -> Signature {
    let schema = json!({ "type": "object", "properties": { "command": { "type": "string" } } });
    Signature::of(&Tool { name: "Bash".into(), schema, ..Tool::default() })
}

#[test]
fn literals_of_python_become_json() {
    let expect = |text: &str, expect: &[&str]| check(&lfm(), text, expect);
    let call = |inner: &str| format!("<|tool_call_start|>[{inner}]<|tool_call_end|>");
    expect(
        &call("Bash(command=\"ls \\\"a\\\" \\n\\u00e9\\x41\")"),
        &["C:Bash {\"command\": \"ls \\\"a\\\" \\n\\u00e9\\u0041\"}"],
    );
    expect(
        &call("Bash(a='it\\'s \"so\"', b=True, c=None, d=-1.5e3, e=[], f={})"),
        &[r#"C:Bash {"a": "it's \"so\"", "b": true, "c": null, "d": -1.5e3, "e": [], "f": {}}"#],
    );
    expect(
        &call("Bash(a=[1, [True, ], ('x', 2)], b={'k': {'l': [None]}, \"m\": 1,})"),
        &[r#"C:Bash {"a": [1, [true], ["x", 2]], "b": {"k": {"l": [null]}, "m": 1}}"#],
    );
    expect(&call("Bash(), read_file( path = 'b' )"), &["C:Bash {}", "C:read_file {\"path\": \"b\"}"]);
    expect(&format!("So.\n{}\nAnd.", call("Bash()")), &["T:So.", "C:Bash {}", "T:And."]);
    for text in ["[1, 2]", "rm()", "Bash", "(1)"] {
        let text = call(text);
        expect(&text, &[&format!("T:{text}")]);
    }
    // One call per line, without a list.
    let olmo = found("<function_calls>");
    check(
        &olmo,
        "<function_calls>Bash(a=1)\nBash(b=2)</function_calls>\nSo.",
        &["C:Bash {\"a\": 1}", "C:Bash {\"b\": 2}", "T:So."],
    );
    // Without any marker.
    let llama = found("<|python_start|> [func_name1(a=b)]");
    check(&llama, "[Bash(a=\"x\"), Bash()]", &["C:Bash {\"a\": \"x\"}", "C:Bash {}"]);
    for text in ["[1, 2]", "[rm(a=1)]", "[Bash", "Bash(a=1)"] {
        check(&llama, text, &[&format!("T:{text}")]);
    }
}

#[test]
fn gemmas_literals_become_json() {
    let call = |inner: &str| format!("<start_function_call>call:Bash{{{inner}}}<end_function_call>");
    let expect = |inner: &str, json: &str| check(&gemma(), &call(inner), &[&format!("C:Bash {json}")]);
    expect("", "{}");
    expect(
        "a:<escape>x \"y\" {z}\n<escape>,b:1,c:true,d:null",
        r#"{"a": "x \"y\" {z}\n", "b": 1, "c": true, "d": null}"#,
    );
    expect("a:[<escape><esc<escape>,[]],b:{c:{d:-0.5}}", r#"{"a": ["<esc", []], "b": {"c": {"d": -0.5}}}"#);
    expect("a:plain words,b:\"quoted\"", r#"{"a": "plain words", "b": "quoted"}"#);
    check(&gemma(), &format!("{}{}", call("a:1"), call("")), &["C:Bash {\"a\": 1}", "C:Bash {}"]);
    check(
        &gemma(),
        "<start_function_call>call:rm{}<end_function_call>",
        &["T:<start_function_call>call:rm{}<end_function_call>"],
    );
}

#[test]
fn messages_are_told_apart_by_their_channel() {
    let expect =
        |text: &str, expect: &[&str]| check_from(&harmony(), Thoughts::Possible, text.as_bytes(), false, expect);
    let thought = "<|channel|>analysis<|message|>Hm, 日本.<|end|><|start|>assistant";
    expect(&format!("{thought}<|channel|>final<|message|>Yes. <b>"), &["R:Hm, 日本.", "T:Yes. <b>"]);
    expect(&format!("{thought}<|channel|>final<|message|>Yes.<|return|>"), &["R:Hm, 日本.", "T:Yes."]);
    let preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>{\"a\": \"<|end|> }\"}<|call|>";
    let called = "C:Bash {\"a\": \"<|end|> }\"}";
    expect(&format!("{thought}{preamble}{call}"), &["R:Hm, 日本.", "T:I look.", called]);
    expect(&format!("{preamble}<|channel|>final<|message|>Done."), &["T:I look.\n\nDone."]);
    // The recipient may come after the role, and in the channel of reasoning.
    expect(" to=functions.Bash<|channel|>commentary json<|message|>{}<|call|>", &["C:Bash {}"]);
    expect("<|channel|>analysis to=functions.Bash code<|message|>{}<|call|>", &["C:Bash {}"]);
    expect(&format!("{call}<|start|>assistant{call}"), &[called, called]);
    // If a message is not a call of an offered tool, its text is shown without the header.
    expect("<|channel|>commentary to=functions.rm<|message|>{}<|call|>", &["T:{}"]);
    expect("<|channel|>commentary to=functions.Bash<|message|>ls<|call|>", &["T:ls"]);
    // Without a header it is text.
    expect("Just text. <b>", &["T:Just text. <b>"]);
    expect("<b>", &["T:<b>"]);
    let begun =
        |thoughts, text: &str, expect: &[&str]| check_from(&harmony(), thoughts, text.as_bytes(), false, expect);
    begun(Thoughts::Begun, &thought["<|channel|>analysis<|message|>".len()..], &["R:Hm, 日本."]);
    begun(Thoughts::Never, "and so on.<|return|>", &["T:and so on."]);
    for cut in 0..thought.len() {
        if thought.is_char_boundary(cut) {
            let shown = read(&harmony(), Thoughts::Possible, &[&thought.as_bytes()[..cut]], true);
            // A single character may be the beginning of a marker, or just that character.
            assert!(shown.iter().all(|piece| "R:Hm, 日本.<".starts_with(piece)), "{shown:?}");
        }
    }
}

#[test]
fn prompts_tell_which_message_is_begun() {
    let thoughts = |prompt: &str| harmony().thoughts(prompt);
    assert_eq!(thoughts("<|start|>user<|message|>Hi<|end|><|start|>assistant"), Thoughts::Possible);
    assert_eq!(thoughts("<|start|>assistant<|channel|>final<|message|>So"), Thoughts::Never);
    assert_eq!(thoughts("<|start|>assistant<|channel|>analysis<|message|>"), Thoughts::Begun);
    assert_eq!(thoughts("<|message|>long<|end|>"), Thoughts::Possible);
}

#[test]
fn tagged_calls_keep_to_their_tools_schema() {
    let case = Case::of(&coder(), &ToolChoice::Auto);
    case.allows("Use <parameter=x> as you like.");
    case.allows(
        "<tool_call>\n<function=Bash>\n<parameter=command>\nls <b> </par\n\n</parameter>\n</function>\n</tool_call>",
    );
    case.allows("<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n<parameter=timeout>\n7\n</parameter>\n</function>\n</tool_call>\nSo.");
    case.allows("So: <function=BashOutput>\n<parameter=id>\nb\n</parameter>\n</function>\n</tool_call>");
    case.allows("<tool_call>\n<function=hopeless>\n<parameter=x>\nanything\n</parameter>\n</function>\n</tool_call>");
    // Properties that the schema does not name are refused even where it does not say so.
    case.refuses("<tool_call>\n<function=hopeless>\n<parameter=x>\nanything\n</parameter>\n<¦parameter=y>");
    case.refuses("<tool_call>\n<function=¦rm>");
    case.refuses("<function=Bash>\n<parameter=¦timeout>\n7\n</parameter>");
    case.refuses("<function=Bash>\n<parameter=command>\nls\n</parameter>\n<parameter=timeout>\n¦soon");
    case.refuses("<function=Bash>\n<parameter=command>\nls\n</parameter>\n<parameter=¦wrong>");
    case.refuses("<function=BashOutput>\n<parameter=id>\n¦c\n</parameter>");
    case.refuses("<function=Bash>\n<¦/function>");
    let barred = Case::of(&coder(), &ToolChoice::None);
    barred.allows("Text with <function and <tool_ca in it.");
    assert!(barred.write("<function=Bash>").0 < "<function=Bash>".len());
}

#[test]
fn python_calls_keep_to_their_tools_schema() {
    let case = Case::of(&found("[func_name1(a=b)]"), &ToolChoice::Auto);
    case.allows("[1, 2] are numbers.");
    case.allows("[Bash(command=\"ls \\\"a\\\"\", timeout=3), BashOutput(id='b')]");
    case.allows("So: <|python_tag|>[BashOutput(id=\"a\")]");
    case.allows("<|python_tag|>[hopeless(x={'a': [1, None]})]");
    case.refuses("<|python_tag|>[¦rm(");
    case.refuses("[Bash(¦timeout=3)]");
    case.refuses("[Bash(command='ls', timeout=¦'3')]");
    case.refuses("[BashOutput(id=\"¦c\")]");
}

#[test]
fn many_tools_with_tags_are_one_grammar() {
    let tools: Vec<Tool> = (0..200)
        .map(|index| {
            let fields = (0..8).map(|field| {
                (format!("field_{field}"), json!({ "type": if field % 2 == 0 { "string" } else { "integer" } }))
            });
            let schema = json!({ "type": "object", "properties": serde_json::Map::from_iter(fields) });
            Tool { name: format!("mcp__some_server__a_tool_with_a_long_name_{index}"), schema, ..Tool::default() }
        })
        .collect();
    for format in [coder(), glm(), lfm(), gemma()] {
        let case = Case::with_tools(&format, &tools);
        let (_, may_end) = case.write("");
        assert!(!may_end, "a call must come");
    }
}
