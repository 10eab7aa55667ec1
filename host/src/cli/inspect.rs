//! Has a child process, behind the fence, read the manifest of a library.

use std::{ffi::OsString, path::Path, time::Duration};

use super::error::{CliError, Exit};
use pensieve_protocol::{
    manifest::Manifest,
    outside::Outside,
    questions::Checked,
    refusal::{Refusal, RefusalKind},
};
use pensieve_server::fleet::{
    child::{self, ChildError},
    fence::{hide_from_children, inspection},
};

const TIME_MAX: Duration = Duration::from_secs(20);

pub(super) fn inspect(file: &Path) -> Result<Manifest, CliError> {
    let arguments = ["plugins", "check", "--json"].map(OsString::from);
    let arguments = [&arguments[..], &["--".into(), file.into()]].concat();
    hide_from_children();
    let asked = super::runtime()?.block_on(async {
        let program = std::env::current_exe().map_err(ChildError::Spawn)?;
        child::inspect(&program, &arguments, &inspection(file), TIME_MAX).await
    });
    let name = Outside::path(file);
    match asked {
        Ok(Checked::Manifest(manifest)) => Ok(manifest),
        Ok(Checked::Refusal(refusal)) => {
            Err(CliError::new(exit_of(&refusal), format!("plugin '{name}' {}", refusal.cleaned())))
        }
        Err(error) => {
            let help = error.signature_help(file).map(|help| format!("; {help}")).unwrap_or_default();
            Err(CliError::new(Exit::Failed, format!("plugin '{name}' {error}{help}")))
        }
    }
}

/// The exit code for a library that was refused.
pub(super) fn exit_of(refusal: &Refusal) -> Exit {
    if refusal.kind == RefusalKind::NotFound { Exit::Absent } else { Exit::Failed }
}
