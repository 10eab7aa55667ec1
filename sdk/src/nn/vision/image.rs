//! Decoded images, and resizing to the last bit as reference processors do it: bilinear and bicubic like torchvision's
//! resizing of bytes with antialiasing, Lanczos like Pillow's (up to version 12; 13 sometimes takes columns first). Both go
//! over the rows first and then over the columns, and round to bytes in between; they differ in the precision of their
//! fixed-point weights.

use std::f64::consts::PI;

use crate::{Error, MediaItem, MediaKind, Result};

/// Fractional bits of Pillow's weights.
const PILLOW_BITS: u32 = 22;
/// torchvision's weights are 16-bit integers, with as many fractional bits as the largest of them allows.
const TORCH_BITS_MAX: u32 = 22;

/// An image of three bytes a pixel, the top row first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

/// A filter, with the number that Pillow and processors' files give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resample {
    /// Windowed sinc over three pixels to either side.
    Lanczos = 1,
    /// Linear interpolation.
    Bilinear = 2,
    /// Cubic convolution over two pixels to either side.
    Bicubic = 3,
}

impl Resample {
    /// The filter of this number in a processor's file.
    pub fn of(number: usize) -> Result<Self> {
        match number {
            1 => Ok(Self::Lanczos),
            2 => Ok(Self::Bilinear),
            3 => Ok(Self::Bicubic),
            _ => Err(Error::unsupported(format!("the image processor resizes by filter {number}"))
                .help("known are 1 (Lanczos), 2 (bilinear) and 3 (bicubic)")),
        }
    }

    /// How far from its center it sees, in pixels of the smaller image.
    fn support(self) -> f64 {
        match self {
            Self::Lanczos => 3.0,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

impl Image {
    /// The image of an item.
    pub fn of(item: &MediaItem<'_>) -> Result<Self> {
        let (width, height) = (item.size.width as usize, item.size.height as usize);
        Self::new(width, height, item.data.to_vec()).filter(|_| item.size.kind == MediaKind::Image).ok_or_else(|| {
            Error::invalid(format!("{} bytes are no image of {width} by {height} pixels", item.data.len()))
        })
    }

    /// An image of these pixels; `None` if there are more or fewer than its sides say, or none.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Option<Self> {
        let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(3));
        (bytes == Some(pixels.len()) && !pixels.is_empty()).then_some(Self { width, height, pixels })
    }

    /// Pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Red, green and blue of each pixel.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// A part of the image, or as much of it as the image has.
    #[must_use]
    pub fn crop(&self, left: usize, top: usize, width: usize, height: usize) -> Self {
        let (left, top) = (left.min(self.width - 1), top.min(self.height - 1));
        let (width, height) = (width.clamp(1, self.width - left), height.clamp(1, self.height - top));
        let row = |row: usize| {
            let start = 3 * (row * self.width + left);
            &self.pixels[start..start + 3 * width]
        };
        Self { width, height, pixels: (top..top + height).flat_map(row).copied().collect() }
    }

    /// The image in another size, at least one pixel to a side.
    #[must_use]
    pub fn resized(&self, width: usize, height: usize, resample: Resample) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        let mut image = self.clone();
        if width != self.width {
            image = image.stretched(&Taps::of(self.width, width, resample));
        }
        if height != self.height {
            image = image.turned().stretched(&Taps::of(self.height, height, resample)).turned();
        }
        image
    }

    /// The image with rows of another length.
    fn stretched(&self, taps: &Taps) -> Self {
        let width = taps.ranges.len();
        let mut pixels = Vec::with_capacity(self.height * width * 3);
        let half = 1_i64 << (taps.bits - 1);
        for row in self.pixels.chunks_exact(3 * self.width) {
            for (start, weights) in &taps.ranges {
                let mut sums = [half; 3];
                for (pixel, weight) in row[3 * start..].chunks_exact(3).zip(weights) {
                    for (sum, byte) in sums.iter_mut().zip(pixel) {
                        *sum += i64::from(*byte) * weight;
                    }
                }
                pixels.extend(sums.map(|sum| (sum >> taps.bits).clamp(0, 255) as u8));
            }
        }
        Self { width, height: self.height, pixels }
    }

    /// The image with rows and columns exchanged.
    fn turned(&self) -> Self {
        let mut pixels = vec![0; self.pixels.len()];
        for (row, line) in self.pixels.chunks_exact(3 * self.width).enumerate() {
            for (column, pixel) in line.chunks_exact(3).enumerate() {
                let start = 3 * (column * self.height + row);
                pixels[start..start + 3].copy_from_slice(pixel);
            }
        }
        Self { width: self.height, height: self.width, pixels }
    }
}

/// For each pixel of a resized row the pixels that it is made of.
struct Taps {
    /// The first pixel, and the weights from there on.
    ranges: Vec<(usize, Vec<i64>)>,
    /// Fractional bits of the weights.
    bits: u32,
}

impl Taps {
    fn of(from: usize, to: usize, resample: Resample) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = resample.support() * stretch;
        let range = |index: usize| {
            let center = (index as f64 + 0.5) * scale;
            let start = ((center - support + 0.5) as i64).max(0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let weight = |at: usize| resample.weight((at as f64 - center + 0.5) / stretch);
            let total: f64 = (start..end).map(weight).sum();
            (start, (start..end).map(|at| weight(at) / total).collect::<Vec<f64>>())
        };
        let ranges: Vec<_> = (0..to).map(range).collect();
        let bits = match resample {
            Resample::Lanczos => PILLOW_BITS,
            _ => torch_bits(ranges.iter().flat_map(|(_, weights)| weights).copied().fold(0.0, f64::max)),
        };
        let fixed = |weight: f64| {
            let scaled = weight * f64::from(1_u32 << bits);
            (scaled + if weight < 0.0 { -0.5 } else { 0.5 }) as i64
        };
        let fix = |(start, weights): (usize, Vec<f64>)| (start, weights.into_iter().map(fixed).collect());
        Self { ranges: ranges.into_iter().map(fix).collect(), bits }
    }
}

/// The most fractional bits with which weights of at most `weight_max` are 16-bit integers.
fn torch_bits(weight_max: f64) -> u32 {
    let fits = |bits: &u32| 0.5 + weight_max * f64::from(1_u32 << bits) < f64::from(1 << 15);
    (1..=TORCH_BITS_MAX).take_while(fits).last().unwrap_or(1)
}
