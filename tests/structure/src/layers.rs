//! Which way imports run: inside each crate from upper modules to lower ones, and never in a circle.
//!
//! Cargo keeps crates apart; nothing keeps modules apart but this test. It reads the sources as text: `use` declarations
//! and paths that begin with `crate::` or `super::` become edges between files, a name that a module re-exports leads to
//! the file that it comes from, and a file that imports from a module which it lies in is that module's own business.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::root;

/// Crates, or modules of them, and what lies in these, from the uppermost down: a module may import from those to the right of
/// it. Modules of one group know nothing of each other.
const LAYERS: &[(&str, &str, &[&[&str]])] = &[
    ("host", "", &[&["main"], &["cli"], &["config", "starter"]]),
    (
        "host/server",
        "",
        &[
            &["http"],
            &["dialects"],
            &["requests"],
            &["answers", "constraints", "rendering", "upstream"],
            &["formats"],
            &["chat", "shares"],
            &["fleet"],
            &["keys"],
            &["fetch", "hub", "ids", "wildcard"],
        ],
    ),
    ("host/docs", "", &[&["site"], &["render"], &["links"], &["pages"]]),
    ("host/prompt", "", &[&["process"], &["lark", "model"], &["template"], &["tokens"], &["heap", "rendered"]]),
    ("host/media", "", &[&["process"], &["items"], &["picture"]]),
    ("host/worker", "", &[&["fence"], &["process"], &["engine"], &["plugin"]]),
    (
        "host/grammar",
        "",
        &[
            &["compiler", "masks"],
            &["constraint"],
            &["completion", "rules"],
            &["barred", "cache"],
            &["constraint_error"],
            &["source"],
            &["closed", "limits", "token_trie"],
            &["anchors", "error", "outline", "patterns"],
        ],
    ),
    (
        "host/packages",
        "",
        &[
            &["store"],
            &["installed", "publish"],
            &["trust"],
            &["index", "lock"],
            &["archive", "origin", "release"],
            &["manifest", "state_file"],
            &["signature"],
            &["digest", "error", "location"],
        ],
    ),
    (
        "host/protocol",
        "",
        &[
            &["decoding"],
            &["checkpoint_files", "path_policy", "prompt", "questions", "wire"],
            &["job"],
            &[
                "awake",
                "card",
                "checkpoint",
                "conversation",
                "fence",
                "grammar",
                "manifest",
                "quarantine",
                "refusal",
                "share",
                "vocabulary",
            ],
            &["media", "outside", "python_numbers", "rows", "timeline", "towers"],
        ],
    ),
    (
        "plugin-api/laws",
        "",
        &[
            &["adapters", "caches", "candidates", "formats", "hidden", "media", "past", "samplers", "speed", "steps"],
            &["texts"],
            &["refusals"],
            &["memory"],
            &["rig"],
            &["draft", "report"],
            &["sample"],
        ],
    ),
    (
        "sdk",
        "",
        &[
            &["bridge", "testing"],
            &["export"],
            &["nn", "plugin"],
            &["architecture"],
            &["outputs"],
            &["adapter", "batch", "media", "sampler", "services"],
            &["abi"],
        ],
    ),
    (
        "sdk",
        "nn",
        &[
            &["causal_lm", "diagnostics", "encoder"],
            &["sizes"],
            &["paged"],
            &["vision"],
            &["layers"],
            &["plan"],
            &["runtime"],
            &["options"],
            &["loading"],
            &["linear"],
            &["step"],
            &["adapters", "items"],
            &["ops"],
            &["device"],
            &["backend"],
            &["memory"],
            &["spec"],
        ],
    ),
    (
        "sdk/kernels",
        "",
        &[
            &["feed_forward"],
            &["conv", "elementwise", "experts"],
            &["attention", "best", "low_rank", "matmul", "norm", "recurrence", "rope"],
            &["activation", "kv"],
            &["kv_packed"],
            &["results"],
            &["float", "pool", "quant", "tile"],
            &["simd", "timeline"],
        ],
    ),
    (
        "sdk/weights",
        "",
        &[
            &["rows", "fixture", "mmproj"],
            &["checkpoint"],
            &["config", "tokenizer"],
            &["dense", "family"],
            &["gguf_config", "modules"],
            &["tensors"],
            &["packed"],
            &["gguf", "parts", "pretokenizer", "rope", "safetensors"],
            &["json", "tensor"],
            &["bytes", "dtype", "names"],
        ],
    ),
];

/// The files of a crate, by the path of the module that each holds: `[]` is the crate's root.
struct Crate {
    files: BTreeMap<Vec<String>, Source>,
}

struct Source {
    place: PathBuf,
    /// Whole paths, from the root of the crate, of what the file imports.
    imports: BTreeSet<Vec<String>>,
    /// Names that the file has from elsewhere, and where from.
    aliases: BTreeMap<String, Vec<String>>,
}

