//! Decodes PNG, JPEG, WebP and GIF files to upright RGB pixels.
//!
//! The format follows from the first bytes, whatever a client calls it. Sizes are read from the header and checked before
//! anything is decoded, so a file of a few bytes cannot ask for gigabytes. Of an animation the first frame counts.
//!
//! What models were trained on is decoded by Pillow, so this follows it: EXIF orientation is applied, CMYK is taken for
//! inverted and converted without a profile, and 16 bits are cut to 8. Transparent pixels are put on white, as the processors of Idefics, Pixtral
//! and Qwen do; Pillow's plain conversion would show whatever colour lies beneath them.

mod exif;
mod gif;
mod jpeg;
mod png;
mod webp;

#[cfg(test)]
mod tests;

use std::fmt;

pub use self::exif::Orientation;

/// Limits of a picture, checked against its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureLimits {
    pub pixels: u64,
    /// Pixels of the longer side.
    pub side: u32,
}

/// Bytes per pixel.
const RGB: usize = 3;
const RGBA: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Png,
    Jpeg,
    Webp,
    Gif,
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub format: Format,
    /// Size of the upright picture.
    pub width: u32,
    pub height: u32,
    orientation: Orientation,
}

/// An upright picture, three bytes a pixel, the top row first.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub pixels: Vec<u8>,
}

/// Why a file is no picture that can be shown to a model; a predicate, for the client: `is not …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl Unreadable {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    fn damaged(format: Format, error: impl fmt::Display) -> Self {
        Self(format!("is a damaged {format} file: {error}"))
    }
}

impl Format {
    /// The format that the first bytes announce.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Self::Png)
        } else if bytes.starts_with(b"\xff\xd8\xff") {
            Some(Self::Jpeg)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::Webp)
        } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            Some(Self::Gif)
        } else {
            None
        }
    }
}

/// Reads the header of a file and checks its size, without decoding pixels.
pub fn header(bytes: &[u8], limits: &PictureLimits) -> Result<Header, Unreadable> {
    let format = Format::of(bytes).ok_or_else(|| Unreadable::new(unknown(bytes)))?;
    let (width, height, orientation) = match format {
        Format::Png => png::header(bytes)?,
        Format::Jpeg => jpeg::header(bytes)?,
        Format::Webp => webp::header(bytes)?,
        Format::Gif => gif::header(bytes)?,
    };
    if width == 0 || height == 0 {
        return Err(Unreadable::new("has no pixels"));
    }
    let pixels = u64::from(width) * u64::from(height);
    if pixels > limits.pixels {
        return Err(Unreadable(format!("has {width} × {height} pixels, more than the {} allowed", limits.pixels)));
    }
    if width.max(height) > limits.side {
        return Err(Unreadable(format!("has {width} × {height} pixels, a side longer than {}", limits.side)));
    }
    let (width, height) = orientation.upright(width, height);
    Ok(Header { format, width, height, orientation })
}

/// Decodes a file.
pub fn decode(bytes: &[u8], limits: &PictureLimits) -> Result<Picture, Unreadable> {
    let header = header(bytes, limits)?;
    let pixels = match header.format {
        Format::Png => png::pixels(bytes)?,
        Format::Jpeg => jpeg::pixels(bytes)?,
        Format::Webp => webp::pixels(bytes)?,
        Format::Gif => gif::pixels(bytes)?,
    };
    let (width, height) = (header.width, header.height);
    // The decoders say so themselves; a plugin relies on it.
    if pixels.len() as u64 != u64::from(width) * u64::from(height) * RGB as u64 {
        return Err(Unreadable::damaged(header.format, "its pixels do not fill it"));
    }
    let stored = header.orientation.upright(width, height);
    Ok(Picture { width, height, pixels: header.orientation.apply(stored.0, stored.1, pixels) })
}

/// Puts pixels with an alpha channel on white.
fn on_white(pixels: &[u8]) -> Vec<u8> {
    let mix = |colour: u8, alpha: u8| {
        let (colour, alpha) = (u32::from(colour), u32::from(alpha));
        // The sum is at most 255 × 255, so the quotient fits.
        ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    let mixed = pixels.chunks_exact(RGBA).flat_map(|pixel| {
        let alpha = pixel[3];
        [mix(pixel[0], alpha), mix(pixel[1], alpha), mix(pixel[2], alpha)]
    });
    mixed.collect()
}

fn unknown(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "is empty",
        [b'%', b'P', b'D', b'F', ..] => "is a PDF file; send PNG, JPEG, WebP or GIF",
        [b'<', ..] => "is text or SVG; send PNG, JPEG, WebP or GIF",
        [b'B', b'M', ..] => "is a BMP file; send PNG, JPEG, WebP or GIF",
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => "is a TIFF file; send PNG, JPEG, WebP or GIF",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "is a HEIC, AVIF or MP4 file; send PNG, JPEG, WebP or GIF",
        _ => "is not a PNG, JPEG, WebP or GIF file",
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::Webp => "WebP",
            Self::Gif => "GIF",
        })
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} pixels", self.width, self.height)
    }
}
