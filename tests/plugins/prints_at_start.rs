//! A sound plugin that talks while it is opened, and leaves a process behind that holds on to its pipes.

pensieve_sdk::export!({
    println!("{{\"manifest\": \"hello\"}}");
    eprintln!("hello");
    let _ = std::process::Command::new("sleep").arg("31536").spawn();
    pensieve_sdk::Plugin::new("prints-at-start", "talks")
});
