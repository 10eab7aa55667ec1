//! `pensieve new`: scaffolds a plugin as a Cargo project that builds and passes its tests unchanged.
//!
//! The templates are files in `new/` with a few placeholders; nothing else is generated. The plugin's name is filled
//! into strings and comments only, never into code, where it could clash with a type or module. The SDK is not on a
//! registry yet: projects depend on it by path or by the URL of a repository.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};

use super::{
    error::{CliError, CliResult, Exit},
    shell_integration::word,
};
use crate::config;
use pensieve_protocol::outside::Outside;

const NAME_LEN_MAX: usize = 40;
/// Names that Cargo or Rust refuse or give another meaning.
const RESERVED: &str = "abstract alloc as async await become box break build const continue core crate deps do dyn else \
    enum examples extern false final fn for gen if impl in incremental let loop macro main match mod move mut override \
    pensieve pensieve-plugin-api priv proc-macro pub ref return self static std struct super test trait \
    true try type typeof union unsafe unsized use virtual where while yield";

/// Plugins, architectures, samplers and adapter formats shipped with this program.
const SHIPPED: &str = "bert bias cohere cohere2 deepseek dry embedding-gemma ernie exaone exaone4 falcon falcon-h1 \
    gemma gemma4 gguf glm glm4 gpt-oss granite granite-hybrid greedy jamba kimi-linear lfm2 llama lora mamba mamba2 \
    min-p minimax minimax-m2 mirostat mistral mixtral modern-bert nemotron nemotron-h nomic-bert olmo olmo2 olmoe \
    peft penalties phi phi3 phimoe qwen qwen-next rwkv rwkv7 samplers seeded stablelm starcoder2 temperature top-k \
    top-p typical xtc zoo";

/// Create a plugin of your own: a Cargo project that builds and passes its tests.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve new architecture my-model
  pensieve new vision my-model
  pensieve new encoder my-model
  pensieve new sampler my-sampler --path ~/src/my-sampler
  pensieve new architecture my-engine --in-c
  pensieve new adapter my-adapter --sdk https://example.org/pensieve.git

