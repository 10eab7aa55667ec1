//! The conventions that are known by sight: what in a template's source gives each away.
//!
//! Templates write the calls of earlier turns as the model wrote them, so the markers stand in their source. Exceptions are
//! noted. The order counts, as some conventions share a marker.

use super::{Body, Calls, Keys, OutputFormat, Reasoning};

impl OutputFormat {
    /// The convention of a template. `has_token` tells whether the vocabulary has a token of that name.
    pub fn find(template: &str, has_token: impl Fn(&str) -> bool) -> Self {
        Self { calls: calls(template, has_token), reasoning: reasoning(template) }
    }
}

fn calls(template: &str, has_token: impl Fn(&str) -> bool) -> Option<Calls> {
    let has = |text: &str| template.contains(text);
    let marked =
        |open: &str, close: &str, body: Body| Some(Calls { open: open.into(), close: close.into(), bare: false, body });
    if has("[TOOL_CALLS]") {
        // From version 11 of Mistral's tokenizers on, name and arguments stand apart; for a while ids stood between.
        let body = if has("[ARGS]") {
            let id = if has("[CALL_ID]") { "[CALL_ID]" } else { "" };
            Body::Named { arguments: "[ARGS]".into(), id: id.into() }
        } else {
            Body::List(Keys::default())
        };
        return marked("[TOOL_CALLS]", "", body);
    }
    if has("<|START_ACTION|>") {
        // Cohere's Command.
        let keys = Keys { name: "tool_name".into(), arguments: "parameters".into() };
        return marked("<|START_ACTION|>", "<|END_ACTION|>", Body::List(keys));
    }
    if has("<|tool_call|>") || has("<|tool|>") {
        // Phi-4-mini closes its list and has both markers in its vocabulary, though not in its template. Granite does not.
        let close = if has_token("<|/tool_call|>") || has("<|/tool_call|>") { "<|/tool_call|>" } else { "" };
        return marked("<|tool_call|>", close, Body::List(Keys::default()));
    }
    if has("<tool_call>") {
        // Qwen3-Coder writes parameters as tags within the same marker, which is not JSON and not read here.
        return if has("<parameter=") { None } else { hermes() };
    }
    if has("<function=") && !has("<parameter=") {
        // Functionary, and Llama 3.1 when asked for it.
        return marked("<function=", "</function>", Body::Named { arguments: ">".into(), id: String::new() });
    }
    if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\": ")) {
        let keys = Keys { name: "name".into(), arguments: "parameters".into() };
        return Some(Calls {
            open: "<|python_tag|>".into(),
            close: String::new(),
            bare: true,
            body: Body::Object(keys),
        });
    }
    None
}

/// What Hermes and Qwen write, and what models are taught that have no convention of their own.
pub(super) fn hermes() -> Option<Calls> {
    Some(Calls {
        open: "<tool_call>".into(),
        close: "</tool_call>".into(),
        bare: false,
        body: Body::Object(Keys::default()),
    })
}

fn reasoning(template: &str) -> Option<Reasoning> {
    // Many templates only cut old thoughts off, at what ends them.
    let known = [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<seed:think>", "</seed:think>"),
        ("<reasoning>", "</reasoning>"),
    ];
    let found = known.iter().find(|(_, close)| template.contains(close));
    found.map(|(open, close)| Reasoning { open: (*open).into(), close: (*close).into() })
}
