//! The orientation in a file's EXIF data: cameras store what their sensor saw, and how to turn it.

use super::RGB;

/// How stored pixels become upright, as in EXIF: 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation(u8);

/// Tags are searched in the first directory only, which has at most this many.
const TAGS_MAX: usize = 512;
const TAG_BYTES: usize = 12;
const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;

impl Orientation {
    pub const UPRIGHT: Self = Self(1);

    /// Reads a TIFF structure, with or without the marker that JPEG files put in front. Anything unusual is upright.
    pub fn of(exif: Option<&[u8]>) -> Self {
        exif.and_then(read).filter(|value| (1..=8).contains(value)).map_or(Self::UPRIGHT, Self)
    }

    /// The size of the upright picture, and the other way round.
    pub fn upright(self, width: u32, height: u32) -> (u32, u32) {
        if self.0 >= 5 { (height, width) } else { (width, height) }
    }

    /// Turns pixels of the stored size upright.
    pub fn apply(self, width: u32, height: u32, pixels: Vec<u8>) -> Vec<u8> {
        if self == Self::UPRIGHT {
            return pixels;
        }
        let (width, height) = (width as usize, height as usize);
        let (new_width, new_height) = if self.0 >= 5 { (height, width) } else { (width, height) };
        let mut turned = Vec::with_capacity(pixels.len());
        for y in 0..new_height {
            for x in 0..new_width {
                let (column, row) = match self.0 {
                    2 => (width - 1 - x, y),
                    3 => (width - 1 - x, height - 1 - y),
                    4 => (x, height - 1 - y),
                    5 => (y, x),
                    6 => (y, height - 1 - x),
                    7 => (width - 1 - y, height - 1 - x),
                    _ => (width - 1 - y, x),
                };
                let at = (row * width + column) * RGB;
                turned.extend_from_slice(&pixels[at..at + RGB]);
            }
        }
        turned
    }
}

fn read(exif: &[u8]) -> Option<u8> {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let tags = usize::from(short(directory)?).min(TAGS_MAX);
    let first = directory.checked_add(2)?;
    let mut places = (0..tags).filter_map(|tag| first.checked_add(tag * TAG_BYTES));
    let at = places.find(|at| short(*at) == Some(ORIENTATION))?;
    (short(at + 2)? == SHORT).then(|| short(at + 8)).flatten().and_then(|value| u8::try_from(value).ok())
}
