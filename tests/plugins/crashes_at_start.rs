//! A plugin that dereferences a null pointer as soon as it is opened.

pensieve_sdk::export!({
    // SAFETY: there is none; the crash is what is wanted.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    pensieve_sdk::Plugin::new("crashes-at-start", "never seen")
});
