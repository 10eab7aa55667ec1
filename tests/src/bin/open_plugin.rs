//! Opens one plugin and prints the result, as `pensieve plugins check` does. Damaged libraries are opened here, where a
//! crash in the dynamic loader ends only this process.

use pensieve_worker::plugin::LoadedPlugin;
use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: open_plugin FILE");
        return ExitCode::from(2);
    };
    match LoadedPlugin::open(Path::new(&path)) {
        Ok(plugin) => {
            println!("{}", plugin.manifest().id);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
