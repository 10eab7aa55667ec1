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

pub(super) static ATTENTION: Library = library!("attention" => "store_f16", "store_f32", "attend_f16", "attend_f32");
pub(super) static NORMS: Library = library!("norms" => "add_rms_norm");

pub(super) static LIBRARIES: [&Library; 2] = [&ATTENTION, &NORMS];
