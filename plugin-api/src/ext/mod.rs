//! Extensions of contract 1, requested by id; one small file each.
//!
//! An extension is a table of functions: a plain `#[repr(C)]` struct that derives `StableAbi`, whose functions take the
//! object that offered it as their first argument. It comes with its own [`TypeLayout`], and the caller compares that
//! with the layout it was compiled against before it calls anything: a table that does not match its id is refused,
//! whichever side is older. A changed table gets a new id (`kv-transfer/2`), offered beside the old one.
//!
//! An id that begins with `draft/`, such as `draft/rows/1`, promises nothing yet: its table may change under the same
//! id. Once it is settled it is offered as `rows/1`.

pub mod concurrent_stages;
pub mod diagnostics;
pub mod kv_transfer;
pub mod media;
pub mod merge;
pub mod rows;
pub mod sampler_parameters;
pub mod sequence_state;
pub mod timeline;

use abi_stable::{
    StableAbi, abi_stability::check_layout_compatibility, sabi_types::RMut, std_types::RResult, type_layout::TypeLayout,
};
use std::fmt::Display;

use crate::{ErrorCode, PluginError};

/// A type-erased table of functions with its layout.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Extension {
    layout: &'static TypeLayout,
    table: *const (),
}

// SAFETY: the table is a `&'static T` of functions, made by `offer` from a `T: Sync`.
unsafe impl Send for Extension {}
// SAFETY: as above.
unsafe impl Sync for Extension {}

impl Extension {
    /// Offers a table. Its functions may cast the object they are given only to the type that offers it.
    pub fn offer<T: StableAbi + Sync>(table: &'static T) -> Self {
        Self { layout: T::LAYOUT, table: std::ptr::from_ref(table).cast() }
    }

    /// Returns the table as a `T`, if its layout is the one that this side was compiled with. Its functions need the
    /// object that offered it: every extension in this crate has an `of` that keeps the two together.
    pub fn table<T: StableAbi + Sync>(self, id: &str) -> Result<&'static T, PluginError> {
        if let RResult::RErr(difference) = check_layout_compatibility(T::LAYOUT, self.layout) {
            let message =
                format!("extension '{id}' does not have the layout that its id promises: {}", summary(&difference));
            return Err(PluginError::new(ErrorCode::INVALID, message)
                .with_help("rebuild the side whose plugin-api defines this extension otherwise"));
        }
        // SAFETY: the layout shows that the table is a `T` or a struct that can be read as one, and `offer` took a
        // `&'static T`; a plugin that forges a layout already runs in this process.
        Ok(unsafe { &*self.table.cast::<T>() })
    }
}

/// A checked table together with the object that offered it. Getting one compares the layouts, which takes some tens of
/// microseconds: little compared with what such an extension does.
pub struct Offered<'a, T: 'static> {
    table: &'static T,
    object: RMut<'a, ()>,
}

/// Shortens abi_stable's layout report, which fills pages with types along the way, to one line.
///
/// Each difference is a block `Error:…`, `Expected:`, `Found:`, after the fields that lead to it.
pub fn summary(report: &impl Display) -> String {
    const DIFFERENCES_MAX: usize = 3;
    let report = report.to_string();
    let lines: Vec<&str> = report.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let (mut field, mut differences) = ("", Vec::new());
    for (index, line) in lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix("field_name:") {
            field = name;
        } else if let Some(error) = line.strip_prefix("Error:") {
            let after = |heading| {
                let place = lines[index..].iter().position(|line| *line == heading);
                place.and_then(|place| lines.get(index + place + 1)).copied().unwrap_or("something else")
            };
            let place = if field.is_empty() { String::new() } else { format!("'{field}': ") };
            differences.push(format!("{place}{error} (expected {}, found {})", after("Expected:"), after("Found:")));
        }
    }
    differences.dedup();
    match differences.len() {
        0 => lines.join(" ").chars().take(200).collect(),
        count if count > DIFFERENCES_MAX => {
            format!("{}, and {} more", differences[..DIFFERENCES_MAX].join(", "), count - DIFFERENCES_MAX)
        }
        _ => differences.join(", "),
    }
}
