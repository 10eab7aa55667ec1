//! WebP, with and without loss, by `image-webp`.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::{Format, Orientation, Unreadable, on_white};

/// Limit of metadata that the decoder reads, such as EXIF.
const METADATA_BYTES_MAX: usize = 4 << 20;

type Decoder<'a> = WebPDecoder<Cursor<&'a [u8]>>;

pub(super) fn header(bytes: &[u8]) -> Result<(u32, u32, Orientation), Unreadable> {
    let mut decoder = decoder(bytes)?;
    let (width, height) = decoder.dimensions();
    // Metadata that cannot be read turns nothing.
    let exif = decoder.exif_metadata().unwrap_or_default();
    Ok((width, height, Orientation::of(exif.as_deref())))
}

pub(super) fn pixels(bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut decoder = decoder(bytes)?;
    let length = decoder.output_buffer_size().ok_or_else(|| damaged("it is too large"))?;
    let mut pixels = vec![0; length];
    decoder.read_image(&mut pixels).map_err(damaged)?;
    Ok(if decoder.has_alpha() { on_white(&pixels) } else { pixels })
}

fn decoder(bytes: &[u8]) -> Result<Decoder<'_>, Unreadable> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    decoder.set_memory_limit(METADATA_BYTES_MAX);
    Ok(decoder)
}

fn damaged(error: impl std::fmt::Display) -> Unreadable {
    Unreadable::damaged(Format::Webp, error)
}
