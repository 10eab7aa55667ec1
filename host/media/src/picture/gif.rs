//! The first frame of a GIF, by the `gif` crate.

use std::{io::Cursor, num::NonZeroU64};

use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};

use super::{Format, Orientation, RGB, RGBA, Unreadable, on_white};

/// Memory of a frame as the decoder counts it: indices into the palette, and their colours.
const FRAME_BYTES_MAX: NonZeroU64 = NonZeroU64::new(1 << 30).unwrap();

pub(super) fn header(bytes: &[u8]) -> Result<(u32, u32, Orientation), Unreadable> {
    let decoder = decoder(bytes)?;
    Ok((u32::from(decoder.width()), u32::from(decoder.height()), Orientation::UPRIGHT))
}

pub(super) fn pixels(bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut decoder = decoder(bytes)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let frame = decoder.read_next_frame().map_err(damaged)?.ok_or_else(|| damaged("it has no frame"))?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (columns, rows) = (usize::from(frame.width), usize::from(frame.height));
    if frame.buffer.len() < columns * rows * RGBA {
        return Err(damaged("its first frame is not complete"));
    }
    let shown = on_white(&frame.buffer);
    if columns == width && rows == height {
        return Ok(shown);
    }
    // What the frame does not cover is transparent.
    let mut pixels = vec![255; width * height * RGB];
    for (row, line) in shown.chunks_exact((columns * RGB).max(1)).enumerate() {
        let at = ((top + row) * width + left) * RGB;
        pixels[at..at + line.len()].copy_from_slice(line);
    }
    Ok(pixels)
}

fn decoder(bytes: &[u8]) -> Result<Decoder<Cursor<&[u8]>>, Unreadable> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::RGBA);
    options.set_memory_limit(MemoryLimit::Bytes(FRAME_BYTES_MAX));
    // A frame beyond the picture, whose size alone has been checked, is refused before anything is decoded.
    options.check_frame_consistency(true);
    options.read_info(Cursor::new(bytes)).map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Unreadable {
    Unreadable::damaged(Format::Gif, error)
}
