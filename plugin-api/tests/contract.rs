//! Contract 1.0 is frozen: `tests/contract` records everything that plugins compiled today rely on, and this test
//! compares the crate with it. `layout.txt` has every type that crosses, as abi_stable checks it when a plugin is
//! loaded; `api.txt` every public item that an author's code can name, including the values of constants.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use pensieve_plugin_api::{
    PluginModule_Ref,
    abi_stable::{
        StableAbi,
        std_types::utypeid::UTypeId,
        type_layout::{TLData, TLField, TLFunction, TypeLayout},
    },
    ext::{
        concurrent_stages::ConcurrentStages,
        kv_transfer::KvTransfer,
        media::{Encode, Prepare},
        merge::Merge,
        sequence_state::SequenceState,
    },
};
use std::{
    collections::{BTreeSet, HashSet},
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

const OWN: &str = "pensieve-plugin-api";

/// The published crate had the laws behind a feature, though they were never frozen; they are now the crate
/// `pensieve-laws`.
const NOT_FROZEN: &str = "    pub mod laws;\n";

/// In the file of an extension that is a draft.
const DRAFT: &str = "pub const ID: &str = \"draft/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares with the record, and explains what to do about a difference.
fn hold(name: &str, found: &str) {
    let file = root().join("tests/contract").join(name);
    if env::var_os("PENSIEVE_WRITE_CONTRACT").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        return fs::write(&file, found).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default().replace(NOT_FROZEN, "");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<HashSet<_>>();
    let (before, now) = (lines(&known), lines(found));
    let gone: Vec<&str> = known.lines().filter(|line| !now.contains(*line)).collect();
    let fresh: Vec<&str> = found.lines().filter(|line| !before.contains(*line)).collect();
    assert!(
        known == found,
        "contract 1.0 is frozen, and this crate differs from {}.\n\nIt had:\n  {}\nIt has:\n  {}\n\nPlugins already \
         built rely on the former. Revert the change, and offer the addition as an extension (src/ext has some to \
         copy from; an id that begins with draft/ promises nothing yet). If the change cannot affect a plugin, such as a new \
         helper function, note it in CHANGELOG.md, and rewrite the file: PENSIEVE_WRITE_CONTRACT=1 cargo test -p \
         pensieve-plugin-api --test contract",
        file.display(),
        gone.join("\n  "),
        fresh.join("\n  "),
    );
}

/// A type, nearly as written in Rust. abi_stable's names omit parameters, so a foreign type is followed by its
/// components.
fn name(layout: &'static TypeLayout) -> String {
    let own = layout.full_type().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = Vec::new();
    if !is_plain(layout) && !["RString", "RStr", "TypeLayout", "RObject"].contains(&layout.name()) {
        collect(layout, 4, &mut parts);
    }
    let bare = own.split('<').next().unwrap_or_default();
    if parts.is_empty() { own } else { format!("{bare}<{}>", parts.join(", ")) }
}

fn is_plain(layout: &TypeLayout) -> bool {
    is_own(layout) || matches!(layout.data(), TLData::Primitive(_))
}

fn collect(layout: &'static TypeLayout, depth: usize, parts: &mut Vec<String>) {
    for part in layout.shared_vars().type_layouts().iter().map(|part| part()) {
        let text = part.full_type().to_string();
        let is_pointer = text.contains(['*', '&']);
        if (is_plain(part) || part.name() == "RString") && !is_pointer {
            // Lengths, and memory reserved for later versions.
            if !["usize", "[u8;16]"].contains(&text.as_str()) && !parts.contains(&text) {
                parts.push(text);
            }
        } else if depth > 0 {
            collect(part, depth - 1, parts);
        }
    }
}

fn is_own(layout: &TypeLayout) -> bool {
    layout.package().as_str() == OWN
}

/// Collects every type of this crate that can be reached from `layout`.
fn walk(layout: &'static TypeLayout, seen: &mut HashSet<UTypeId>, texts: &mut BTreeSet<String>) {
    if !seen.insert(layout.get_utypeid()) {
        return;
    }
    if is_own(layout) {
        let (size, alignment) = (layout.size(), layout.alignment());
        let mut text = format!("{} (size {size}, alignment {alignment})\n", layout.full_type());
        fields(layout, &mut text);
        texts.insert(text);
    }
    for nested in layout.shared_vars().type_layouts() {
        walk(nested(), seen, texts);
    }
    if let Some(checks) = layout.extra_checks() {
        for nested in checks.nested_type_layouts().iter() {
            walk(nested, seen, texts);
        }
    }
}

fn fields(layout: &'static TypeLayout, text: &mut String) {
    let mut list = |what: &str, fields: &mut dyn Iterator<Item = TLField>| {
        for field in fields {
            let functions: Vec<String> = field.function_range().iter().map(|function| signature(&function)).collect();
            let size = field.layout().size();
            let shape = if functions.is_empty() {
                format!("{} (size {size})", name(field.layout()))
            } else {
                functions.join("; ")
            };
            writeln!(text, "    {what}{}: {shape}", field.name()).unwrap();
        }
    };
    match layout.data() {
        TLData::Struct { fields } | TLData::Union { fields } => list("", &mut fields.iter()),
        TLData::Enum(variants) => list("variant ", &mut variants.fields.iter()),
        TLData::PrefixType(prefix) => list("", &mut prefix.fields.iter()),
        TLData::Primitive(_) | TLData::Opaque => {}
    }
}

fn signature(function: &TLFunction) -> String {
    let names = function.param_names.as_str().split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
    let types = function.param_type_layouts.iter().map(|layout| name(layout()));
    let parameters: Vec<String> = names.zip(types).map(|(name, kind)| format!("{name}: {kind}")).collect();
    let returned = function.return_type_layout().map_or(String::new(), |layout| format!(" -> {}", name(layout())));
    format!("fn({}){returned}", parameters.join(", "))
}

#[test]
#[cfg(target_pointer_width = "64")]
fn what_crosses_has_the_layout_of_contract_1_0() {
    let (mut seen, mut texts) = (HashSet::new(), BTreeSet::new());
    let extensions = [
        ConcurrentStages::LAYOUT,
        KvTransfer::LAYOUT,
        SequenceState::LAYOUT,
        Merge::LAYOUT,
        Prepare::LAYOUT,
        Encode::LAYOUT,
    ];
    for layout in [PluginModule_Ref::LAYOUT].into_iter().chain(extensions) {
        walk(layout, &mut seen, &mut texts);
    }
    hold("layout.txt", &texts.into_iter().collect::<Vec<_>>().join("\n"));
}

/// The source files of the contract.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root().join("src")]);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The public items of a file formatted by rustfmt: lines that begin with `pub`, and the functions of public traits.
fn items(text: &str) -> String {
    let (mut items, mut within, mut item) = (String::new(), String::new(), String::new());
    for line in text.lines() {
        let code = line.trim();
        if code.starts_with("//") || code.starts_with("#[") {
            continue;
        }
        let outer = !line.starts_with(' ');
        if outer && (code.starts_with("impl") || code.starts_with("pub trait")) {
            within = code.trim_end_matches('{').trim().to_owned();
        } else if outer && code == "}" {
            within.clear();
        }
        let of_trait = within.starts_with("pub trait") && code.starts_with("fn ");
        if item.is_empty() && !code.starts_with("pub ") && !of_trait {
            continue;
        }
        item.push_str(code);
        item.push(' ');
        let open = |letter| item.matches(letter).count();
        // A use, an attribute or parameters may span several lines.
        let whole = open('(') == open(')') && code.ends_with(['{', ';', ',', '}']);
        let is_use = item.starts_with("pub use") && !item.contains(';');
        if whole && !is_use {
            let place = if within.is_empty() || item.starts_with("pub trait") { "" } else { &format!("{within}: ") };
            writeln!(items, "    {place}{}", item.trim_end_matches([' ', '{', ','])).unwrap();
            item.clear();
        }
    }
    items
}

#[test]
fn what_authors_name_is_that_of_contract_1_0() {
    let mut found = String::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        // A draft promises nothing yet; what is recorded of it is its name, in the list of extensions.
        let items = if text.contains(DRAFT) { String::new() } else { items(&text) };
        if !items.is_empty() {
            writeln!(found, "{}\n{items}", path.strip_prefix(root()).unwrap().display()).unwrap();
        }
    }
    hold("api.txt", &found);
}

#[test]
fn a_change_of_what_authors_name_is_seen() {
    let items = items(
        "pub struct A {\n    /// Words.\n    pub b: u32,\n    c: u32,\n}\n\nimpl A {\n    /// One.\n    pub const X: Self = Self { b: \
         1, c: 2 };\n\n    pub fn new(\n        b: u32,\n    ) -> Self {\n        todo!()\n    }\n    fn own() {}\n}\n\npub trait T: \
         Send {\n    fn f(&self) -> u32;\n}\n",
    );
    let expected = "    pub struct A\n    pub b: u32\n    impl A: pub const X: Self = Self { b: 1, c: 2 };\n    impl A: pub fn new( \
                    b: u32, ) -> Self\n    pub trait T: Send\n    pub trait T: Send: fn f(&self) -> u32;\n";
    assert_eq!(items, expected);
}
