//! Pictures for the laws of models that read images.

use pensieve_laws::MediaSample;

use crate::{Architecture, Error, Result, Source, export::export_architecture};

/// Pictures prepared by the architecture, for [`Options::media`](super::Options::media): with them, the laws of images are
/// tried. None if the checkpoint reads text alone. The architecture lives until the process exits, as a plugin's do.
pub fn pictures(architecture: impl Architecture, source: &Source) -> Result<Vec<MediaSample>> {
    let architecture: &'static dyn Architecture = Box::leak(Box::new(architecture));
    let Some(prepare) = architecture.media() else { return Ok(Vec::new()) };
    let description = prepare.describe(source)?;
    if description.is_empty() {
        return Ok(Vec::new());
    }
    let description: serde_json::Value =
        serde_json::from_str(&description).map_err(|error| Error::invalid(format!("the description: {error}")))?;
    let image = &description["image"];
    let slot = image["slot"].as_u64().and_then(|slot| u32::try_from(slot).ok());
    let slot = slot.ok_or_else(|| Error::invalid("the description has no 'slot' of images"))?;
    let exported = export_architecture(architecture);
    let whole = image["whole"].as_bool().unwrap_or(false);
    let samples = MediaSample::images(&exported, slot, whole, &image["processor"].to_string());
    samples.map_err(|error| Error::invalid(format!("the architecture does not prepare a picture: {error}")))
}
