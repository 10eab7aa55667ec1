//! Secret keys of publishers and of indexes.

use std::{env, fs, path::Path};

use crate::cli::error::CliError;
use pensieve_packages::SecretKey;

/// The password of a secret key that minisign wrote.
const PASSWORD: &str = "PENSIEVE_KEY_PASSWORD";

/// Reads a secret key, with the password of the environment if there is one.
pub(super) fn read_key(path: &Path) -> Result<SecretKey, CliError> {
    let text = fs::read_to_string(path).map_err(|error| CliError::system(format!("'{}'", path.display()), &error))?;
    let password = env::var(PASSWORD).ok();
    let key = SecretKey::parse(&text, password.as_deref());
    Ok(key.map_err(|error| match password {
        Some(_) => error,
        None => error.help(format!("if it has a password, set {PASSWORD}")),
    })?)
}
