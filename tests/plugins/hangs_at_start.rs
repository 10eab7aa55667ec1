//! A plugin whose constructor never returns.

pensieve_sdk::export!({
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
});
