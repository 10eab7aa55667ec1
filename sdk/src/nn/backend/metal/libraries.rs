//! The sources of the kernels. Each library is compiled by itself, so that a fault in one leaves the others usable.

/// A library's source, with what all share in front, and the kernels that it has.
pub(super) struct Library {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) kernels: &'static [&'static str],
}

/// `library!(FILE, … => KERNEL, …)` has its source in `FILE.metal`, and its name from the first one.
macro_rules! library {
    ($name:literal $(, $file:literal)* => $($kernel:literal),+ $(,)?) => {
        Library {
            name: $name,
            source: concat!(
                include_str!("common.metal"),
                include_str!(concat!($name, ".metal")),
                $(include_str!(concat!($file, ".metal"))),*
            ),
            kernels: &[$($kernel),+],
        }
    };
}

pub(super) static ATTENTION: Library = library!(
    "attention", "flash" =>
    "store_f16", "store_f32", "attend_f16", "attend_f32", "combine_parts",
    "flash_f16_64", "flash_f16_64_few",
    "flash_f16_80", "flash_f16_80_few",
    "flash_f16_96", "flash_f16_96_few",
    "flash_f16_128", "flash_f16_128_few",
    "flash_f16_192", "flash_f16_192_few",
    "flash_f16_256", "flash_f16_256_few",
    "flash_f16_512", "flash_f32_64",
    "flash_f32_64_few", "flash_f32_80",
    "flash_f32_80_few", "flash_f32_96",
    "flash_f32_96_few", "flash_f32_128",
    "flash_f32_128_few", "flash_f32_192",
    "flash_f32_192_few", "flash_f32_256",
    "flash_f32_256_few", "flash_f32_512",
);
pub(super) static NORMS: Library = library!("norms" => "add_rms_norm");

pub(super) static LIBRARIES: [&Library; 2] = [&ATTENTION, &NORMS];
