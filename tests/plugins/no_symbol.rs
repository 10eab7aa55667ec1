//! A shared library that is not a plugin.

/// The symbol of something else.
#[unsafe(no_mangle)]
pub extern "C" fn something_else() -> u32 {
    0
}
