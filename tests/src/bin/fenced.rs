//! A child of any kind behind the fence, without a server: it tries the attacks, or every existing system call, and
//! prints which succeeded. `fenced around WHAT` starts it with the policy in the variable `POLICY`, so that its parent
//! runs as the same user.

#![allow(clippy::unwrap_used, reason = "what fails here fails its test")]

#[cfg(any(target_os = "linux", target_os = "macos"))]
#[path = "../../plugins/attacks.rs"]
mod attacks;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "fenced/survey.rs"]
mod survey;

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["around", what] = words[..] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.arg(what).env(pensieve_protocol::fence::VARIABLE, std::env::var_os("POLICY").unwrap());
        let status = child.env_remove("POLICY").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    pensieve_worker::fence::enter_from_environment(None).unwrap();
    let fenced = pensieve_worker::fence::entered();
    fenced.missing.iter().chain(&fenced.notes).for_each(|what| println!("without {what}"));
    match words[..] {
        ["attack"] => attacks::attack().iter().for_each(|what| println!("{what}")),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        ["survey"] => survey::all().iter().for_each(|line| println!("{line}")),
        _ => panic!("usage: fenced attack | survey | around WHAT"),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn main() {}
