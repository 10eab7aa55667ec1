//! Converts the contract's types to the SDK's and back.

use pensieve_plugin_api::{
    self as api,
    abi_stable::std_types::{ROption, RSlice, RString, RVec},
};

use crate::{
    AdapterData, Cache, Card, Code, Error, LoadRequest, LowRankPair, MediaKind, MediaSize, Merged, Output, Resident,
    Source, Want,
};

/// Converts an error for the host.
pub(super) fn error_out(error: Error) -> api::PluginError {
    let code = match error.code {
        Code::Invalid => api::ErrorCode::INVALID,
        Code::Corrupt => api::ErrorCode::CORRUPT,
        Code::Unsupported => api::ErrorCode::UNSUPPORTED,
        Code::Declined => api::ErrorCode::DECLINED,
        Code::NotFound => api::ErrorCode::NOT_FOUND,
        Code::Io => api::ErrorCode::IO,
        Code::OutOfMemory => api::ErrorCode::OUT_OF_MEMORY,
        Code::Cancelled => api::ErrorCode::CANCELLED,
        Code::Panicked => api::ErrorCode::PANICKED,
        Code::Device => api::ErrorCode::DEVICE,
    };
    api::PluginError::new(code, error.message).with_help(error.help)
}

impl From<&api::Source<'_>> for Source {
    fn from(source: &api::Source<'_>) -> Self {
        Self { path: source.path.as_str().into(), options: source.options.as_str().into() }
    }
}

impl From<&api::LoadRequest<'_>> for LoadRequest {
    fn from(request: &api::LoadRequest<'_>) -> Self {
        Self {
            source: Source::from(&request.source),
            device: request.device.as_str().into(),
            context: request.context,
            state_bytes: request.state_bytes,
            threads: request.threads,
        }
    }
}

impl From<Card> for api::Card {
    fn from(card: Card) -> Self {
        Self {
            architecture: card.architecture.into(),
            vocabulary: card.vocabulary,
            context: card.context,
            block_tokens: card.block_tokens,
            caches: card.caches.iter().map(group).collect(),
            // The SDK picks candidates if the model does not.
            candidates: card.vocabulary,
            hidden: card.hidden,
            token_bytes: card.token_bytes,
            weight_bytes: card.weight_bytes,
            tokenizer: card.tokenizer.into(),
            chat_template: card.chat_template.map(RString::from).into(),
            bos: card.bos.into(),
            add_bos: card.add_bos,
            eos: card.eos.into(),
            formats: card.formats.into(),
            facts: card.facts.into(),
            fingerprint: card.fingerprint.into(),
        }
    }
}

impl From<&Resident> for api::Resident {
    fn from(resident: &Resident) -> Self {
        Self {
            device: resident.device.as_str().into(),
            note: resident.note.as_str().into(),
            weight_bytes: resident.weight_bytes,
            state_bytes: resident.state_bytes,
            places: resident.caches.iter().map(|(_, count)| *count).collect(),
            context: resident.context,
        }
    }
}

/// Converts a cache group for the host.
pub(crate) fn group(cache: &Cache) -> api::CacheGroup {
    let (kind, window, bytes) = match *cache {
        Cache::Tokens { bytes } => (api::CacheKind::TOKENS, 0, bytes),
        Cache::Window { tokens, bytes } => (api::CacheKind::WINDOW, tokens, bytes),
        Cache::State { bytes } => (api::CacheKind::STATE, 0, bytes),
        Cache::Opaque { bytes } => (api::CacheKind::OPAQUE, 0, bytes),
    };
    api::CacheGroup { kind, window, bytes }
}

/// Converts the contract's output, if its value is known.
pub(super) fn output(output: api::Output) -> Option<Output> {
    match output {
        api::Output::LOGITS => Some(Output::Logits),
        api::Output::CANDIDATES => Some(Output::Candidates),
        api::Output::HIDDEN => Some(Output::Hidden),
        _ => None,
    }
}

/// Converts the contract's want, if its value is known.
pub(super) fn want(want: api::Want) -> Option<Want> {
    match want {
        api::Want::NONE => Some(Want::None),
        api::Want::LAST => Some(Want::Last),
        api::Want::ALL => Some(Want::All),
        _ => None,
    }
}

