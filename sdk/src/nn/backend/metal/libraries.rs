//! The sources of the kernels. Each library is compiled by itself, so that a fault in one leaves the others usable.

/// The compiler's assumptions about numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Math {
    /// None is infinite or NaN, and operations may be reordered: Metal's default.
    Fast,
    /// As IEEE 754 has it, for kernels to which infinities and NaN are data.
    Safe,
}

/// A library's source, with what all share in front, and the kernels that it has.
pub(super) struct Library {
    /// For errors of the compiler.
    #[cfg_attr(not(target_os = "macos"), allow(dead_code))]
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) kernels: &'static [&'static str],
    #[cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]
    pub(super) math: Math,
}

/// `library!(FILE, … after PART, … => KERNEL, …)` has its source in `FILE.metal`, behind the parts that it builds on, and its name
/// from the first file.
macro_rules! library {
    ($name:literal $(, $file:literal)* $(after $($part:literal),+)? => $($kernel:literal),+ $(,)?) => {
        Library {
            name: $name,
            source: concat!(
                include_str!("common.metal"),
                $($(include_str!(concat!($part, ".metal")),)+)?
                include_str!(concat!($name, ".metal")),
                $(include_str!(concat!($file, ".metal"))),*
            ),
            kernels: &[$($kernel),+],
            math: Math::Fast,
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
pub(super) static NORMS: Library = library!("norms" => "rms_norm", "layer_norm", "rms_norm_heads");
pub(super) static PRODUCTS: Library = library!(
    "products" after "formats", "activations", "tiles" =>
    "product_1", "product_2", "product_4", "product_8", "product_many", "embed"
);
pub(super) static EXPERTS: Library = library!(
    "experts" after "formats", "activations", "ordering", "tiles" =>
    "route", "sort_choices", "experts_1", "experts_8", "experts_many", "combine"
);
pub(super) static ELEMENTWISE: Library =
    library!("elementwise" after "activations" => "add", "gate", "bias_act_scale", "columns");
pub(super) static LOGITS: Library =
    Library { math: Math::Safe, ..library!("logits" after "ordering" => "best", "candidates") };
pub(super) static RECURRENCE: Library = library!(
    "recurrence" after "activations" =>
    "short_conv", "keep_inputs", "recurrence_4", "recurrence_8", "recurrence_16", "recurrence_32", "recurrence_64"
);

pub(super) static LIBRARIES: [&Library; 7] =
    [&ATTENTION, &NORMS, &PRODUCTS, &EXPERTS, &ELEMENTWISE, &LOGITS, &RECURRENCE];
