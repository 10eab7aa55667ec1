//! A plugin that never comes back once somebody has opened it.

pensieve_sdk::export!({
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
});
