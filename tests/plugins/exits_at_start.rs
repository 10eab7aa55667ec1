//! A plugin that ends the process that opens it, and calls it a success.

pensieve_sdk::export!({
    eprintln!("licence server not found");
    std::process::exit(0)
});