impl Crate {
    fn read(folder: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut open = vec![folder.join("src")];
        while let Some(place) = open.pop() {
            if place.is_dir() {
                open.extend(fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            if place.extension().is_some_and(|extension| extension == "rs") {
                let inside = place.strip_prefix(folder.join("src")).unwrap();
                Self::add(&mut files, inside, place.clone(), &fs::read_to_string(&place).unwrap());
            }
        }
        Self { files }
    }

    /// A crate of these files, by their paths in its `src`.
    fn of(texts: &[(&str, &str)]) -> Self {
        let mut files = BTreeMap::new();
        for (path, text) in texts {
            Self::add(&mut files, Path::new(path), root().join(path), text);
        }
        Self { files }
    }

    fn add(files: &mut BTreeMap<Vec<String>, Source>, inside: &Path, place: PathBuf, text: &str) {
        let inside = inside.with_extension("");
        let mut module: Vec<String> = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if module.iter().any(|part| part == "tests" || part.ends_with("_tests")) {
            return;
        }
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        let (imports, aliases) = imports(&module, text);
        files.insert(module, Source { place, imports, aliases });
    }

    /// The file that a path leads into: the longest module in it, or where that has the next name from.
    fn target(&self, path: &[String]) -> Option<&Vec<String>> {
        let mut path = path.to_vec();
        // Each turn follows one re-export; there are never many in a row.
        for _ in 0..8 {
            let length = (0..=path.len()).rev().find(|length| self.files.contains_key(&path[..*length]))?;
            let (module, source) = self.files.get_key_value(&path[..length])?;
            match path.get(length).and_then(|name| source.aliases.get(name)) {
                Some(origin) if !origin.starts_with(&path) => {
                    path = origin.iter().cloned().chain(path[length + 1..].iter().cloned()).collect();
                }
                _ => return Some(module),
            }
        }
        None
    }

    /// Who imports from whom, without what a file imports from the modules that it lies in.
    fn edges(&self) -> BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> {
        let edges = self.files.iter().map(|(module, source)| {
            let targets = source.imports.iter().filter_map(|path| self.target(path));
            (module, targets.filter(|target| !module.starts_with(target)).collect())
        });
        edges.collect()
    }

    /// Imports that do not run downward among what lies in the module `within`, and modules there that no layer lists.
    fn upward(&self, within: &str, layers: &[&[&str]]) -> Vec<String> {
        let within: Vec<&str> = within.split("::").filter(|part| !part.is_empty()).collect();
        let inside = |module: &Vec<String>| -> Option<String> {
            let (outer, inner) = module.split_at_checked(within.len())?;
            inner.first().filter(|_| outer == within.as_slice()).cloned()
        };
        let rank = |module: &str| layers.iter().position(|group| group.contains(&module));
        let mut found = Vec::new();
        for (module, targets) in self.edges() {
            let Some(from) = inside(module) else { continue };
            if rank(&from).is_none() {
                found.push(format!("no layer lists the module '{from}'"));
            }
            for target in targets {
                let Some(to) = inside(target).filter(|to| *to != from) else { continue };
                if rank(&from) >= rank(&to) {
                    found.push(format!("{} imports from {}", module.join("::"), target.join("::")));
                }
            }
        }
        found
    }

    /// Imports on a way back to where they begin.
    fn circles(&self) -> Vec<String> {
        let edges = self.edges();
        let reaches = |from: &Vec<String>, to: &Vec<String>| {
            let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
            while let Some(module) = open.pop() {
                open.extend(edges[module].iter().filter(|next| seen.insert(next)));
            }
            seen.contains(to)
        };
        let place = |module: &Vec<String>| self.files[module].place.strip_prefix(root()).unwrap().display().to_string();
        let imports = edges.iter().flat_map(|(module, targets)| targets.iter().map(move |target| (*module, *target)));
        let closing = imports.filter(|(module, target)| reaches(target, module));
        closing.map(|(module, target)| format!("{} -> {}", place(module), place(target))).collect()
    }
}

/// The imports of a Rust source, and the names that they bring into scope.
fn imports(module: &[String], text: &str) -> (BTreeSet<Vec<String>>, BTreeMap<String, Vec<String>>) {
    // Unit tests may look wherever they like.
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let text = text.split("#[cfg(test)]\n#[allow").next().unwrap_or_default();
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let (mut imports, mut aliases) = (BTreeSet::new(), BTreeMap::new());
    for declaration in code.split(['\n', ';']).filter(|line| is_use(line)).map(str::as_ptr) {
        let start = declaration as usize - code.as_ptr() as usize;
        let rest = &code[start..];
        let rest = &rest[rest.find("use ").unwrap() + 4..];
        for path in flat(rest.split(';').next().unwrap_or_default()) {
            let (path, name) = match path.split_once(" as ") {
                Some((path, name)) => (path.to_owned(), Some(name.trim().to_owned())),
                None => (path, None),
            };
            if let Some(whole) = whole(module, &path, &code) {
                let name = name.or_else(|| whole.last().cloned()).unwrap_or_default();
                imports.insert(whole.clone());
                aliases.insert(name, whole);
            }
        }
    }
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let is_inner = code[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
        let end = code[at..].find(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).unwrap_or(code.len() - at);
        if !is_inner && let Some(whole) = whole(module, code[at..at + end].trim_end_matches(':'), &code) {
            imports.insert(whole);
        }
    }
    (imports, aliases)
}

fn is_use(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        let rest = rest.trim_start();
        rest.strip_prefix('(').and_then(|inner| inner.split_once(')')).map_or(rest, |(_, rest)| rest).trim_start()
    });
    line.starts_with("use ")
}

