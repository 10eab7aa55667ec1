//! Templates compared with transformers, and what neither hostile templates nor clients' text may do.

mod expressions;
mod fuzz;
mod hostile;
mod images;
mod rendered;
mod words;

use std::{fs, path::Path};

use super::*;
use crate::tokens::Specials;
use pensieve_protocol::conversation::{Part, Tool, Turn};

/// Reads a file from `tests/fixtures/templates`.
fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates");
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json_file(name: &str) -> Json {
    serde_json::from_str(&file(name)).unwrap()
}

fn text(value: &Json) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// Returns a template with these special tokens.
fn template(source: &str, bos: &str, eos: &str, special: &[&str]) -> Template {
    let added = [&[bos, eos], special].concat();
    let added = added.into_iter().filter(|text| !text.is_empty()).map(|text| (text.to_owned(), true)).collect();
    Template::read(source, &Specials { bos: bos.into(), eos: eos.into(), added }, None).unwrap()
}

fn turn(role: Role, text: &str) -> Turn {
    Turn { role, parts: vec![Part::Text(text.into())] }
}
