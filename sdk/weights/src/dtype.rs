//! How a tensor's values are stored, and how many bytes they take.
//!
//! Quantized formats store rows in blocks: a fixed number of values shares its scales, so a row must be a whole number
//! of blocks. Every size that a reader checks or a kernel walks comes from the table in this file, and every sum here
//! is checked for overflow, as shapes come from untrusted files.

use std::fmt;

/// Storage formats that the kernels can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum Dtype {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    MXFP4,
    IQ4NL,
    IQ4XS,
    IQ3XXS,
    IQ3S,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ1S,
    IQ1M,
    TQ1_0,
    TQ2_0,
    /// Unpacked from packed weights in safetensors; no file has this format or the next two.
    Int4,
    Int8,
    Fp8,
}

impl Dtype {
    /// Every format, for messages and tests.
    pub const ALL: [Self; 28] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::MXFP4,
        Self::IQ4NL,
        Self::IQ4XS,
        Self::IQ3XXS,
        Self::IQ3S,
        Self::IQ2XXS,
        Self::IQ2XS,
        Self::IQ2S,
        Self::IQ1S,
        Self::IQ1M,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::Int4,
        Self::Int8,
        Self::Fp8,
    ];

    /// True for formats of GGUF files; false for those that only the SDK makes.
    pub fn is_in_files(self) -> bool {
        !matches!(self, Self::Int4 | Self::Int8 | Self::Fp8)
    }

    /// The name that model files use.
    pub fn name(self) -> &'static str {
        self.layout().0
    }

    /// Values per block; 1 for dense formats.
    pub fn block_len(self) -> usize {
        self.layout().1
    }

    /// Bytes per block; the size of one value for dense formats.
    pub fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// True for block formats, whose values share scales and cannot be addressed individually.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of one row; `None` if `cols` is not a whole number of blocks, or on overflow.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes of a whole tensor whose last dimension is a row; `None` as in [`Dtype::row_bytes`].
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<usize> {
        let (cols, outer) = shape.split_last().map_or((1, shape), |(cols, outer)| (*cols, outer));
        let row = self.row_bytes(cols)?;
        outer.iter().try_fold(row, |bytes, dimension| bytes.checked_mul(*dimension))
    }

    /// Name, values per block, bytes per block.
    fn layout(self) -> (&'static str, usize, usize) {
        match self {
            Self::F32 => ("F32", 1, 4),
            Self::F16 => ("F16", 1, 2),
            Self::BF16 => ("BF16", 1, 2),
            Self::Q4_0 => ("Q4_0", 32, 18),
            Self::Q4_1 => ("Q4_1", 32, 20),
            Self::Q5_0 => ("Q5_0", 32, 22),
            Self::Q5_1 => ("Q5_1", 32, 24),
            Self::Q8_0 => ("Q8_0", 32, 34),
            Self::Q2K => ("Q2_K", 256, 84),
            Self::Q3K => ("Q3_K", 256, 110),
            Self::Q4K => ("Q4_K", 256, 144),
            Self::Q5K => ("Q5_K", 256, 176),
            Self::Q6K => ("Q6_K", 256, 210),
            Self::MXFP4 => ("MXFP4", 32, 17),
            Self::IQ4NL => ("IQ4_NL", 32, 18),
            Self::IQ4XS => ("IQ4_XS", 256, 136),
            Self::IQ3XXS => ("IQ3_XXS", 256, 98),
            Self::IQ3S => ("IQ3_S", 256, 110),
            Self::IQ2XXS => ("IQ2_XXS", 256, 66),
            Self::IQ2XS => ("IQ2_XS", 256, 74),
            Self::IQ2S => ("IQ2_S", 256, 82),
            Self::IQ1S => ("IQ1_S", 256, 50),
            Self::IQ1M => ("IQ1_M", 256, 56),
            Self::TQ1_0 => ("TQ1_0", 256, 54),
            Self::TQ2_0 => ("TQ2_0", 256, 66),
            Self::Int4 => ("INT4", 32, 21),
            Self::Int8 => ("INT8", 32, 36),
            Self::Fp8 => ("FP8", 32, 36),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_rows_in_whole_blocks() {
        assert_eq!(Dtype::F32.row_bytes(3), Some(12));
        assert_eq!(Dtype::Q4_0.row_bytes(64), Some(36));
        assert_eq!(Dtype::Q4_0.row_bytes(33), None);
        assert_eq!(Dtype::Q6K.row_bytes(512), Some(420));
        assert_eq!(Dtype::Q8_0.row_bytes(0), Some(0));
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        assert_eq!(Dtype::F32.row_bytes(usize::MAX), None);
        assert_eq!(Dtype::F16.tensor_bytes(&[usize::MAX, 2]), None);
        assert_eq!(Dtype::F16.tensor_bytes(&[3, 4]), Some(24));
        assert_eq!(Dtype::F32.tensor_bytes(&[]), Some(4));
    }

    #[test]
    fn only_block_formats_are_quantized() {
        let dense: Vec<_> = Dtype::ALL.into_iter().filter(|dtype| !dtype.is_quantized()).collect();
        assert_eq!(dense, [Dtype::F32, Dtype::F16, Dtype::BF16]);
    }
}
