//! A plugin that attacks while it is opened: it tries what a fence has to refuse, says what it achieved, and ends its process.

use std::{
    alloc::{Layout, alloc},
    fs::{self, OpenOptions},
    net::{TcpListener, UdpSocket},
    path::Path,
    process::{Command, exit},
};

fn attack() -> Vec<&'static str> {
    let parent = std::os::unix::process::parent_id();
    let own_file = std::env::args().next_back().unwrap_or_default();
    // The copy lies in HOME/cache/plugins.
    let home = Path::new(&own_file).ancestors().nth(3).unwrap_or(Path::new("/"));
    let environment = fs::read(format!("/proc/{parent}/environ"));
    let memory = OpenOptions::new().write(true).open(format!("/proc/{parent}/mem"));
    let large = Layout::from_size_align(6 << 30, 4096).expect("a layout");
    // SAFETY: the layout is not empty; what comes back is not used.
    let large = std::hint::black_box(unsafe { alloc(large) });
    // SAFETY: these calls take plain numbers, and signal 0 only asks whether one may be sent.
    let (signal, session) = unsafe { (libc::kill(parent.cast_signed(), 0), libc::setsid()) };
    let achieved = [
        ("read its parent's environment", environment.is_ok_and(|bytes| !bytes.is_empty())),
        ("opened its parent's memory", memory.is_ok()),
        ("read a secret file", fs::read(home.join("secret")).is_ok()),
        ("wrote into the home", fs::write(home.join("planted"), "x").is_ok()),
        ("wrote beside itself", fs::write(format!("{own_file}.planted"), "x").is_ok()),
        ("took six gigabytes", !large.is_null()),
        ("started a process", Command::new("sleep").arg("31537").spawn().is_ok()),
        ("listened over TCP", TcpListener::bind("127.0.0.1:0").is_ok()),
        ("opened a UDP socket", UdpSocket::bind("127.0.0.1:0").is_ok()),
        ("may signal its parent", signal == 0),
        ("left its process group", session != -1),
    ];
    achieved.into_iter().filter(|(_, done)| *done).map(|(what, _)| what).collect()
}

pensieve_sdk::export!({
    eprintln!("achieved: [{}]", attack().join(", "));
    exit(0)
});
