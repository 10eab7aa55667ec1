//! Why a plugin did not load. The message is for a user who installed a file and needs to know whether to download it
//! again, rebuild it, or tell its author. Each reason is a variant, so that callers and tests need not parse the text.

use pensieve_plugin_api::CONTRACT;
use pensieve_protocol::{outside::Outside, quarantine, refusal::RefusalKind};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// A library that did not load as a plugin.
#[derive(Debug)]
pub struct LoadError {
    pub path: PathBuf,
    pub reason: Reason,
}

#[derive(Debug)]
pub enum Reason {
    NotFound,
    /// The operating system could not read it.
    Unreadable(io::Error),
    /// macOS has marked it as downloaded.
    Quarantined(PathBuf),
    /// It ends before its headers say that it does.
    Truncated {
        /// Number of bytes that its headers refer to.
        needed: u64,
        length: u64,
    },
    /// Its headers contradict themselves.
    Damaged(String),
    NotALibrary(String),
    OtherPlatform {
        found: String,
        host: String,
    },
    /// A shared library that is not a plugin: it lacks the symbol that every plugin exports.
    MissingSymbol,
    /// The system's loader refused it: a library or symbol that it needs is missing.
    Refused(String),
    /// Built with another version of abi_stable than this host.
    OtherAbi {
        found: String,
        host: String,
    },
    /// Built for another major version of the contract.
    OtherContract(String),
    /// It has no description of its types, so that nothing could be checked.
    NoLayout,
    /// It claims this version of the contract, but its types differ from the contract's.
    OtherLayout(String),
    /// It could not be initialized: its own error, or the message of its panic.
    Failed(String),
    /// Its manifest breaks the rules.
    BadManifest(String),
}

impl LoadError {
    pub(super) fn new(path: &Path, reason: Reason) -> Self {
        Self { path: path.to_path_buf(), reason }
    }

    /// States what happened to which plugin, without the help.
    pub fn message(&self) -> String {
        let name = match self.reason {
            Reason::NotFound | Reason::Unreadable(_) => self.path.as_os_str(),
            _ => self.path.file_name().unwrap_or(self.path.as_os_str()),
        };
        format!("plugin '{}' {}", Outside::path(&name), self.reason)
    }

    pub fn help(&self) -> String {
        self.reason.help()
    }
}

impl Reason {
    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::NotFound => RefusalKind::NotFound,
            Self::Unreadable(_) => RefusalKind::Unreadable,
            Self::Quarantined(_) => RefusalKind::Quarantined,
            Self::Truncated { .. } => RefusalKind::Truncated,
            Self::Damaged(_) => RefusalKind::Damaged,
            Self::NotALibrary(_) => RefusalKind::NotALibrary,
            Self::OtherPlatform { .. } => RefusalKind::OtherPlatform,
            Self::MissingSymbol => RefusalKind::NotAPlugin,
            Self::Refused(_) => RefusalKind::RefusedBySystem,
            Self::OtherAbi { .. } => RefusalKind::OtherAbi,
            Self::OtherContract(_) => RefusalKind::OtherContract,
            Self::NoLayout | Self::OtherLayout(_) => RefusalKind::OtherLayout,
            Self::Failed(_) => RefusalKind::FailedToStart,
            Self::BadManifest(_) => RefusalKind::BadManifest,
        }
    }

    pub fn help(&self) -> String {
        let major = CONTRACT.major;
        match self {
            Self::NotFound => "check the path, or build the plugin first".into(),
            Self::Unreadable(_) => "check that it is a file that this user may read".into(),
            Self::Quarantined(path) => quarantine::help(path),
            Self::Truncated { .. } | Self::Damaged(_) => "copy or download it again".into(),
            Self::NotALibrary(_) => format!("a plugin is a {} file", std::env::consts::DLL_SUFFIX),
            Self::OtherPlatform { .. } => "get the plugin's build for this machine, or build it here".into(),
            Self::MissingSymbol => {
                "export a plugin with pensieve_sdk::export!, or move the file out of the folder".into()
            }
            Self::Refused(_) => "install what it needs, or rebuild it on this machine".into(),
            Self::OtherAbi { .. } | Self::OtherContract(_) => format!("rebuild it with sdk {major}.x"),
            Self::NoLayout => "rebuild it with pensieve_sdk::export!".into(),
            Self::OtherLayout(_) => {
                format!("rebuild it with an unmodified pensieve-plugin-api {CONTRACT}")
            }
            Self::Failed(_) => "update the plugin, or move the file out of the folder".into(),
            Self::BadManifest(_) => "this is a defect of the plugin; tell its author".into(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message(), self.help())
    }
}

/// A predicate about the library: `is truncated: …`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => write!(f, "was not found"),
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Self::Quarantined(_) => f.write_str(quarantine::REASON),
            Self::Truncated { length: 0, .. } => write!(f, "is empty"),
            Self::Truncated { needed, length } => {
                write!(f, "is truncated: its headers speak of {needed} bytes, the file has {length}")
            }
            Self::Damaged(what) => write!(f, "is damaged: {what}"),
            Self::NotALibrary(what) => write!(f, "is not a shared library: {what}"),
            Self::OtherPlatform { found, host } => write!(f, "was built for {found}, this host runs on {host}"),
            Self::MissingSymbol => write!(f, "is a shared library, but not a Pensieve plugin"),
            Self::Refused(why) => write!(f, "was refused by the system: {why}"),
            Self::OtherAbi { found, host } => {
                write!(f, "was built with abi_stable {found}, this host with abi_stable {host}")
            }
            Self::OtherContract(found) => write!(f, "speaks contract {found}, this host speaks {CONTRACT}"),
            Self::NoLayout => write!(f, "does not say what its types look like, so they cannot be checked"),
            Self::OtherLayout(difference) => {
                write!(f, "says that it speaks contract {CONTRACT}, but its types differ: {difference}")
            }
            Self::Failed(why) => write!(f, "failed to start: {why}"),
            Self::BadManifest(what) => write!(f, "introduces itself wrongly: {what}"),
        }
    }
}

impl std::error::Error for LoadError {}
