//! Children's answers are JSON that a plugin or checkpoint may have written. However deeply nested, it is read or refused on an
//! eighth of the stack that the server's threads have.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::thread;

use pensieve_protocol::{
    card::Card,
    manifest::Manifest,
    questions::{Checked, Described, Named},
};
use serde::de::DeserializeOwned;

const STACK_BYTES: usize = 256 << 10;
const LEVELS: usize = 100_000;

fn is_refused<T: DeserializeOwned>(text: &str) {
    let refused = serde_json::from_str::<T>(text).err();
    assert!(refused.is_some(), "{}…", &text[..40.min(text.len())]);
}

#[test]
fn answers_that_are_deeper_than_any_stack_are_refused() {
    let reading = || {
        for opener in
            ["[", "{\"a\":", "{\"card\":", "{\"refusal\":[", "[{\"manifest\":", "{\"architectures\":[{\"gguf\":["]
        {
            for before in ["", "{\"id\": \"x\", \"other\": ", "{\"manifest\": {\"id\": ", "{\"card\": {\"groups\": "] {
                let text = format!("{before}{}", opener.repeat(LEVELS));
                is_refused::<Checked>(&text);
                is_refused::<Named>(&text);
                is_refused::<Described>(&text);
                is_refused::<Manifest>(&text);
                is_refused::<Card>(&text);
            }
        }
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(reading).unwrap().join().unwrap();
}
