//! Finds and reads the configuration file, and warns if other users can read a key in it.

use std::{
    env,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{Config, ConfigError};
use pensieve_protocol::outside::Outside;

const FILE_BYTES_MAX: u64 = 4 << 20;
const OTHERS_READ: u32 = 0o044;

#[derive(Clone, Debug)]
pub struct LoadedFile {
    pub config: Config,
    /// `None` when no file was found and defaults apply.
    pub file: Option<PathBuf>,
    /// Messages for the user that do not keep the program from starting.
    pub warnings: Vec<String>,
}

/// The program's data folder: `PENSIEVE_HOME`, or `.pensieve` in the user's home.
pub fn home() -> PathBuf {
    let from_env = env::var_os("PENSIEVE_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    // Without a home the current folder is the only one that certainly belongs to the user.
    from_env.unwrap_or_else(|| user_home().unwrap_or_default().join(".pensieve"))
}

pub(super) fn user_home() -> Option<PathBuf> {
    env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// The files that [`find`] looks for, in its order.
pub fn candidates(named: Option<&Path>, home: &Path) -> Vec<PathBuf> {
    let usual = || vec![PathBuf::from("pensieve.toml"), home.join("pensieve.toml")];
    named.map_or_else(usual, |file| vec![file.to_path_buf()])
}

/// Reads the given file, else `./pensieve.toml`, else the one in the home; without a file everything has its default.
pub fn find(named: Option<&Path>, home: &Path) -> Result<LoadedFile, ConfigError> {
    let mut files = candidates(named, home).into_iter();
    let Some(file) = files.find(|path| named.is_some() || path.is_file()) else {
        return Ok(LoadedFile { config: Config::new(home), file: None, warnings: Vec::new() });
    };
    let unreadable = |what: String| {
        let line = format!("the configuration '{}' cannot be read: {what}; check the path", Outside::path(&file));
        ConfigError { lines: vec![line] }
    };
    let metadata = file.metadata().map_err(|error| unreadable(error.to_string()))?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(unreadable(format!("it has {} bytes", metadata.len())));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| unreadable(error.to_string()))?;
    let config = Config::read(&text, &file, home)?;
    let mut warnings = Vec::new();
    if !config.server.keys.is_empty() && metadata.mode() & OTHERS_READ != 0 {
        let path = Outside::path(&file);
        warnings.push(format!("'{path}' holds a key, and other users may read it; run: chmod go-rwx '{path}'"));
    }
    Ok(LoadedFile { config, file: Some(file), warnings })
}
