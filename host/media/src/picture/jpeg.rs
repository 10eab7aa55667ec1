//! JPEG, baseline and progressive, by `zune-jpeg`.

use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::JpegDecoder;

use super::{Format, Orientation, RGB, Unreadable};

/// A progressive file refines its pixels in scans, each of which costs as much as decoding it. Encoders write about ten.
const SCANS_MAX: usize = 100;
/// The longest side that the format can express.
const SIDE_MAX: usize = 65_535;
const END: [u8; 2] = [0xff, 0xd9];
const START_OF_SCAN: u8 = 0xda;

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

pub(super) fn header(bytes: &[u8]) -> Result<(u32, u32, Orientation), Unreadable> {
    let mut decoder = decoder(bytes);
    decoder.decode_headers().map_err(damaged)?;
    let info = decoder.info().ok_or_else(|| damaged("it has no header"))?;
    let orientation = Orientation::of(decoder.exif().map(Vec::as_slice));
    Ok((u32::from(info.width), u32::from(info.height), orientation))
}

pub(super) fn pixels(bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    // The decoder fills in what is missing of a file that was cut off.
    if !has_end(bytes) {
        return Err(damaged("its end is missing"));
    }
    // Inks are taken for inverted, as Adobe's programs store them; Pillow does the same, whether the file says so or not.
    let mut decoder = decoder(bytes);
    decoder.decode_headers().map_err(damaged)?;
    let pixels = decoder.decode().map_err(damaged)?;
    Ok(match decoder.output_colorspace() {
        Some(ColorSpace::Luma) => pixels.iter().flat_map(|grey| [*grey; RGB]).collect(),
        Some(ColorSpace::RGB) => pixels,
        other => return Err(damaged(format_args!("its colours are {other:?}"))),
    })
}

fn decoder(bytes: &[u8]) -> Decoder<'_> {
    let options = DecoderOptions::default()
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .set_strict_mode(true)
        .jpeg_set_max_scans(SCANS_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options)
}

/// True if the end marker follows the start of the pixels.
fn has_end(bytes: &[u8]) -> bool {
    let mut rest = bytes.get(2..).unwrap_or_default();
    while let [0xff, marker, after @ ..] = rest {
        match (*marker, after) {
            (START_OF_SCAN, _) => return after.windows(END.len()).any(|pair| pair == END),
            // Fill bytes may precede a marker.
            (0xff, _) => rest = &rest[1..],
            (_, [high, low, ..]) => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = after.get(length.max(2)..).unwrap_or_default();
            }
            _ => return false,
        }
    }
    false
}

fn damaged(error: impl std::fmt::Display) -> Unreadable {
    Unreadable::damaged(Format::Jpeg, error)
}
