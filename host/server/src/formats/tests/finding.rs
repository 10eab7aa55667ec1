//! Formats are detected in templates, and read from cards.

use super::*;

fn check(template: &str, expect: &OutputFormat) {
    assert_eq!(OutputFormat::find(template, |_| false), *expect, "{template}");
}

#[test]
fn templates_give_their_convention_away() {
    check("{{ messages }}", &OutputFormat::default());
    check("{{ '<tool_call>\\n' + tojson }}{{ content.split('</think>') }}", &thinking(hermes()));
    check("{{ '[TOOL_CALLS] [' }}", &mistral());
    check("{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' }}", &new_mistral());
    check("{{ '<|start_header_id|>' }}{{ '<|python_tag|>' }}", &llama());
    check("{{ '<|start_header_id|>' }}{{ '{\"name\": ' }}{{ '\"parameters\": ' }}", &llama());
    check("{{ '<function=' + name + '>' }}", &functionary());
    let phi_template = "{{ '<|' + role + '|>' + content + '<|tool|>' + tools + '<|/tool|>' }}";
    assert_eq!(OutputFormat::find(phi_template, |token| token == "<|/tool_call|>"), phi());
}

#[test]
fn a_cards_word_counts_more_than_what_is_found() {
    let template = Some("<tool_call> </think>");
    assert_eq!(OutputFormat::of("", template, |_| false).unwrap(), thinking(hermes()));
    let card = r#"{"calls": {"open": "[TOOL_CALLS]", "body": {"named": {"arguments": "[ARGS]", "id": "[CALL_ID]"}}}}"#;
    assert_eq!(OutputFormat::of(card, template, |_| false).unwrap(), thinking(new_mistral()));
    let card = r#"{"calls": {"open": "<tool_call>", "close": "</tool_call>", "body": {"object": {}}}}"#;
    assert_eq!(OutputFormat::of(card, None, |_| false).unwrap(), hermes());
    for wrong in ["[]", r#"{"calls": {"open": "", "body": {"object": {}}}}"#, r#"{"call": {}}"#, "{"] {
        assert!(OutputFormat::of(wrong, None, |_| false).unwrap_err().starts_with("its formats"), "{wrong}");
    }
}

#[test]
fn the_end_of_a_prompt_tells_where_thoughts_are() {
    let format = thinking(hermes());
    assert_eq!(format.thoughts("<|assistant|>\n"), Thoughts::Possible);
    assert_eq!(format.thoughts("<|assistant|>\n<think>\n"), Thoughts::Begun);
    assert_eq!(format.thoughts("<|assistant|>\n<think>\n\n</think>\n\n"), Thoughts::Never);
    assert_eq!(hermes().thoughts("<think>"), Thoughts::Never);
}