docs/writing-a-plugin.md has the next steps.")]
pub(super) struct New {
    /// The kind of plugin.
    #[arg(value_enum)]
    kind: Kind,
    /// The plugin's name: lowercase letters, digits and hyphens.
    name: String,
    /// The folder to create [default: the name].
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The SDK to depend on: a folder with its source, or the URL of a Git repository [default: the source that this
    /// program was built from].
    #[arg(long, value_name = "PATH|URL")]
    sdk: Option<String>,
    /// An architecture around an engine in C, which loads its own weights and keeps its own sequences, instead of the
    /// SDK's layers.
    #[arg(long)]
    in_c: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A model family.
    Architecture,
    /// A model family that reads images.
    Vision,
    /// A model family that makes vectors or scores of texts, as BERT does.
    Encoder,
    /// A stage of the sampling chain.
    Sampler,
    /// A file format for adapters.
    Adapter,
}

/// A file's path in the project, and its text with placeholders.
type Template = (&'static str, &'static str);

const COMMON: [Template; 2] =
    [(".gitignore", "/target\n"), (".github/workflows/plugin.yml", include_str!("new/common/plugin.yml"))];
const ARCHITECTURE: [Template; 3] = [
    ("Cargo.toml", include_str!("new/architecture/cargo.txt")),
    ("README.md", include_str!("new/architecture/readme.txt")),
    ("src/lib.rs", include_str!("new/architecture/lib.txt")),
];
const VISION: [Template; 4] = [
    ("Cargo.toml", include_str!("new/vision/cargo.txt")),
    ("README.md", include_str!("new/vision/readme.txt")),
    ("src/lib.rs", include_str!("new/vision/lib.txt")),
    ("src/vision.rs", include_str!("new/vision/vision.txt")),
];
const ENCODER: [Template; 3] = [
    ("Cargo.toml", include_str!("new/architecture/cargo.txt")),
    ("README.md", include_str!("new/encoder/readme.txt")),
    ("src/lib.rs", include_str!("new/encoder/lib.txt")),
];
const SAMPLER: [Template; 3] = [
    ("Cargo.toml", include_str!("new/sampler/cargo.txt")),
    ("README.md", include_str!("new/sampler/readme.txt")),
    ("src/lib.rs", include_str!("new/sampler/lib.txt")),
];
const ADAPTER: [Template; 3] = [
    ("Cargo.toml", include_str!("new/adapter/cargo.txt")),
    ("README.md", include_str!("new/adapter/readme.txt")),
    ("src/lib.rs", include_str!("new/adapter/lib.txt")),
];
/// The example itself: its own names stand for the placeholders.
const IN_C: [Template; 9] = [
    ("Cargo.toml", include_str!("../../../examples/c-engine/Cargo.toml")),
    ("README.md", include_str!("../../../examples/c-engine/README.md")),
    ("build.rs", include_str!("../../../examples/c-engine/build.rs")),
    ("make.py", include_str!("../../../examples/c-engine/make.py")),
    ("src/engine.c", include_str!("../../../examples/c-engine/src/engine.c")),
    ("src/engine.h", include_str!("../../../examples/c-engine/src/engine.h")),
    ("src/engine.rs", include_str!("../../../examples/c-engine/src/engine.rs")),
    ("src/lib.rs", include_str!("../../../examples/c-engine/src/lib.rs")),
    ("src/tests.rs", include_str!("../../../examples/c-engine/src/tests.rs")),
];
const IN_C_NAMES: [(&str, &str); 5] = [
    ("license = \"MIT OR Apache-2.0\"\n", ""),
    ("c-engine", "@kebab@"),
    ("c_engine", "@snake@"),
    ("CGruForCausalLM", "@Camel@ForCausalLM"),
    ("path = \"../../sdk\"", "@sdk@"),
];

impl New {
    pub(super) fn run(self) -> CliResult {
        let name = Name::parse(&self.name)?;
        let templates = self.kind.templates(self.in_c)?;
        let sdk = match &self.sdk {
            Some(path_or_url) => sdk_of(path_or_url)?,
            None => own_sdk()?,
        };
        let home = std::path::absolute(config::home()).map_err(|error| CliError::system("PENSIEVE_HOME", &error))?;
        let folder = self.path.clone().unwrap_or_else(|| PathBuf::from(&self.name));
        make_empty(&folder)?;
        for (file, template) in COMMON.into_iter().map(|(file, text)| (file, text.to_owned())).chain(templates) {
            let path = folder.join(file);
            let written = path.parent().map_or(Ok(()), fs::create_dir_all);
            let written = written.and_then(|()| fs::write(&path, fill(&template, &name, &sdk)));
            written.map_err(|error| {
                CliError::system(format_args!("'{}' cannot be written", Outside::path(&path)), &error)
            })?;
        }
        let mut text = next_steps(self.kind, &name, &folder, &home.join("plugins"));
        if name.kebab != self.name {
            let (requested, kebab) = (&self.name, &name.kebab);
            text +=
                &format!("\n\nThe package is called '{kebab}' instead of '{requested}', as package names use hyphens.");
        }
        super::terminal::say(&text)
    }
}

impl Kind {
    fn templates(self, in_c: bool) -> Result<Vec<(&'static str, String)>, CliError> {
        let own = |templates: &[Template]| templates.iter().map(|(file, text)| (*file, (*text).to_owned())).collect();
        match (self, in_c) {
            (Self::Architecture, false) => Ok(own(&ARCHITECTURE)),
            (Self::Vision, false) => Ok(own(&VISION)),
            (Self::Encoder, false) => Ok(own(&ENCODER)),
            (Self::Architecture, true) => Ok(IN_C.map(|(file, text)| (file, with_placeholders(text))).to_vec()),
            (Self::Sampler, false) => Ok(own(&SAMPLER)),
            (Self::Adapter, false) => Ok(own(&ADAPTER)),
            (_, true) => {
                let line = "--in-c is for architectures: pensieve new architecture NAME --in-c";
                Err(CliError::new(Exit::Usage, line.to_owned()))
            }
        }
    }
}

fn with_placeholders(text: &str) -> String {
    IN_C_NAMES.iter().fold(text.to_owned(), |text, (own, mark)| text.replace(own, mark))
}

/// The plugin's name in the spellings that its files need.
struct Name {
    /// `my-model`: the package and the plugin.
    kebab: String,
    /// `my_model`: the library's file, and the provider in it.
    snake: String,
    /// `MyModel`: prefix of the checkpoints' class names.
    camel: String,
}

impl Name {
    fn parse(text: &str) -> Result<Self, CliError> {
        let wrong = |what: &str, help: &str| {
            Err(CliError::new(Exit::Usage, format!("the name '{}' {what}; {help}", Outside::new(text))))
        };
        let kebab = text.replace('_', "-");
        let parts: Vec<&str> = kebab.split('-').collect();
        let is_plain = |part: &&str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        if !parts.iter().all(is_plain) || !kebab.starts_with(|first: char| first.is_ascii_lowercase()) {
            let help = "use lowercase letters, digits and single hyphens, starting with a letter: my-model";
            return wrong("cannot be a plugin's name", help);
        }
        if kebab.len() > NAME_LEN_MAX {
            return wrong(&format!("has {} letters, more than {NAME_LEN_MAX}", kebab.len()), "take a shorter one");
        }
        let other = format!("take another, such as my-{kebab}");
        if RESERVED.split_whitespace().any(|word| word == kebab) {
            return wrong("is reserved by Rust or Cargo", &other);
        }
        if SHIPPED.split_whitespace().any(|word| word == kebab) {
            return wrong("is taken by something that is shipped with this program", &other);
        }
        if dependencies().any(|package| package.replace('_', "-") == kebab) {
            return wrong("is taken by a package that the project would depend on", &other);
        }
        let camel = parts.iter().map(|part| part[..1].to_uppercase() + &part[1..]).collect();
        let snake = parts.join("_");
        Ok(Self { kebab, snake, camel })
    }
}

/// Packages that the templates depend on, whose names no project can have.
fn dependencies() -> impl Iterator<Item = &'static str> {
    let manifests = [ARCHITECTURE[0].1, VISION[0].1, SAMPLER[0].1, ADAPTER[0].1, IN_C[0].1];
    manifests.into_iter().flat_map(|manifest| {
        let mut listed = false;
        manifest.lines().filter_map(move |line| {
            if line.starts_with('[') {
                listed = line.ends_with("dependencies]");
            }
            line.split_once(" = ").filter(|_| listed).map(|(package, _)| package)
        })
    })
}