/// The paths of a `use`, one for each name.
fn flat(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, inner)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    // A text within a string may look like a declaration.
    let Some((inner, _)) = inner.rsplit_once('}') else { return Vec::new() };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[start..at].trim();
                start = at + 1;
                found.extend(flat(part).into_iter().filter(|part| !part.is_empty()).map(|part| match part.as_str() {
                    "self" => head.trim_end_matches("::").to_owned(),
                    _ => format!("{head}{part}"),
                }));
            }
            _ => {}
        }
    }
    found
}

/// A path from the crate's root on; none for one of another crate.
fn whole(module: &[String], path: &str, code: &str) -> Option<Vec<String>> {
    let mut parts = path.split("::").map(|part| part.trim().to_owned()).peekable();
    let mut base = match parts.peek()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        // A child of this module.
        child
            if ["mod", "pub mod", "pub(crate) mod", "pub(super) mod"]
                .iter()
                .any(|word| code.contains(&format!("{word} {child};"))) =>
        {
            module.to_vec()
        }
        _ => return None,
    };
    while let Some(part) = parts.next_if(|part| ["crate", "self", "super"].contains(&part.as_str())) {
        if part == "super" {
            base.pop();
        }
    }
    base.extend(parts.filter(|part| part != "*"));
    Some(base)
}

#[test]
fn no_import_runs_upward() {
    for (folder, within, layers) in LAYERS {
        let found = Crate::read(&root().join(folder)).upward(within, layers);
        assert!(found.is_empty(), "{folder}: {found:#?}");
    }
}

#[test]
fn an_import_that_runs_upward_is_found() {
    let layers: &[&[&str]] = &[&["layers"], &["backend", "memory"], &["spec"]];
    let found = |texts: &[(&str, &str)]| Crate::of(texts).upward("nn", layers);
    let good = [
        ("lib.rs", "pub mod nn;\nmod error;"),
        ("error.rs", ""),
        ("nn/mod.rs", "mod layers;\nmod spec;\npub use layers::Linear;"),
        ("nn/layers/mod.rs", "mod linear;\npub use linear::Linear;"),
        ("nn/layers/linear.rs", "use super::super::{backend::Ops, spec::Shape};\nuse crate::error::Error;"),
        ("nn/backend/mod.rs", "mod cpu;\nuse crate::nn::spec::Shape;"),
        (
            "nn/backend/cpu.rs",
            "use super::Backend;\n#[cfg(test)]\nmod tests {\n    use crate::nn::layers::Linear;\n}\n",
        ),
        ("nn/memory.rs", ""),
        ("nn/spec.rs", ""),
    ];
    assert_eq!(found(&good), [""; 0]);
    for (file, text, expect) in [
        ("nn/spec.rs", "use super::layers::linear::Linear;", "nn::spec imports from nn::layers::linear"),
        ("nn/spec.rs", "#[cfg(test)]\nmod tests;\nuse super::Linear;", "nn::spec imports from nn::layers::linear"),
        ("nn/memory.rs", "fn f() { crate::nn::backend::run(); }", "nn::memory imports from nn::backend"),
        ("nn/cache.rs", "", "no layer lists the module 'cache'"),
    ] {
        let planted: Vec<_> = good.iter().copied().filter(|(path, _)| *path != file).chain([(file, text)]).collect();
        assert_eq!(found(&planted), [expect], "{text}");
    }
}

#[test]
fn no_files_import_in_a_circle() {
    let crates: BTreeSet<&str> =
        LAYERS.iter().map(|(folder, _, _)| *folder).chain(["plugin-api", "sdk/error"]).collect();
    let circles: Vec<String> =
        crates.into_iter().flat_map(|folder| Crate::read(&root().join(folder)).circles()).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn a_circle_is_found() {
    let circles = Crate::of(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "#[cfg(test)]\nmod tests;\nuse super::c::C;"),
        ("c.rs", "use super::a::A;"),
    ]);
    assert_eq!(circles.circles(), ["a.rs -> b.rs", "b.rs -> c.rs", "c.rs -> a.rs"]);
}

#[test]
fn reads_imports_of_every_form() {
    let module = ["a".to_owned(), "b".to_owned()];
    let text = "mod c;\npub use c::D;\nuse super::{e::{F, G as H}, self as up};\nuse std::fmt;\nfn f() { crate::i::j(); }\n\
                // use crate::not::This;\n#[cfg(test)]\nmod tests { use crate::nor::That; }\n";
    let (imports, aliases) = imports(&module, text);
    let written: Vec<String> = imports.iter().map(|path| path.join("::")).collect();
    assert_eq!(written, ["a", "a::b::c::D", "a::e::F", "a::e::G", "i::j"]);
    assert_eq!(aliases["H"], ["a", "e", "G"]);
    assert_eq!(aliases["D"], ["a", "b", "c", "D"]);
}
