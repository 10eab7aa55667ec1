//! A plugin that attacks whenever its code runs: while it is inspected, while it looks at a checkpoint, and while it loads a
//! model. It tries what a fence has to refuse, and says what it achieved.

use std::{
    alloc::{Layout, alloc},
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::Command,
    ptr::null_mut,
};

use pensieve_sdk::{Architecture, Cache, Card, Error, LoadRequest, Model, Plugin, Result, Services, Source};

const LARGE_BYTES: usize = 6 << 30;

pensieve_sdk::export!({
    let achieved = format!("opened, it achieved [{}]", attack().join(", "));
    Plugin::new("hostile", achieved.leak()).architecture(Hostile)
});

struct Hostile;

impl Architecture for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["HostileForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let achieved = attack();
        if !achieved.is_empty() {
            return Err(Error::invalid(format!("asked about a checkpoint, it {}", achieved.join(", "))));
        }
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: 256,
            context: 1024,
            block_tokens: 16,
            caches: vec![Cache::Tokens { bytes: 64 }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: tokenizer(),
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: Vec::new(),
            formats: String::new(),
            facts: String::new(),
            fingerprint: source.path.display().to_string(),
        })
    }

    fn load(&self, _request: &LoadRequest, _services: &Services) -> Result<Box<dyn Model>> {
        Err(Error::invalid(format!("loaded, it achieved [{}]", attack().join(", "))))
    }
}

/// One of bytes.
fn tokenizer() -> String {
    let vocab: Vec<String> = (0..256).map(|byte| format!(r#""<0x{byte:02X}>":{byte}"#)).collect();
    format!(
        r#"{{"version":"1.0","added_tokens":[],"decoder":{{"type":"ByteFallback"}},"model":{{"type":"BPE","byte_fallback":true,"vocab":{{{}}},"merges":[]}}}}"#,
        vocab.join(",")
    )
}

/// What of all this succeeds. `HOME` is the server's own, with a file `secret` and a plugin folder `given`.
fn attack() -> Vec<&'static str> {
    let parent = std::os::unix::process::parent_id();
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let environment = fs::read(format!("/proc/{parent}/environ"));
    let memory = OpenOptions::new().write(true).open(format!("/proc/{parent}/mem"));
    let achieved = [
        ("read its parent's environment", environment.is_ok_and(|bytes| !bytes.is_empty())),
        ("opened its parent's memory", memory.is_ok()),
        ("has a secret variable", std::env::var_os("SECRET").is_some()),
        ("read a secret file", fs::read(home.join("secret")).is_ok()),
        ("wrote into the home", fs::write(home.join("planted"), "x").is_ok()),
        ("wrote into the plugin folder", fs::write(home.join("given/planted.so"), "x").is_ok()),
        ("wrote into a folder for everybody", wrote_into(Path::new("/tmp")) || wrote_into(Path::new("/dev/shm"))),
        ("took six gigabytes", takes_memory()),
        ("shared six gigabytes", maps(libc::MAP_SHARED | libc::MAP_ANONYMOUS)),
        ("grew by six gigabytes", maps(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN)),
        ("started a process", Command::new("true").spawn().is_ok()),
        ("forked", forks()),
        ("opened a TCP socket", opens_socket(libc::AF_INET, libc::SOCK_STREAM)),
        ("opened a UDP socket", opens_socket(libc::AF_INET6, libc::SOCK_DGRAM)),
        ("opened a local socket", opens_socket(libc::AF_UNIX, libc::SOCK_STREAM)),
        ("may signal its parent", may_signal(parent)),
        ("may trace its parent", may_trace(parent)),
        ("left its process group", leaves_group()),
    ];
    achieved.into_iter().filter(|(_, done)| *done).map(|(what, _)| what).collect()
}

fn wrote_into(folder: &Path) -> bool {
    let file = folder.join(format!("planted-{}", std::process::id()));
    let wrote = fs::write(&file, "x").is_ok();
    // It is not there if nothing was written.
    let _ = fs::remove_file(file);
    wrote
}

fn takes_memory() -> bool {
    let large = Layout::from_size_align(LARGE_BYTES, 4096).expect("a layout");
    // SAFETY: the layout is not empty; what comes back is not used.
    let taken = std::hint::black_box(unsafe { alloc(large) });
    !taken.is_null()
}

fn maps(flags: i32) -> bool {
    // SAFETY: a new mapping without an address replaces no other; it is not used.
    let map = unsafe { libc::mmap(null_mut(), LARGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    map != libc::MAP_FAILED
}

fn forks() -> bool {
    // SAFETY: the child does nothing but end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends the process and does not return.
        unsafe { libc::_exit(0) };
    }
    child > 0
}

fn opens_socket(family: i32, kind: i32) -> bool {
    // SAFETY: the call takes plain numbers.
    let socket = unsafe { libc::socket(family, kind, 0) };
    socket >= 0
}

fn may_signal(process: u32) -> bool {
    // SAFETY: the call takes plain numbers; signal 0 only asks.
    let sent = unsafe { libc::kill(process.cast_signed(), 0) };
    sent == 0
}

fn may_trace(process: u32) -> bool {
    let nothing = null_mut::<libc::c_void>();
    // SAFETY: attaching takes a process alone.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, process.cast_signed(), nothing, nothing) };
    if seized == -1 {
        return io::Error::last_os_error().raw_os_error() != Some(libc::EPERM);
    }
    true
}

fn leaves_group() -> bool {
    // SAFETY: these calls take plain numbers.
    let moved = unsafe { libc::setpgid(0, libc::getpgid(libc::getppid())) };
    moved == 0
}
