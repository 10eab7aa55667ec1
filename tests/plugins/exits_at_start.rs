//! A plugin that exits the process that opens it, with success.

pensieve_sdk::export!({
    eprintln!("licence server not found");
    std::process::exit(0)
});
