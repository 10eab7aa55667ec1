//! The table with which an architecture describes, measures and prepares items.

use pensieve_plugin_api::{
    self as api, PluginError,
    abi_stable::{
        sabi_types::RRef,
        std_types::{RResult, RStr, RString, RVec},
    },
    ext::media::{self, DESCRIPTION_BYTES_MAX, LAYOUT_BYTES_MAX},
};

use super::exported_architecture;
use crate::{
    Error, MediaItem, MediaKind, Prepare, Result,
    export::{
        convert::{bounded, size_in},
        guard::guard,
    },
};

pub(super) static PREPARE: media::Prepare = media::Prepare { describe, measure, prepare };

fn preparing(architecture: RRef<'_, ()>) -> Result<&'static dyn Prepare> {
    // SAFETY: the functions of `PREPARE` alone call this, and `ExportedArchitecture` alone offers that table.
    let architecture = unsafe { exported_architecture(architecture) };
    architecture.media().ok_or_else(|| Error::unsupported("this architecture reads text alone"))
}

unsafe extern "C" fn describe(architecture: RRef<'_, ()>, source: &api::Source<'_>) -> RResult<RString, PluginError> {
    guard("describe", || {
        let description = preparing(architecture)?.describe(&source.into())?;
        bounded("a description of items", description.len(), DESCRIPTION_BYTES_MAX)?;
        Ok(description.into())
    })
}

unsafe extern "C" fn measure(
    architecture: RRef<'_, ()>,
    processor: RStr<'_>,
    size: media::MediaSize,
) -> RResult<media::Measured, PluginError> {
    guard("measure", || {
        let measured = preparing(architecture)?.measure(processor.as_str(), size_in(size)?)?;
        bounded("a layout", measured.layout.len(), LAYOUT_BYTES_MAX)?;
        Ok(media::Measured { text: measured.text.into(), rows: measured.rows, layout: measured.layout.into() })
    })
}

unsafe extern "C" fn prepare(
    architecture: RRef<'_, ()>,
    processor: RStr<'_>,
    item: &media::MediaItem<'_>,
) -> RResult<RVec<u8>, PluginError> {
    guard("prepare", || {
        let item = MediaItem { size: size_in(item.size)?, data: item.data.as_slice() };
        let places = u64::from(item.size.width) * u64::from(item.size.height);
        let bytes = places * if item.size.kind == MediaKind::Image { 3 } else { 4 };
        if item.data.len() as u64 != bytes {
            return Err(Error::invalid(format!("{} bytes are no {:?}", item.data.len(), item.size)));
        }
        preparing(architecture)?.prepare(processor.as_str(), &item).map(RVec::from)
    })
}
