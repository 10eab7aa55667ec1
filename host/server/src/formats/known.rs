//! Formats that are detected from the source of a chat template.
//!
//! Templates write the calls of earlier turns as the model wrote them, so the markers occur in their source. Exceptions
//! are noted. Formats are written as in a plugin's card.

use super::{Body, Calls, Channels, Keys, OutputFormat, Reasoning};

/// A call format, and the signs of it in a template.
struct Known {
    /// Strings that must all occur in the template.
    signs: &'static [&'static str],
    /// A token that the vocabulary must also contain; empty for none.
    token: &'static str,
    /// The format, as JSON.
    calls: &'static str,
}

const fn known(signs: &'static [&'static str], calls: &'static str) -> Known {
    Known { signs, token: "", calls }
}

/// The first match wins, as some formats share a marker.
const KNOWN: &[Known] = &[
    // Mistral: since version 11 of its tokenizers name and arguments are separate; some versions had ids between them.
    known(
        &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        r#"{"open": "[TOOL_CALLS]", "body": {"named": {"arguments": "[ARGS]", "id": "[CALL_ID]"}}}"#,
    ),
    known(&["[TOOL_CALLS]", "[ARGS]"], r#"{"open": "[TOOL_CALLS]", "body": {"named": {"arguments": "[ARGS]"}}}"#),
    known(&["[TOOL_CALLS]"], r#"{"open": "[TOOL_CALLS]", "body": {"list": {}}}"#),
    // Cohere's Command, the current format and that of 2024.
    known(
        &["<|START_ACTION|>"],
        r#"{"open": "<|START_ACTION|>", "close": "<|END_ACTION|>",
            "body": {"list": {"name": "tool_name", "arguments": "parameters"}}}"#,
    ),
    known(
        &["Action: ```json", "tool_name"],
        r#"{"open": "Action: ```json", "close": "```",
            "body": {"list": {"name": "tool_name", "arguments": "parameters"}}}"#,
    ),
    // Kimi K2.
    known(
        &["<|tool_calls_section_begin|>"],
        r#"{"open": "<|tool_calls_section_begin|>", "close": "<|tool_calls_section_end|>", "body": {"named": {
            "before": "<|tool_call_begin|>functions.", "id": ":", "arguments": "<|tool_call_argument_begin|>",
            "after": "<|tool_call_end|>"}}}"#,
    ),
    // DeepSeek V3 and R1, which fence the arguments, and V3.1, which does not.
    known(
        &["<｜tool▁calls▁begin｜>", "```json"],
        r#"{"open": "<｜tool▁calls▁begin｜>", "close": "<｜tool▁calls▁end｜>", "body": {"named": {
            "before": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "arguments": "\n```json\n",
            "after": "\n```<｜tool▁call▁end｜>"}}}"#,
    ),
    known(
        &["<｜tool▁calls▁begin｜>"],
        r#"{"open": "<｜tool▁calls▁begin｜>", "close": "<｜tool▁calls▁end｜>", "body": {"named": {
            "before": "<｜tool▁call▁begin｜>", "arguments": "<｜tool▁sep｜>", "after": "<｜tool▁call▁end｜>"}}}"#,
    ),
    // MiniMax M2.
    known(
        &["<minimax:tool_call>"],
        r#"{"open": "<minimax:tool_call>", "close": "</minimax:tool_call>", "body": {"named": {
            "before": "<invoke name=\"", "arguments": "\">", "after": "</invoke>",
            "form": {"tags": {"key": "<parameter name=\"", "key_end": "\">", "end": "</parameter>"}}}}}"#,
    ),
    // Seed-OSS.
    known(
        &["<seed:tool_call>"],
        r#"{"open": "<seed:tool_call>", "close": "</seed:tool_call>", "body": {"named": {
            "before": "<function=", "arguments": ">", "after": "</function>",
            "form": {"tags": {"key": "<parameter=", "key_end": ">", "end": "</parameter>"}}}}}"#,
    ),
    // Gemma 4 and FunctionGemma.
    known(
        &["<|tool_call>"],
        r#"{"open": "<|tool_call>", "close": "<tool_call|>", "body": {"named": {
            "before": "call:", "arguments": "{", "form": {"quoted": {"quote": "<|\"|>"}}}}}"#,
    ),
    known(
        &["<start_function_call>"],
        r#"{"open": "<start_function_call>", "close": "<end_function_call>", "body": {"named": {
            "before": "call:", "arguments": "{", "form": {"quoted": {"quote": "<escape>"}}}}}"#,
    ),
    // LFM2; some of its templates leave calls in the answer's text.
    known(
        &["<|tool_call_start|>"],
        r#"{"open": "<|tool_call_start|>", "close": "<|tool_call_end|>", "body": {"python": {}}}"#,
    ),
    known(
        &["<|tool_list_start|>"],
        r#"{"open": "<|tool_call_start|>", "close": "<|tool_call_end|>", "body": {"python": {}}}"#,
    ),
    // OLMo 3.
    known(
        &["<function_calls>"],
        r#"{"open": "<function_calls>", "close": "</function_calls>", "body": {"python": {"list": false}}}"#,
    ),
    // Phi-4-mini closes its list and has both markers in its vocabulary, though not in its template. Granite 3 does not
    // close it.
    Known {
        signs: &["<|tool"],
        token: "<|/tool_call|>",
        calls: r#"{"open": "<|tool_call|>", "close": "<|/tool_call|>", "body": {"list": {}}}"#,
    },
    known(
        &["<|tool_call|>", "<|/tool_call|>"],
        r#"{"open": "<|tool_call|>", "close": "<|/tool_call|>", "body": {"list": {}}}"#,
    ),
    known(&["<|tool_call|>"], r#"{"open": "<|tool_call|>", "body": {"list": {}}}"#),
    known(&["<|tool|>"], r#"{"open": "<|tool_call|>", "body": {"list": {}}}"#),
    // Jamba, and Nemotron Nano.
    known(&["<tool_calls>"], r#"{"open": "<tool_calls>", "close": "</tool_calls>", "body": {"list": {}}}"#),
    known(&["<TOOLCALL>"], r#"{"open": "<TOOLCALL>", "close": "</TOOLCALL>", "body": {"list": {}}}"#),
    // GLM from 4.5 on.
    known(
        &["<tool_call>", "<arg_key>"],
        r#"{"open": "<tool_call>", "body": {"named": {"after": "</tool_call>", "form": {"tags": {
            "key": "<arg_key>", "key_end": "</arg_key>", "value": "<arg_value>", "end": "</arg_value>"}}}}}"#,
    ),
    // Qwen3-Coder, and Qwen since 3.5, which sometimes omit the outer tag.
    known(
        &["<tool_call>", "<parameter="],
        r#"{"open": "<tool_call>", "close": "</tool_call>", "bare": true, "body": {"named": {
            "before": "<function=", "arguments": ">", "after": "</function>",
            "form": {"tags": {"key": "<parameter=", "key_end": ">", "margin": "\n", "end": "</parameter>"}}}}}"#,
    ),
    // Hermes, Qwen 2.5 and 3, Granite 4, EXAONE, SmolLM3 and others.
    known(&["<tool_call>"], HERMES),
    known(
        &["<function=", "<parameter="],
        r#"{"open": "<function=", "body": {"named": {"arguments": ">", "after": "</function>",
            "form": {"tags": {"key": "<parameter=", "key_end": ">", "margin": "\n", "end": "</parameter>"}}}}}"#,
    ),
    // Functionary, and Llama 3.1 if instructed.
    known(&["<function="], r#"{"open": "<function=", "close": "</function>", "body": {"named": {"arguments": ">"}}}"#),
    // Llama 4 and 3.2 if instructed to write Python.
    known(
        &["<|python_start|>", "func_name1("],
        r#"{"open": "<|python_start|>", "close": "<|python_end|>", "bare": true, "body": {"python": {}}}"#,
    ),
    known(
        &["<|python_start|>", "\"parameters\": "],
        r#"{"open": "<|python_start|>", "close": "<|python_end|>", "bare": true,
            "body": {"object": {"arguments": "parameters"}}}"#,
    ),
    known(&["func_name1("], r#"{"open": "<|python_tag|>", "bare": true, "body": {"python": {}}}"#),
    known(&["<|python_tag|>"], LLAMA),
];

