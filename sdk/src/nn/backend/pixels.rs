//! Patches of an image, as bytes and as the rows of values that a tower embeds.

/// Patches of pixels, each with red, green and blue, and what their bytes become.
pub(in crate::nn) struct PixelPatches<'a> {
    pub(in crate::nn) bytes: &'a [u8],
    /// Pixels of a patch.
    pub(in crate::nn) area: usize,
    /// The values of all bytes of a color, color by color.
    pub(in crate::nn) values: &'a [f32],
    /// The colors of a patch follow one another in its row, instead of those of a pixel.
    pub(in crate::nn) is_planar: bool,
}

impl PixelPatches<'_> {
    /// Values of a row.
    pub(super) fn width(&self) -> usize {
        3 * self.area
    }

    /// Rows and values of a row.
    pub(super) fn shape(&self) -> (usize, usize) {
        (self.bytes.len() / self.width(), self.width())
    }

    /// Writes the values of a patch.
    pub(super) fn write_row(&self, index: usize, row: &mut [f32]) {
        let (pixels, _) = self.bytes[index * self.width()..(index + 1) * self.width()].as_chunks::<3>();
        let (colors, _) = self.values.as_chunks::<256>();
        for (color, values) in colors.iter().enumerate() {
            let of_pixels = pixels.iter().map(|pixel| values[usize::from(pixel[color])]);
            if self.is_planar {
                row[color * self.area..].iter_mut().zip(of_pixels).for_each(|(out, value)| *out = value);
            } else {
                row[color..].iter_mut().step_by(3).zip(of_pixels).for_each(|(out, value)| *out = value);
            }
        }
    }
}
