//! An open plugin, which measures and prepares the pictures of one model. What it returns is checked: the server and the
//! worker compute with it.

use pensieve_plugin_api::{
    ArchitectureBox, ErrorCode, PluginError,
    ext::media::{LAYOUT_BYTES_MAX, Measured, MediaItem, MediaKind, MediaSize, Prepare},
};
use pensieve_protocol::{
    decoding::{MeasuredItem, MediaAnswer, Opening, PREPARED_BYTES_MAX, text_bytes_max},
    job::{Failure, FailureCode},
    media::{ItemKind, ItemSize, KindUse},
};
use pensieve_worker::plugin::LoadedPlugin;
use sha2::{Digest, Sha256};

use crate::picture::{self, Picture, PictureLimits, Unreadable};

/// One architecture of a plugin, with the description of a checkpoint.
pub(crate) struct ItemPreparer {
    architecture: ArchitectureBox,
    name: String,
    image: KindUse,
    limits: PictureLimits,
}

impl ItemPreparer {
    /// Opens a plugin, which runs its code.
    pub fn open(opening: Opening) -> Result<Self, Failure> {
        let Opening { plugin, architecture: name, image, pixels_max, side_max } = opening;
        let plugin = LoadedPlugin::open(&plugin)
            .map_err(|error| Failure::new(FailureCode::Plugin, error.reason.to_string()).with_help(error.help()))?;
        let architecture = plugin.architecture(&name).map_err(|error| of_plugin(&name, "cannot be created", &error))?;
        let limits = PictureLimits { pixels: pixels_max, side: side_max };
        let opened = Self { architecture, name, image, limits };
        match Prepare::of(&opened.architecture) {
            Some(Ok(_)) => Ok(opened),
            Some(Err(error)) => Err(of_plugin(&opened.name, "offers images in a form that is not known", &error)),
            None => Err(opened.wrong("offers no images")),
        }
    }

    /// Measures a file by its header.
    pub fn measure(&self, file: &[u8]) -> Result<MediaAnswer, Failure> {
        match picture::header(file, &self.limits) {
            Ok(header) => self.measured(header.width, header.height).map(MediaAnswer::Measured),
            Err(error) => Ok(unreadable(&error)),
        }
    }

    /// Decodes and prepares a file.
    pub fn prepare(&self, file: &[u8]) -> Result<MediaAnswer, Failure> {
        let picture = match picture::decode(file, &self.limits) {
            Ok(picture) => picture,
            Err(error) => return Ok(unreadable(&error)),
        };
        let item = self.measured(picture.width, picture.height)?;
        let decoded = MediaItem { size: size(picture.width, picture.height), data: picture.pixels.as_slice().into() };
        let prepared = Prepare::of(&self.architecture)
            .transpose()
            .and_then(|offered| offered.map(|able| able.prepare(&self.image.processor, &decoded)).transpose());
        let prepared = prepared.map_err(|error| of_plugin(&self.name, "does not prepare an image", &error))?;
        let prepared = prepared.ok_or_else(|| self.wrong("offers no images"))?.into_vec();
        // A worker takes an item without bytes for one that it had no room for.
        if prepared.is_empty() {
            return Err(self.wrong("prepared no bytes of an image"));
        }
        if prepared.len() > PREPARED_BYTES_MAX {
            let bytes = prepared.len();
            return Err(self.wrong(&format!("prepared {bytes} bytes of an image, more than {PREPARED_BYTES_MAX}")));
        }
        let digest = self.digest(&picture);
        Ok(MediaAnswer::Prepared { item, digest, prepared: prepared.into() })
    }

    fn measured(&self, width: u32, height: u32) -> Result<MeasuredItem, Failure> {
        let measured = Prepare::of(&self.architecture).transpose().and_then(|offered| {
            offered.map(|able| able.measure(&self.image.processor, size(width, height))).transpose()
        });
        let measured = measured.map_err(|error| of_plugin(&self.name, "does not measure an image", &error))?;
        let Measured { text, rows, layout } = measured.ok_or_else(|| self.wrong("offers no images"))?;
        let most = self.image.rows_max;
        if rows == 0 || rows > most {
            return Err(self.wrong(&format!("makes {rows} rows of an image; its description allows 1 to {most}")));
        }
        if text.len() > text_bytes_max(rows) || layout.len() > LAYOUT_BYTES_MAX {
            let (text, layout) = (text.len(), layout.len());
            return Err(self.wrong(&format!("measures an image with {text} bytes of text and {layout} of layout")));
        }
        let size = ItemSize { kind: ItemKind::Image, width, height };
        Ok(MeasuredItem { size, text: text.into(), rows, layout: layout.into_vec() })
    }

    /// Equal for pictures with equal rows: of the pixels and of all that they are prepared by.
    fn digest(&self, picture: &Picture) -> [u8; 32] {
        let mut digest = Sha256::new();
        for text in [&self.name, &self.image.processor] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        digest.update(MediaKind::IMAGE.0.to_le_bytes());
        digest.update(picture.width.to_le_bytes());
        digest.update(picture.height.to_le_bytes());
        digest.update(&picture.pixels);
        digest.finalize().into()
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::new(FailureCode::Plugin, format!("architecture '{}' {what}", self.name))
            .with_help("report this to the plugin's author")
    }
}

fn size(width: u32, height: u32) -> MediaSize {
    MediaSize { kind: MediaKind::IMAGE, width, height }
}

fn unreadable(error: &Unreadable) -> MediaAnswer {
    MediaAnswer::Unreadable(error.to_string())
}

/// An image that a plugin calls invalid is the client's mistake.
fn of_plugin(name: &str, what: &str, error: &PluginError) -> Failure {
    let code = if error.code == ErrorCode::INVALID { FailureCode::Invalid } else { FailureCode::Plugin };
    Failure::new(code, format!("architecture '{name}' {what}: {}", error.message)).with_help(error.help.as_str())
}
