//! `pensieve new`: a plugin of one's own, as a Cargo project that builds and passes its tests as it is written.
//!
//! The projects are files beside this one, with a few words to fill in; nothing else is generated, so that what an author
//! begins with can be read here. The author's name stands in texts and comments alone, never where it could be taken for
//! another type or module. The SDK is on no registry yet: a project names it by a path or by a repository's address.

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
/// Names that Cargo or Rust refuse, or that mean something else to them.
const RESERVED: &str = "abstract alloc as async await become box break build const continue core crate deps do dyn else \
    enum examples extern false final fn for gen if impl in incremental let loop macro main match mod move mut override \
    pensieve pensieve-plugin-api priv proc-macro pub ref return self static std struct super test trait \
    true try type typeof union unsafe unsized use virtual where while yield";

/// Plugins, samplers and formats of adapters that come with this program.
const SHIPPED: &str = "bias dry gemma gguf glm gpt-oss granite greedy llama lora min-p mirostat mistral olmo peft penalties phi \
    qwen samplers seeded temperature top-k top-p typical xtc zoo";

/// Write a plugin of your own: a Cargo project that builds and passes its tests.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve new architecture my-model
  pensieve new sampler my-sampler --path ~/src/my-sampler
  pensieve new adapter my-adapter --sdk https://example.org/pensieve.git

docs/writing-a-plugin.md goes on from there.")]
pub(super) struct New {
    /// What the plugin provides.
    #[arg(value_enum)]
    kind: Kind,
    /// Its name: small letters, digits and hyphens.
    name: String,
    /// The folder to write [default: the name].
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Where the SDK is: a folder with its source, or the address of a Git repository [default: the source that this
    /// program was built from].
    #[arg(long, value_name = "PATH|URL")]
    sdk: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A model family.
    Architecture,
    /// A stage that picks tokens.
    Sampler,
    /// A way of writing adapters to files.
    Adapter,
}

/// A file of a project, and the text before it is filled in.
type Template = (&'static str, &'static str);

const COMMON: [Template; 1] = [(".gitignore", "/target\n")];
const ARCHITECTURE: [Template; 3] = [
    ("Cargo.toml", include_str!("new/architecture/cargo.txt")),
    ("README.md", include_str!("new/architecture/readme.txt")),
    ("src/lib.rs", include_str!("new/architecture/lib.txt")),
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

impl New {
    pub(super) fn run(self) -> CliResult {
        let name = Name::parse(&self.name)?;
        let sdk = match &self.sdk {
            Some(given) => sdk_of(given)?,
            None => own_sdk()?,
        };
        let home = std::path::absolute(config::home()).map_err(|error| CliError::system("PENSIEVE_HOME", &error))?;
        let folder = self.path.clone().unwrap_or_else(|| PathBuf::from(&self.name));
        make_empty(&folder)?;
        let templates = match self.kind {
            Kind::Architecture => ARCHITECTURE,
            Kind::Sampler => SAMPLER,
            Kind::Adapter => ADAPTER,
        };
        for (file, template) in COMMON.iter().chain(&templates) {
            let path = folder.join(file);
            let written = path.parent().map_or(Ok(()), fs::create_dir_all);
            let written = written.and_then(|()| fs::write(&path, fill(template, &name, &sdk)));
            written.map_err(|error| {
                CliError::system(format_args!("'{}' cannot be written", Outside::path(&path)), &error)
            })?;
        }
        let mut text = next_steps(self.kind, &name, &folder, &home.join("plugins"));
        if name.kebab != self.name {
            let (given, kebab) = (&self.name, &name.kebab);
            text += &format!("\n\nIt is called '{kebab}', as packages are spelled with hyphens, not '{given}'.");
        }
        super::terminal::say(&text)
    }
}

/// What a plugin is called, in the spellings that its files need.
struct Name {
    /// `my-model`: the package and the plugin.
    kebab: String,
    /// `my_model`: the library's file, and what it provides.
    snake: String,
    /// `MyModel`: what classes of checkpoints begin with.
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
            let help = "take small letters, digits and single hyphens, beginning with a letter: my-model";
            return wrong("cannot be a plugin's", help);
        }
        if kebab.len() > NAME_LEN_MAX {
            return wrong(&format!("has {} letters, more than {NAME_LEN_MAX}", kebab.len()), "take a shorter one");
        }
        let other = format!("take another, such as my-{kebab}");
        if RESERVED.split_whitespace().any(|word| word == kebab) {
            return wrong("means something to Rust or to Cargo already", &other);
        }
        if SHIPPED.split_whitespace().any(|word| word == kebab) {
            return wrong(
                "is that of something that comes with this program, which it would stand in the way of",
                &other,
            );
        }
        if dependencies().any(|package| package.replace('_', "-") == kebab) {
            return wrong("is that of a package which these projects depend on", &other);
        }
        let camel = parts.iter().map(|part| part[..1].to_uppercase() + &part[1..]).collect();
        let snake = parts.join("_");
        Ok(Self { kebab, snake, camel })
    }
}

