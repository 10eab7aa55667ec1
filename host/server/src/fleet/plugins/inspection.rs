//! Decides about one file: copies it, has a child look at the copy, and keeps what the child says.

use std::{ffi::OsString, path::Path, sync::Arc};

use super::{
    Settings,
    catalogue::{Known, Plugin},
    copy::{Cache, NoCopy},
    scan::Found,
};
use crate::fleet::child::{self, Silence};
use pensieve_protocol::{questions::Checked, refusal::Refusal};

/// What came of looking at a file.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is known now.
    Known(Known),
    /// It ends too early, as files do that are still being written.
    Incomplete { sha256: String, refusal: Refusal },
    /// It changed while it was looked at.
    Changed,
}

/// Looks at a file. `before` is what the same file held before; if that is what it still holds, it stays.
pub(super) async fn inspect(
    settings: Arc<Settings>,
    cache: Arc<Cache>,
    found: Found,
    before: Option<Arc<Plugin>>,
) -> Verdict {
    let (target, stamp) = (found.target.clone(), found.stamp);
    let copied = tokio::task::spawn_blocking(move || cache.take(&target, stamp)).await;
    let copy = match copied {
        Ok(Ok(copy)) => copy,
        Ok(Err(NoCopy::Changed)) => return Verdict::Changed,
        Ok(Err(NoCopy::Refused(refusal))) => return Verdict::Known(Known::Refused { sha256: None, refusal }),
        Err(error) => {
            let reason = format!("{} could not be copied: {error}", name(&found.path));
            let refusal = Refusal::new("not-inspected", reason, "tell Pensieve's authors");
            return Verdict::Known(Known::Refused { sha256: None, refusal });
        }
    };
    if let Some(before) = before.filter(|before| before.copy.sha256() == copy.sha256()) {
        return Verdict::Known(Known::Plugin(before));
    }
    let sha256 = copy.sha256().to_owned();
    if let Some(allowed) = &settings.allow
        && !allowed.iter().any(|known| known.eq_ignore_ascii_case(&sha256))
    {
        let reason = format!("{} is not among the allowed files", name(&found.path));
        let refusal = Refusal::new("not-allowed", reason, format!("add \"{sha256}\" to plugins.allow to allow it"));
        return Verdict::Known(Known::Refused { sha256: Some(sha256), refusal });
    }
    let arguments = ["plugins", "check", "--json"].map(OsString::from);
    let arguments = arguments.into_iter().chain([copy.path().into()]).collect::<Vec<_>>();
    let refusal = match child::ask(&settings.program, &arguments, settings.limits.inspection).await {
        Ok(Checked::Manifest(manifest)) => {
            let plugin = Plugin { file: found.path, manifest, copy };
            return Verdict::Known(Known::Plugin(Arc::new(plugin)));
        }
        Ok(Checked::Refusal(refusal)) => {
            let reason = format!("{} {}", name(&found.path), refusal.reason);
            Refusal { reason, ..refusal }.cleaned()
        }
        Err(silence) => Refusal::new(silence.kind(), format!("{} {silence}", name(&found.path)), help(&silence)),
    };
    if refusal.kind == "truncated" {
        return Verdict::Incomplete { sha256, refusal };
    }
    Verdict::Known(Known::Refused { sha256: Some(sha256), refusal })
}

fn name(path: &Path) -> String {
    format!("plugin '{}'", path.file_name().unwrap_or(path.as_os_str()).display())
}

fn help(silence: &Silence) -> &'static str {
    match silence {
        Silence::Spawn(_) => "free processes or memory, then touch the file",
        Silence::TimedOut(_) | Silence::Crashed { .. } | Silence::Ended { .. } => {
            "copy or download it again; if that does not help, tell its author"
        }
        Silence::Garbled(_) => "tell its author that plugins must not print while they start",
    }
}