/// `--sdk` as the value of a dependency in a `Cargo.toml`.
fn sdk_of(path_or_url: &str) -> Result<String, CliError> {
    if path_or_url.contains("://") {
        return Ok(format!("git = {}", quoted(path_or_url)?));
    }
    if path_or_url.starts_with("git@") {
        let help = "Cargo needs a URL: ssh://git@HOST/PATH";
        return Err(CliError::new(Exit::Usage, format!("--sdk {path_or_url}: {help}")));
    }
    let path = Path::new(path_or_url);
    let folder = [path.to_path_buf(), path.join("sdk")].into_iter().find(|folder| is_sdk(folder));
    let Some(folder) = folder else {
        let help = "name the folder 'sdk' of Pensieve's source, or the URL of its Git repository";
        return Err(CliError::new(Exit::Absent, format!("--sdk {path_or_url}: there is no SDK; {help}")));
    };
    let absolute = folder.canonicalize().map_err(|error| CliError::system(Outside::path(&folder), &error))?;
    by_path(&absolute)
}

/// The SDK that this program was built with, if its source still exists.
fn own_sdk() -> Result<String, CliError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("sdk");
    if !is_sdk(&source) {
        let line = "the source that this program was built from no longer exists, and the SDK is not on a registry; name \
                    it with --sdk: the folder 'sdk' of Pensieve's source, or the URL of its Git repository";
        return Err(CliError::new(Exit::Absent, line));
    }
    by_path(&source)
}

fn by_path(folder: &Path) -> Result<String, CliError> {
    let text = folder.to_str().ok_or_else(|| {
        CliError::new(Exit::Usage, format!("'{}' is not UTF-8, which Cargo cannot read", Outside::path(&folder)))
    })?;
    Ok(format!("path = {}", quoted(text)?))
}

fn is_sdk(folder: &Path) -> bool {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    manifest.lines().any(|line| line.trim() == "name = \"pensieve-sdk\"")
}

/// Quotes the text as a TOML string.
fn quoted(text: &str) -> Result<String, CliError> {
    if text.chars().any(char::is_control) {
        return Err(CliError::new(Exit::Usage, format!("'{}' contains control characters", Outside::new(text))));
    }
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// Creates the folder, or accepts it if it is empty.
fn make_empty(folder: &Path) -> CliResult {
    let shown = Outside::path(&folder);
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let line = format!("'{shown}' is not empty; name another folder with --path");
            Err(CliError::new(Exit::Usage, line))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir_all(folder)
            .map_err(|error| CliError::system(format_args!("'{shown}' cannot be created"), &error)),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(CliError::new(Exit::Usage, format!("'{shown}' is a file; name a folder with --path")))
        }
        Err(error) => Err(CliError::system(format_args!("'{shown}' cannot be read"), &error)),
    }
}

fn fill(template: &str, name: &Name, sdk: &str) -> String {
    let words = [("@kebab@", name.kebab.as_str()), ("@snake@", &name.snake), ("@Camel@", &name.camel), ("@sdk@", sdk)];
    words.iter().fold(template.to_owned(), |text, (mark, word)| text.replace(mark, word))
}

