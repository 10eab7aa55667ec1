//! Every form of every format against Pillow's pixels (`tests/reference/pictures.py`), and damaged files.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{fs, path::PathBuf};

use super::*;

const LIMITS: PictureLimits = PictureLimits { pixels: 1 << 20, side: 4096 };

/// The largest difference of a byte from Pillow's. Decoders may differ in how they round a cosine transform and interpolate
/// colours of a lower resolution.
const LOSSLESS: u8 = 1;
const LOSSY: u8 = 4;
const SUBSAMPLED: u8 = 40;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/pictures"))
}

fn file(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

fn expected(name: &str) -> Picture {
    let bytes = fs::read(folder().join(format!("{name}.rgb"))).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    Picture { width: number(0), height: number(4), pixels: bytes[8..].to_vec() }
}

fn check(name: &str, most: u8) {
    let (bytes, expected) = (file(name), expected(name));
    let header = header(&bytes, &LIMITS).unwrap();
    assert_eq!((header.width, header.height), (expected.width, expected.height), "{name}");
    let decoded = decode(&bytes, &LIMITS).unwrap();
    assert_eq!((decoded.width, decoded.height), (expected.width, expected.height), "{name}");
    let difference = decoded.pixels.iter().zip(&expected.pixels).map(|(ours, theirs)| ours.abs_diff(*theirs));
    let worst = difference.max().unwrap();
    assert!(worst <= most, "{name} differs from Pillow's pixels by {worst}");
}

#[test]
fn pictures_have_the_pixels_that_models_were_trained_on() {
    for name in [
        "rgb.png",
        "rgba.png",
        "grey.png",
        "grey-alpha.png",
        "palette.png",
        "palette-transparent.png",
        "bilevel.png",
        "grey-16.png",
        "turned.png",
        "lossless.webp",
        "rgba.webp",
        "turned.webp",
        "animated.webp",
        "palette.gif",
        "transparent.gif",
        "interlaced.gif",
        "animated.gif",
    ] {
        check(name, LOSSLESS);
    }
    for name in ["rgb.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "cmyk-plain.jpg"] {
        check(name, LOSSY);
    }
    for name in ["subsampled.jpg", "lossy.webp", "lossy-alpha.webp"] {
        check(name, SUBSAMPLED);
    }
}

#[test]
fn photographs_are_turned_upright() {
    for orientation in 2..=8 {
        check(&format!("turned-{orientation}.jpg"), LOSSY);
    }
}

/// Ways to damage a file so that no picture is left.
fn damages(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut damaged: Vec<(String, Vec<u8>)> = Vec::new();
    for share in [1, 2, 4, 5, 6, 7] {
        let length = bytes.len() * share / 8;
        damaged.push((format!("cut to {length} of {} bytes", bytes.len()), bytes[..length].to_vec()));
    }
    damaged.push(("only a signature".into(), bytes[..12].to_vec()));
    damaged.push(("zeros behind the signature".into(), [&bytes[..12], &vec![0; bytes.len() - 12]].concat()));
    damaged.push(("no signature".into(), [b"xxxxxxxx", &bytes[8..]].concat()));
    damaged.push(("empty".into(), Vec::new()));
    damaged
}

#[test]
fn damaged_files_are_refused() {
    for name in ["rgb.png", "rgb.jpg", "progressive.jpg", "lossless.webp", "lossy.webp", "palette.gif"] {
        for (what, bytes) in damages(&file(name)) {
            let refused = decode(&bytes, &LIMITS).map(drop).map_err(|error| error.to_string());
            let error = refused.expect_err(&format!("{name}, {what}"));
            assert!(error.starts_with("is ") && error.len() < 200, "{name}, {what}: {error}");
        }
    }
}

#[test]
fn sizes_are_checked_before_anything_is_decoded() {
    // A PNG header that announces 50,000 × 50,000 pixels, without any.
    let mut bomb = file("rgb.png");
    bomb[16..20].copy_from_slice(&50_000_u32.to_be_bytes());
    bomb[20..24].copy_from_slice(&50_000_u32.to_be_bytes());
    let sum = crc(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&sum.to_be_bytes());
    let limits = PictureLimits { pixels: 50_000_000, side: 1 << 20 };
    let (refused, peak) = pensieve_fuzz::peak_of(|| decode(&bomb, &limits));
    let error = refused.unwrap_err().to_string();
    assert_eq!(error, "has 50000 × 50000 pixels, more than the 50000000 allowed");
    assert!(peak < 1 << 20, "{peak} bytes were taken");
    // A GIF whose frame is larger than the picture.
    let mut gif = file("palette.gif");
    let colors = 3 << ((gif[10] & 7) + 1);
    let at = 13 + colors + gif[13 + colors..].iter().position(|byte| *byte == 0x2c).unwrap();
    gif[at + 5..at + 9].copy_from_slice(&[0x20, 0x4e, 0x20, 0x4e]);
    let (refused, peak) = pensieve_fuzz::peak_of(|| decode(&gif, &limits));
    assert!(refused.unwrap_err().to_string().ends_with("frame descriptor is out-of-bounds"));
    assert!(peak < 1 << 20, "{peak} bytes were taken");
    let small = PictureLimits { pixels: 23 * 14, side: 22 };
    assert_eq!(header(&file("rgb.jpg"), &small).unwrap_err().to_string(), "has 23 × 14 pixels, a side longer than 22");
    let few = PictureLimits { pixels: 23 * 14 - 1, side: 23 };
    assert!(header(&file("palette.gif"), &few).unwrap_err().to_string().starts_with("has 23 × 14 pixels, more than"));
}

/// The checksum of a PNG chunk.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 })
    })
}

