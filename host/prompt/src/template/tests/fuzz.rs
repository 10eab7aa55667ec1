//! Damaged templates: each either renders a conversation or is rejected, within its fuel.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
};

use pensieve_fuzz::{Target, files};

use super::*;

thread_local! {
    static MINIJINJA_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Describes how rendering ended. A panic in minijinja counts as an outcome, as a prompt process reports it as an error
/// in the template; a panic in this crate is a failure.
fn outcome(render: impl FnOnce() -> String) -> String {
    panic::catch_unwind(AssertUnwindSafe(render)).unwrap_or_else(|payload| {
        if MINIJINJA_PANICKED.replace(false) { "panicked".to_owned() } else { panic::resume_unwind(payload) }
    })
}

fn expect_panics_of_minijinja() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.location().is_some_and(|place| place.file().contains("/minijinja-")) {
            MINIJINJA_PANICKED.set(true);
        } else {
            hook(info);
        }
    }));
}

#[test]
fn a_damaged_template_renders_or_is_refused() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates");
    let corpus = files(&fixtures, ".jinja");
    let call = Part::ToolCall { id: "123456789".into(), name: "f".into(), arguments: json!({ "a": [1, "x"] }) };
    let result = Part::ToolResult { id: "123456789".into(), text: "done".into(), images: Vec::new(), is_error: false };
    let conversation = Conversation {
        system: "Be kind.".into(),
        turns: vec![
            turn(Role::User, "Hi <|im_end|>"),
            Turn { role: Role::Assistant, parts: vec![Part::Thinking("Hm".into()), call] },
            Turn { role: Role::User, parts: vec![result] },
        ],
        tools: vec![Tool { name: "f".into(), ..Tool::default() }],
        ..Conversation::default()
    };
    let added = vec![("<s>".to_owned(), true), ("<|im_end|>".to_owned(), true)];
    let specials = Specials { bos: "<s>".into(), eos: "<|im_end|>".into(), added };
    // Memory and stack of a prompt process, all of which a template may use.
    let target = Target { name: "jinja", corpus, memory_max: 1 << 30, input_max: 16 << 10 };
    expect_panics_of_minijinja();
    target.run_on(pensieve_protocol::prompt::STACK_BYTES, |bytes| {
        let source = String::from_utf8_lossy(bytes);
        outcome(|| {
            let rendered = Template::of(Some(&source), &specials, None)
                .and_then(|template| template.render(&conversation, None, &[]))
                .map(|rendered| format!("rendered, plain: {}", rendered.plain.is_empty()));
            rendered.unwrap_or_else(|failure| failure.message)
        })
    });
}
