//! Environment variables that override keys of the file, for containers and service managers. Flags override them in
//! turn.

use std::{env, path::PathBuf};

use super::{
    Config, ConfigError,
    server::{KEY_HELP, LISTEN_HELP, LOG_HELP, check_log, is_key, listen_address},
    units::Amount,
};

/// An environment variable that sets a key.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

pub const VARIABLES: [Variable; 9] = [
    Variable { name: "PENSIEVE_CONFIG", meaning: "the configuration file, as --config", set: |_, _| Ok(()) },
    Variable {
        name: "PENSIEVE_HOME",
        meaning: "plugins, caches and models; ~/.pensieve unless set",
        set: |_, _| Ok(()),
    },
    Variable {
        name: "PENSIEVE_LISTEN",
        meaning: "address and port, as --listen; several separated by commas",
        set: |config, text| {
            let listen = text.split(',').map(|address| listen_address(address.trim()));
            config.server.listen = listen.collect::<Result<_, _>>().map_err(|what| format!("{what}; {LISTEN_HELP}"))?;
            Ok(())
        },
    },
    Variable {
        name: "PENSIEVE_API_KEY",
        meaning: "the server's key",
        set: |config, text| {
            if !is_key(text) {
                return Err(KEY_HELP.into());
            }
            config.server.keys = vec![text.to_owned()];
            Ok(())
        },
    },
    Variable {
        name: "PENSIEVE_PLUGINS",
        meaning: "plugin folders separated by colons, as --plugins",
        set: |config, text| {
            config.plugins.folders = env::split_paths(text).filter(|path| *path != PathBuf::new()).collect();
            Ok(())
        },
    },
    Variable {
        name: "PENSIEVE_DEVICE",
        meaning: "the device of all models, as --device",
        set: |config, text| {
            super::models::check_device(text)?;
            config.models.iter_mut().for_each(|model| text.clone_into(&mut model.spec.device));
            Ok(())
        },
    },
    Variable {
        name: "PENSIEVE_MEMORY",
        meaning: "memory for all models together, such as 12GiB",
        set: |config, text| {
            let bytes = u64::parse(text).filter(|bytes| *bytes >= 64 << 20);
            config.fleet.memory = Some(bytes.ok_or("it takes bytes such as 12GiB, at least 64 MiB")?);
            Ok(())
        },
    },
    Variable {
        name: "PENSIEVE_CACHE",
        meaning: "disk space for each model's prompt cache, such as 4GiB; 0 for none",
        set: |config, text| {
            config.cache.budget = u64::parse(text).ok_or("it takes bytes such as 4GiB")?;
            Ok(())
        },
    },
    Variable {
        name: "PENSIEVE_LOG",
        meaning: "log level: error, warn, info, debug, trace",
        set: |config, text| {
            check_log(text).map_err(|what| format!("{what}; {LOG_HELP}"))?;
            config.server.log = text.to_owned();
            Ok(())
        },
    },
];

/// Applies the variables that `look_up` finds. The models must have been read before, as PENSIEVE_DEVICE changes them.
pub fn apply(config: &mut Config, look_up: impl Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
    let mut lines = Vec::new();
    for variable in VARIABLES {
        if let Some(text) = look_up(variable.name).filter(|text| !text.is_empty())
            && let Err(what) = (variable.set)(config, &text)
        {
            // Keys never appear in messages, not even malformed ones.
            let shown = if variable.name == "PENSIEVE_API_KEY" { String::new() } else { format!(" '{text}'") };
            lines.push(format!("the variable {}{shown} is wrong: {what}", variable.name));
        }
    }
    if lines.is_empty() { Ok(()) } else { Err(ConfigError { lines }) }
}