#[test]
fn other_files_are_named() {
    for (bytes, expected) in [
        (&b""[..], "is empty"),
        (b"%PDF-1.7", "is a PDF file; send PNG, JPEG, WebP or GIF"),
        (b"<svg xmlns=", "is text or SVG; send PNG, JPEG, WebP or GIF"),
        (b"\0\0\0\x18ftypheic", "is a HEIC, AVIF or MP4 file; send PNG, JPEG, WebP or GIF"),
        (b"hello", "is not a PNG, JPEG, WebP or GIF file"),
    ] {
        assert_eq!(header(bytes, &LIMITS).unwrap_err().to_string(), expected);
    }
}

#[test]
fn bytes_changed_at_random_end_in_a_picture_or_an_error() {
    let names =
        ["rgba.png", "palette.png", "progressive.jpg", "cmyk.jpg", "rgba.webp", "lossy-alpha.webp", "animated.webp"];
    let names = names.into_iter().chain(["animated.gif", "turned-6.jpg", "turned.png"]);
    let mut random = fastrand::Rng::with_seed(28);
    let limits = PictureLimits { pixels: 1 << 16, side: 1024 };
    for name in names {
        let whole = file(name);
        for _ in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = match random.u8(..4) {
                    0 => 0,
                    1 => 255,
                    _ => random.u8(..),
                };
            }
            let (decoded, peak) = pensieve_fuzz::peak_of(|| decode(&bytes, &limits));
            assert!(peak < 64 << 20, "{name}: {peak} bytes were taken");
            if let Ok(picture) = decoded {
                assert_eq!(picture.pixels.len(), picture.width as usize * picture.height as usize * RGB, "{name}");
            }
        }
    }
}

#[test]
fn the_orientation_of_odd_metadata_is_upright() {
    for exif in [
        &b""[..],
        b"Exif\0\0",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0",
    ] {
        assert_eq!(Orientation::of(Some(exif)), Orientation::UPRIGHT, "{exif:?}");
    }
    let of = |value: u8| {
        let tag = [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", &[value][..], b"\0\0"].concat();
        Orientation::of(Some(&tag))
    };
    assert_eq!((of(9), of(0)), (Orientation::UPRIGHT, Orientation::UPRIGHT));
    assert_eq!(of(6).upright(3, 2), (2, 3));
}
