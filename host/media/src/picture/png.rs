//! PNG, by the `png` crate.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Limits, Reader, Transformations};

use super::{Format, Orientation, Unreadable, on_white};

/// Memory of the decoder besides the pixels: text chunks and profiles are not read, and a row is at most this long.
const DECODER_BYTES: usize = 64 << 20;

pub(super) fn header(bytes: &[u8]) -> Result<(u32, u32, Orientation), Unreadable> {
    let reader = reader(bytes)?;
    let info = reader.info();
    Ok((info.width, info.height, Orientation::of(info.exif_metadata.as_deref())))
}

pub(super) fn pixels(bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut reader = reader(bytes)?;
    let length = reader.output_buffer_size().ok_or_else(|| damaged("it is too large"))?;
    let mut pixels = vec![0; length];
    let frame = reader.next_frame(&mut pixels).map_err(damaged)?;
    // What follows the pixels must be there as well: a file that was cut off is noticed.
    reader.finish().map_err(damaged)?;
    pixels.truncate(frame.buffer_size());
    if frame.bit_depth != BitDepth::Eight {
        return Err(damaged("its pixels do not become bytes"));
    }
    Ok(match frame.color_type {
        ColorType::Rgb => pixels,
        ColorType::Rgba => on_white(&pixels),
        ColorType::Grayscale => pixels.iter().flat_map(|grey| [*grey; 3]).collect(),
        ColorType::GrayscaleAlpha => {
            let coloured = pixels.chunks_exact(2).flat_map(|pixel| [pixel[0], pixel[0], pixel[0], pixel[1]]);
            on_white(&coloured.collect::<Vec<u8>>())
        }
        ColorType::Indexed => return Err(damaged("its palette is not applied")),
    })
}

fn reader(bytes: &[u8]) -> Result<Reader<Cursor<&[u8]>>, Unreadable> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: DECODER_BYTES });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.read_info().map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Unreadable {
    Unreadable::damaged(Format::Png, error)
}
