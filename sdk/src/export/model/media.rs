//! The table with which a model encodes items and places them in sequences.

use pensieve_plugin_api::{
    PluginError,
    abi_stable::{
        sabi_types::RMut,
        std_types::{RResult, RSlice},
    },
    ext::media::{self, NO_HANDLE},
};

use super::exported;
use crate::{
    Encode, Error, Placement, Result,
    export::{
        convert::{layout_in, size_in},
        guard::guard,
    },
};

pub(super) static ENCODE: media::Encode = media::Encode { open, encode, place, close };

fn encoding(model: RMut<'_, ()>) -> Result<&mut dyn Encode> {
    exported(model).model()?.media().ok_or_else(|| Error::unsupported("this model reads text alone"))
}

unsafe extern "C" fn open(
    model: RMut<'_, ()>,
    handle: u64,
    size: media::MediaSize,
    layout: RSlice<'_, u8>,
    prepared: RSlice<'_, u8>,
) -> RResult<(), PluginError> {
    guard("open", || {
        if handle == NO_HANDLE {
            return Err(Error::invalid(format!("handle {handle} stands for no item")));
        }
        encoding(model)?.open(handle, size_in(size)?, layout_in(&layout)?, prepared.as_slice())
    })
}

unsafe extern "C" fn encode(model: RMut<'_, ()>, handles: RSlice<'_, u64>, budget: u32) -> RResult<u32, PluginError> {
    guard("encode", || encoding(model)?.encode(handles.as_slice(), budget))
}

unsafe extern "C" fn place(
    model: RMut<'_, ()>,
    sequence: u64,
    placements: RSlice<'_, media::Placement<'_>>,
) -> RResult<(), PluginError> {
    guard("place", || {
        let mut end = 0;
        let mut placed = Vec::with_capacity(placements.len());
        for placement in placements {
            let (start, tokens) = (placement.start as usize, placement.tokens.as_slice());
            if tokens.is_empty() || start < end || u32::try_from(start + tokens.len()).is_err() {
                let message = format!("sequence {sequence}: an item of {} tokens at {start}", tokens.len());
                return Err(Error::invalid(format!("{message}, where {end} tokens belong to those before it")));
            }
            end = start + tokens.len();
            placed.push(Placement {
                start,
                tokens,
                size: size_in(placement.size)?,
                layout: layout_in(&placement.layout)?,
                handle: (placement.handle != NO_HANDLE).then_some(placement.handle),
            });
        }
        encoding(model)?.place(sequence, &placed)
    })
}

unsafe extern "C" fn close(model: RMut<'_, ()>, handle: u64) {
    // The host has forgotten the item, so there is no one to return an error to.
    let _ = guard("close", || {
        encoding(model)?.close(handle);
        Ok(())
    });
}