const HERMES: &str = r#"{"open": "<tool_call>", "close": "</tool_call>", "body": {"object": {}}}"#;
const LLAMA: &str = r#"{"open": "<|python_tag|>", "bare": true, "body": {"object": {"arguments": "parameters"}}}"#;

/// Reasoning. Many templates contain only the closer, which they use to cut off old reasoning.
const REASONING: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
];

impl OutputFormat {
    /// Detects the format from a template. `has_token` returns whether the vocabulary contains a token.
    pub fn find(template: &str, has_token: impl Fn(&str) -> bool) -> Self {
        let has = |text: &&str| template.contains(*text);
        if ["<|channel|>", "<|message|>"].iter().all(has) {
            return Self { channels: Some(Channels::default()), ..Self::default() };
        }
        let fits = |known: &&Known| known.signs.iter().all(has) && (known.token.is_empty() || has_token(known.token));
        let is_llama = has(&"<|start_header_id|>") && has(&"\"parameters\": ");
        let calls = KNOWN.iter().find(fits).map(|known| known.calls).or(is_llama.then_some(LLAMA));
        let reasoning = REASONING.iter().find(|(_, close)| template.contains(close));
        Self {
            calls: calls.and_then(|calls| serde_json::from_str(calls).ok()),
            reasoning: reasoning.map(|(open, close)| Reasoning { open: (*open).into(), close: (*close).into() }),
            channels: None,
        }
    }
}

/// The format of Hermes and Qwen, which models without a known format are taught.
pub(super) fn hermes() -> Calls {
    Calls { open: "<tool_call>".into(), close: "</tool_call>".into(), bare: false, body: Body::Object(Keys::default()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_known_convention_is_one_that_a_card_may_have() {
        for known in KNOWN {
            let card = format!("{{\"calls\": {}}}", known.calls);
            let read = OutputFormat::of(&card, None, |_| false).unwrap();
            let found = OutputFormat::find(&known.signs.concat(), |token| token == known.token);
            assert_eq!(read.calls, found.calls, "{card}");
        }
        assert_eq!(serde_json::from_str::<Calls>(HERMES).unwrap(), hermes());
    }
}