fn next_steps(kind: Kind, name: &Name, folder: &Path, plugins: &Path) -> String {
    let (kebab, snake) = (&name.kebab, &name.snake);
    let [folder, plugins] = [folder, plugins].map(|path| word(&path.display().to_string()));
    let suffix = std::env::consts::DLL_SUFFIX;
    let (what, tests) = match kind {
        Kind::Architecture | Kind::Vision | Kind::Encoder => {
            ("the architecture", "the contract's laws on random weights")
        }
        Kind::Sampler => ("the sampler", "its effect on candidates"),
        Kind::Adapter => ("the adapter format", "files that it reads and refuses"),
    };
    format!(
        "{what} '{kebab}' is in {folder}

  cd {folder}
  cargo test                  {tests}
  cargo build --release
  pensieve plugins check target/release/lib{snake}{suffix}
  mkdir -p {plugins} && cp target/release/lib{snake}{suffix} {plugins}/

A running server picks it up at once. README.md has the next steps."
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn spells_a_name_for_packages_files_and_classes() {
        let name = Name::parse("my-2nd_model").ok().unwrap();
        assert_eq!([name.kebab, name.snake, name.camel], ["my-2nd-model", "my_2nd_model", "My2ndModel"]);
    }

    #[test]
    fn refuses_names_that_mean_something_to_rust_cargo_or_paths() {
        for name in
            ["", "-", "a--b", "a-", "2nd", "My", "a b", "../a", "a/b", "ä", "fn", "self", "test", "pensieve-sdk"]
        {
            let error = Name::parse(name).err().unwrap_or_else(|| panic!("'{name}' is taken"));
            assert!(error.exit == Exit::Usage && error.lines[0].contains(name), "{error:?}");
        }
        assert!(Name::parse(&"x".repeat(41)).is_err());
    }

    #[test]
    fn refuses_names_of_packages_that_a_project_depends_on() {
        for name in ["pensieve-sdk", "pensieve_sdk", "serde", "serde-json", "serde_json", "sha2", "tempfile", "cc"] {
            let error = Name::parse(name).err().unwrap_or_else(|| panic!("'{name}' is taken"));
            assert!(error.exit == Exit::Usage && error.lines[0].contains("would depend on"), "{error:?}");
        }
    }

    #[test]
    fn templates_never_use_the_name_in_code() {
        let in_c = Kind::Architecture.templates(true).ok().unwrap();
        let in_c: Vec<(&str, &str)> = in_c.iter().map(|(file, text)| (*file, text.as_str())).collect();
        for (file, template) in ARCHITECTURE.iter().chain(&ENCODER).chain(&SAMPLER).chain(&ADAPTER).chain(&in_c) {
            for line in template.lines().filter(|line| file.ends_with(".rs") && !line.trim_start().starts_with("//")) {
                let code: String = line.split('"').step_by(2).collect();
                assert!(!code.contains('@'), "{line}");
            }
        }
    }

    #[test]
    fn names_the_sdk_as_a_cargo_dependency() {
        assert_eq!(sdk_of("https://example.org/p.git").ok().unwrap(), "git = \"https://example.org/p.git\"");
        assert!(sdk_of("git@example.org:p").err().unwrap().lines[0].contains("ssh://"));
        assert_eq!(sdk_of("/nowhere").err().unwrap().exit, Exit::Absent);
        assert_eq!(quoted("a\\b\"c").ok().unwrap(), "\"a\\\\b\\\"c\"");
        assert!(quoted("a\nb").is_err());
        let own = own_sdk().ok().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(sdk_of(root.to_str().unwrap()).ok().unwrap(), own);
    }

    #[test]
    fn fills_every_placeholder() {
        let name = Name::parse("my-model").ok().unwrap();
        let in_c = Kind::Architecture.templates(true).ok().unwrap();
        let in_c: Vec<(&str, &str)> = in_c.iter().map(|(file, text)| (*file, text.as_str())).collect();
        for (file, template) in
            COMMON.iter().chain(&ARCHITECTURE).chain(&ENCODER).chain(&SAMPLER).chain(&ADAPTER).chain(&in_c)
        {
            let text = fill(template, &name, "path = \"x\"");
            assert!(!text.contains("c-engine") && !text.contains("c_engine"), "{file}: {text}");
            // Actions of a workflow are named with their version.
            assert!(!text.contains('@') || file.ends_with(".md") || file.ends_with(".yml"), "{file}: {text}");
            for mark in ["@kebab@", "@snake@", "@Camel@", "@sdk@"] {
                assert!(!text.contains(mark), "{file}: {text}");
            }
        }
    }
}
