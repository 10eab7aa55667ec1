//! Why a plugin did not load. The reader installed a file and wants to know whether to fetch it again, rebuild it, or tell
//! its author; each reason is a variant, so that callers and tests can tell them apart without reading the text.

use pensieve_plugin_api::CONTRACT;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// A library that did not become a plugin.
#[derive(Debug)]
pub struct LoadError {
    /// The library.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with a library.
#[derive(Debug)]
pub enum Reason {
    /// There is no such file.
    NotFound,
    /// The operating system would not read it.
    Unreadable(io::Error),
    /// It ends before its headers say that it does.
    Truncated {
        /// The bytes that its headers speak of.
        needed: u64,
        /// The bytes that are there.
        length: u64,
    },
    /// Its headers contradict themselves.
    Damaged(String),
    /// It is no shared library.
    NotALibrary(String),
    /// It was built for another operating system or processor.
    OtherPlatform {
        /// What it was built for.
        found: String,
        /// What this host runs on.
        host: String,
    },
    /// A shared library that is not a plugin: it lacks the symbol that every plugin exports.
    MissingSymbol,
    /// The system's loader refused it: a library or symbol that it needs is missing.
    Refused(String),
    /// Its abi_stable is not this host's.
    OtherAbi {
        /// What it was built with.
        found: String,
        /// What this host was built with.
        host: String,
    },
    /// It speaks another major version of the contract.
    OtherContract(String),
    /// It does not say what its types look like, so that nothing could be checked.
    NoLayout,
    /// It says that it speaks this contract, but its types differ from the contract's.
    OtherLayout(String),
    /// It would not start: its own error, or its panic's message.
    Failed(String),
    /// What it says of itself breaks the rules.
    BadManifest(String),
}

impl LoadError {
    pub(super) fn new(path: &Path, reason: Reason) -> Self {
        Self { path: path.to_path_buf(), reason }
    }

    /// What to do about it.
    pub fn help(&self) -> String {
        let major = CONTRACT.major;
        match &self.reason {
            Reason::NotFound => "check the path, or build the plugin first".into(),
            Reason::Unreadable(_) => "check that it is a file that this user may read".into(),
            Reason::Truncated { .. } | Reason::Damaged(_) => "copy or download it again".into(),
            Reason::NotALibrary(_) => format!("a plugin is a {} file", std::env::consts::DLL_SUFFIX),
            Reason::OtherPlatform { .. } => "get the plugin's build for this machine, or build it here".into(),
            Reason::MissingSymbol => {
                "export a plugin with pensieve_sdk::export!, or move the file out of the folder".into()
            }
            Reason::Refused(_) => "install what it needs, or rebuild it on this machine".into(),
            Reason::OtherAbi { .. } | Reason::OtherContract(_) => format!("rebuild it with sdk {major}.x"),
            Reason::NoLayout => "rebuild it with pensieve_sdk::export!".into(),
            Reason::OtherLayout(_) => {
                format!("rebuild it with an unmodified pensieve-plugin-api {CONTRACT}")
            }
            Reason::Failed(_) => "update the plugin, or move the file out of the folder".into(),
            Reason::BadManifest(_) => "this is a defect of the plugin; tell its author".into(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.reason {
            Reason::NotFound | Reason::Unreadable(_) => self.path.as_os_str(),
            _ => self.path.file_name().unwrap_or(self.path.as_os_str()),
        };
        write!(f, "plugin '{}' ", name.display())?;
        match &self.reason {
            Reason::NotFound => write!(f, "was not found"),
            Reason::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Reason::Truncated { needed, length } => {
                write!(f, "is truncated: its headers speak of {needed} bytes, the file has {length}")
            }
            Reason::Damaged(what) => write!(f, "is damaged: {what}"),
            Reason::NotALibrary(what) => write!(f, "is not a shared library: {what}"),
            Reason::OtherPlatform { found, host } => write!(f, "was built for {found}, this host runs on {host}"),
            Reason::MissingSymbol => write!(f, "is a shared library, but not a Pensieve plugin"),
            Reason::Refused(why) => write!(f, "was refused by the system: {why}"),
            Reason::OtherAbi { found, host } => {
                write!(f, "was built with abi_stable {found}, this host with abi_stable {host}")
            }
            Reason::OtherContract(found) => write!(f, "speaks contract {found}, this host speaks {CONTRACT}"),
            Reason::NoLayout => write!(f, "does not say what its types look like, so they cannot be checked"),
            Reason::OtherLayout(difference) => {
                write!(f, "says that it speaks contract {CONTRACT}, but its types differ: {difference}")
            }
            Reason::Failed(why) => write!(f, "failed to start: {why}"),
            Reason::BadManifest(what) => write!(f, "introduces itself wrongly: {what}"),
        }?;
        write!(f, "; {}", self.help())
    }
}

impl std::error::Error for LoadError {}
