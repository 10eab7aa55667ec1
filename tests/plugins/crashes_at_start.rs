//! A plugin that reads where nothing is, as soon as somebody opens it.

pensieve_sdk::export!({
    // SAFETY: there is none; the crash is what is wanted.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    pensieve_sdk::Plugin::new("crashes-at-start", "never seen")
});