/// Converts an adapter from the host, if its lengths match its shapes.
pub(super) fn adapter_in(adapter: &api::AdapterData) -> Result<AdapterData, Error> {
    let pairs = adapter.pairs.iter().map(|pair| {
        let (rank, inputs, outputs) = (pair.rank as usize, pair.inputs as usize, pair.outputs as usize);
        if rank.checked_mul(inputs) != Some(pair.a.len()) || rank.checked_mul(outputs) != Some(pair.b.len()) {
            let shapes = format!("A has {} values, B {}", pair.a.len(), pair.b.len());
            return Err(Error::invalid(format!(
                "adapter pair '{}': {shapes}; rank {rank} over {inputs} inputs and {outputs} outputs needs others",
                pair.target
            )));
        }
        let (a, b) = (pair.a.to_vec(), pair.b.to_vec());
        Ok(LowRankPair { target: pair.target.to_string(), rank, inputs, outputs, scale: pair.scale, a, b })
    });
    Ok(AdapterData {
        base: adapter.base.to_string(),
        fingerprint: adapter.fingerprint.to_string(),
        pairs: pairs.collect::<Result<_, _>>()?,
    })
}

/// Converts an adapter to be merged.
pub(super) fn merged_in(merged: &api::ext::merge::Merged) -> Result<Merged, Error> {
    Ok(Merged { adapter: adapter_in(&merged.adapter)?, strength: merged.strength })
}

/// Converts an adapter for the host.
pub(crate) fn adapter_out(adapter: AdapterData) -> Result<api::AdapterData, Error> {
    let narrow = |value: usize, pair: &str| {
        u32::try_from(value).map_err(|_| Error::invalid(format!("adapter pair '{pair}': {value} exceeds 32 bits")))
    };
    let pairs = adapter.pairs.into_iter().map(|pair| {
        Ok(api::LowRankPair {
            rank: narrow(pair.rank, &pair.target)?,
            inputs: narrow(pair.inputs, &pair.target)?,
            outputs: narrow(pair.outputs, &pair.target)?,
            target: pair.target.into(),
            scale: pair.scale,
            a: pair.a.into(),
            b: pair.b.into(),
        })
    });
    Ok(api::AdapterData {
        base: adapter.base.into(),
        fingerprint: adapter.fingerprint.into(),
        pairs: pairs.collect::<Result<RVec<_>, Error>>()?,
    })
}

/// Converts a list of names for the host.
pub(super) fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> RVec<RString> {
    names.into_iter().map(RString::from).collect()
}

/// Converts an optional value for the host.
pub(super) fn option<T>(value: Option<T>) -> ROption<T> {
    value.into()
}

/// Converts the size of an item, if its kind is known and it has one.
pub(super) fn size_in(size: api::ext::media::MediaSize) -> Result<MediaSize, Error> {
    let kind = match size.kind {
        api::ext::media::MediaKind::IMAGE => MediaKind::Image,
        api::ext::media::MediaKind::AUDIO => MediaKind::Audio,
        other => return Err(Error::unsupported(format!("items of kind {} are unknown", other.0))),
    };
    if size.width == 0 || size.height == 0 || kind == MediaKind::Audio && size.height != 1 {
        return Err(Error::invalid(format!("an item of {} by {}", size.width, size.height)));
    }
    Ok(MediaSize { kind, width: size.width, height: size.height })
}

/// Returns a layout of bounded length.
pub(super) fn layout_in<'a>(layout: &RSlice<'a, u8>) -> Result<&'a [u8], Error> {
    bounded("a layout", layout.len(), api::ext::media::LAYOUT_BYTES_MAX)?;
    Ok(layout.as_slice())
}

/// Fails if `what` is longer than the contract allows.
pub(super) fn bounded(what: &str, bytes: usize, limit: usize) -> Result<(), Error> {
    if bytes > limit {
        return Err(Error::invalid(format!("{what} of {bytes} bytes exceeds the limit of {limit}")));
    }
    Ok(())
}
