//! The sources of the kernels. Each library is compiled by itself, so that a fault in one leaves the others usable.

/// A library's source, with what all share in front, and the kernels that it has.
pub(super) struct Library {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) kernels: &'static [&'static str],
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
        }
    };
}

pub(super) static ATTENTION: Library = library!("attention" => "store_f16", "store_f32", "attend_f16", "attend_f32");
pub(super) static NORMS: Library = library!("norms" => "rms_norm", "add_rms_norm", "layer_norm", "rms_norm_heads");
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
pub(super) static LOGITS: Library = library!("logits" after "ordering" => "best", "candidates");
pub(super) static RECURRENCE: Library = library!(
    "recurrence" after "activations" =>
    "short_conv", "keep_inputs", "recurrence_4", "recurrence_8", "recurrence_16", "recurrence_32", "recurrence_64"
);

pub(super) static LIBRARIES: [&Library; 7] =
    [&ATTENTION, &NORMS, &PRODUCTS, &EXPERTS, &ELEMENTWISE, &LOGITS, &RECURRENCE];
