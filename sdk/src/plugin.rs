//! The contents of a plugin; `export!` turns them into the library's only exported symbol.

use crate::{AdapterFormat, Architecture, abi::Extension, sampler::Sampler};

/// A plugin under construction: its id, and the providers in it.
///
/// ```
/// # use pensieve_sdk::{Plugin, Result, sampler::*};
/// # struct First;
/// # impl Sampler for First {
/// #     fn name(&self) -> &'static str { "first" }
/// #     fn create(&self, _: &str, _: u32, _: u64) -> Result<Box<dyn Stage>> { Ok(Box::new(First)) }
/// # }
/// # impl Stage for First {
/// #     fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
/// #         Ok(candidates.ids().first().copied())
/// #     }
/// # }
/// let plugin = Plugin::new("first", "picks the first candidate").sampler(First);
/// ```
pub struct Plugin {
    pub(crate) id: &'static str,
    pub(crate) description: &'static str,
    pub(crate) architectures: Vec<Box<dyn Architecture>>,
    pub(crate) samplers: Vec<Box<dyn Sampler>>,
    pub(crate) adapter_formats: Vec<Box<dyn AdapterFormat>>,
    pub(crate) extensions: Vec<(&'static str, Extension)>,
}

impl Plugin {
    /// Creates a plugin without providers. The id is short and unique among installed plugins.
    pub fn new(id: &'static str, description: &'static str) -> Self {
        let (architectures, samplers, adapter_formats) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, description, architectures, samplers, adapter_formats, extensions: Vec::new() }
    }

    /// Adds a model family.
    #[must_use]
    pub fn architecture(mut self, architecture: impl Architecture) -> Self {
        self.architectures.push(Box::new(architecture));
        self
    }

    /// Adds a sampler.
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.samplers.push(Box::new(sampler));
        self
    }

    /// Adds several samplers.
    #[must_use]
    pub fn samplers(mut self, samplers: impl IntoIterator<Item = Box<dyn Sampler>>) -> Self {
        self.samplers.extend(samplers);
        self
    }

    /// Adds an adapter format.
    #[must_use]
    pub fn adapter_format(mut self, format: impl AdapterFormat) -> Self {
        self.adapter_formats.push(Box::new(format));
        self
    }
    /// Adds an extension of the author's own that belongs to the library rather than to a provider
    /// ([`extension`](crate::extension)).
    #[must_use]
    pub fn extension(mut self, id: &'static str, extension: Extension) -> Self {
        self.extensions.push((id, extension));
        self
    }
}