/// The packages that the projects depend on: no project can be called like one.
fn dependencies() -> impl Iterator<Item = &'static str> {
    let manifests = [ARCHITECTURE, SAMPLER, ADAPTER].map(|[(_, manifest), ..]| manifest);
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

/// The SDK that `--sdk` names, as the value of a dependency in a `Cargo.toml`.
fn sdk_of(given: &str) -> Result<String, CliError> {
    if given.contains("://") {
        return Ok(format!("git = {}", quoted(given)?));
    }
    if given.starts_with("git@") {
        let help = "Cargo wants it as an address: ssh://git@HOST/PATH";
        return Err(CliError::new(Exit::Usage, format!("--sdk {given}: {help}")));
    }
    let asked = Path::new(given);
    let found = [asked.to_path_buf(), asked.join("sdk")].into_iter().find(|folder| is_sdk(folder));
    let Some(found) = found else {
        let help = "name the folder 'sdk' of Pensieve's source, or the address of its Git repository";
        return Err(CliError::new(Exit::Absent, format!("--sdk {given}: the SDK is not there; {help}")));
    };
    let absolute = found.canonicalize().map_err(|error| CliError::system(Outside::path(&found), &error))?;
    by_path(&absolute)
}

/// The SDK that this program was built with, if its source is still there.
fn own_sdk() -> Result<String, CliError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("sdk");
    if !is_sdk(&source) {
        let line = "the source that this program was built from is not here, and the SDK is on no registry; tell where \
                    it is by --sdk: the folder 'sdk' of Pensieve's source, or the address of its Git repository";
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

/// The text as a TOML string.
fn quoted(text: &str) -> Result<String, CliError> {
    if text.chars().any(char::is_control) {
        return Err(CliError::new(Exit::Usage, format!("'{}' has control characters", Outside::new(text))));
    }
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// Makes the folder, or takes it if nothing is in it.
fn make_empty(folder: &Path) -> CliResult {
    let shown = Outside::path(&folder);
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let line = format!("'{shown}' is not empty; name another folder by --path");
            Err(CliError::new(Exit::Usage, line))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir_all(folder)
            .map_err(|error| CliError::system(format_args!("'{shown}' cannot be made"), &error)),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(CliError::new(Exit::Usage, format!("'{shown}' is a file; name a folder by --path")))
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
    let (what, tries) = match kind {
        Kind::Architecture => ("the architecture", "the contract's laws on random weights"),
        Kind::Sampler => ("the sampler", "what it does to candidates"),
        Kind::Adapter => ("the adapter format", "what it reads and what it refuses"),
    };
    format!(
        "{what} '{kebab}' is in {folder}

  cd {folder}
  cargo test                  {tries}
  cargo build --release
  pensieve plugins check target/release/lib{snake}{suffix}
  mkdir -p {plugins} && cp target/release/lib{snake}{suffix} {plugins}/

A server that runs sees it at once. README.md goes on from there."
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn spells_a_name_as_files_need_it() {
        let name = Name::parse("my-2nd_model").ok().unwrap();
        assert_eq!([name.kebab, name.snake, name.camel], ["my-2nd-model", "my_2nd_model", "My2ndModel"]);
    }

    #[test]
    fn refuses_names_that_rust_cargo_or_a_path_would_take_otherwise() {
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
        for name in ["pensieve-sdk", "pensieve_sdk", "serde", "serde-json", "serde_json", "sha2", "tempfile"] {
            let error = Name::parse(name).err().unwrap_or_else(|| panic!("'{name}' is taken"));
            assert!(error.exit == Exit::Usage && error.lines[0].contains("depend on"), "{error:?}");
        }
    }

    #[test]
    fn a_name_is_never_code_so_that_it_cannot_be_taken_for_a_type_or_a_module() {
        for (file, template) in ARCHITECTURE.iter().chain(&SAMPLER).chain(&ADAPTER) {
            for line in template.lines().filter(|line| file.ends_with(".rs") && !line.trim_start().starts_with("//")) {
                let code: String = line.split('"').step_by(2).collect();
                assert!(!code.contains('@'), "{line}");
            }
        }
    }

    #[test]
    fn names_the_sdk_as_cargo_reads_it() {
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
    fn leaves_no_word_to_fill_in() {
        let name = Name::parse("my-model").ok().unwrap();
        for (file, template) in COMMON.iter().chain(&ARCHITECTURE).chain(&SAMPLER).chain(&ADAPTER) {
            let text = fill(template, &name, "path = \"x\"");
            assert!(!text.contains('@') || file.ends_with(".md"), "{file}: {text}");
            for mark in ["@kebab@", "@snake@", "@Camel@", "@sdk@"] {
                assert!(!text.contains(mark), "{file}: {text}");
            }
        }
    }
}
