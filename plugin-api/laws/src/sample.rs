//! Images for the laws of models that read some.

use pensieve_plugin_api::{
    ArchitectureBox, ErrorCode, PluginError,
    ext::media::{MediaItem, MediaKind, MediaSize, Prepare},
};

/// An item for the laws, prepared by its architecture.
#[derive(Clone, Debug)]
pub struct MediaSample {
    /// Its kind and size.
    pub size: MediaSize,
    /// As it was measured.
    pub layout: Vec<u8>,
    /// As the model opens it.
    pub prepared: Vec<u8>,
    /// The number of its slots.
    pub rows: u32,
    /// The token that stands for a row.
    pub slot: u32,
    /// Its slots see each other.
    pub whole: bool,
}

impl MediaSample {
    /// Prepares three images: two of one size, and a third one. `slot`, `whole` and `processor` are the description's.
    pub fn images(
        architecture: &ArchitectureBox,
        slot: u32,
        whole: bool,
        processor: &str,
    ) -> Result<Vec<Self>, PluginError> {
        let none = || PluginError::new(ErrorCode::UNSUPPORTED, "the architecture prepares no images");
        let preparing = Prepare::of(architecture).ok_or_else(none)??;
        let samples = [(1_u32, 40, 24), (2, 40, 24), (3, 24, 56)].map(|(image, width, height)| {
            let size = MediaSize { kind: MediaKind::IMAGE, width, height };
            // Waves that differ from image to image and from channel to channel.
            let data = (0..3 * width * height).map(|at| (at.wrapping_mul(at % 3 + 7 * image) / 5) as u8);
            let data: Vec<u8> = data.collect();
            let measured = preparing.measure(processor, size)?;
            let prepared = preparing.prepare(processor, &MediaItem { size, data: data[..].into() })?;
            let (layout, prepared) = (measured.layout.to_vec(), prepared.to_vec());
            Ok(Self { size, layout, prepared, rows: measured.rows, slot, whole })
        });
        samples.into_iter().collect()
    }
}
