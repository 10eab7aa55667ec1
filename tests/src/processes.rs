//! Processes as the system shows them to others: whose children they are, how they were started, and how much memory they
//! take. Linux has this in `/proc`, macOS behind `ps` and libproc.

use std::{
    collections::HashSet,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// A process that runs. One that has ended and was not waited for yet is none.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// The program and its arguments. `ps` does not say where an argument ends: one with a space in it counts as two.
    pub arguments: Vec<String>,
}

pub fn all() -> Vec<Process> {
    if cfg!(target_os = "linux") { by_proc() } else { by_ps().expect("macOS has ps") }
}

/// The children of a process.
pub fn children(parent: u32) -> impl Iterator<Item = Process> {
    all().into_iter().filter(move |process| process.parent == parent)
}

/// The children of a server that run under a verb of the program.
pub fn under(verb: &str, server: u32) -> HashSet<u32> {
    let under = |process: &Process| process.arguments.get(1).is_some_and(|word| word == verb);
    children(server).filter(under).map(|process| process.pid).collect()
}

pub fn is_alive(pid: u32) -> bool {
    if cfg!(target_os = "linux") { process(pid).is_some() } else { all().iter().any(|process| process.pid == pid) }
}

/// Kills the children of a process, and waits until they have ended.
pub fn kill_children(parent: u32) {
    let killed: HashSet<u32> = children(parent).map(|process| process.pid).collect();
    assert!(!killed.is_empty());
    for child in &killed {
        // SAFETY: the call takes plain numbers; the server waits for its children, and at worst the signal finds no process.
        unsafe { libc::kill(child.cast_signed(), libc::SIGKILL) };
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while children(parent).any(|process| killed.contains(&process.pid)) {
        assert!(Instant::now() < deadline, "a killed process does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that a process has in memory, and the most that it ever had. On macOS it is the footprint, which leaves out the
/// pages of mapped files.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    pub peak: u64,
}

#[cfg(not(target_os = "macos"))]
pub fn memory(pid: u32) -> Option<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some(Memory { resident: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}

#[cfg(target_os = "macos")]
pub fn memory(pid: u32) -> Option<Memory> {
    // SAFETY: the structure is plain numbers.
    let mut usage: libc::rusage_info_v4 = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one of this flavor, and lives through the call.
    let failed = unsafe { libc::proc_pid_rusage(pid.cast_signed(), libc::RUSAGE_INFO_V4, (&raw mut usage).cast()) };
    (failed == 0).then_some(Memory { resident: usage.ri_phys_footprint, peak: usage.ri_lifetime_max_phys_footprint })
}

/// Every process in `/proc`; none where there is no such folder.
fn by_proc() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // State and parent; the name in brackets before them may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = String::from_utf8_lossy(&arguments);
    let arguments = arguments.split_terminator('\0').map(str::to_owned).collect();
    (!matches!(state, "Z" | "X")).then_some(Process { pid, parent, arguments })
}

/// Every process as `ps` lists it; nothing without the program.
fn by_ps() -> Option<Vec<Process>> {
    let output = Command::new("ps").args(["-axww", "-o", "pid=,ppid=,state=,args="]).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let process = |line: &str| {
        let mut words = line.split_whitespace();
        let (pid, parent) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let runs = !words.next()?.starts_with('Z');
        runs.then(|| Process { pid, parent, arguments: words.map(str::to_owned).collect() })
    };
    Some(text.lines().filter_map(process).collect())
}

#[test]
fn a_child_is_seen_until_it_has_ended() {
    let mut child = Command::new("sleep").arg("31537").spawn().unwrap();
    let (own, pid) = (std::process::id(), child.id());
    // The kernel lets the parent go on just before the new program's arguments can be read.
    let deadline = Instant::now() + Duration::from_secs(20);
    while all().iter().any(|process| process.pid == pid && process.arguments.is_empty()) {
        assert!(Instant::now() < deadline, "it has no arguments");
        thread::sleep(Duration::from_millis(5));
    }
    let listings = [Some(all()), by_ps()];
    if listings[1].is_none() {
        println!("skipped: no ps to compare with /proc");
    }
    for listing in listings.into_iter().flatten() {
        let found = listing.iter().find(|process| process.pid == pid).unwrap();
        assert_eq!((found.parent, &*found.arguments), (own, &["sleep", "31537"].map(str::to_owned)[..]));
        assert!(listing.iter().any(|process| process.pid == own));
    }
    assert!(is_alive(pid) && under("31537", own).contains(&pid));
    child.kill().unwrap();
    // It has not been waited for yet, so it is a zombie.
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_alive(pid) || by_ps().is_some_and(|listing| listing.iter().any(|process| process.pid == pid)) {
        assert!(Instant::now() < deadline, "it is still there");
        thread::sleep(Duration::from_millis(5));
    }
    child.wait().unwrap();
}

#[test]
fn memory_is_what_a_process_has_taken() {
    let own = || memory(std::process::id()).unwrap();
    let taken = std::hint::black_box(vec![1_u8; 256 << 20]);
    let with = own();
    assert!(with.resident >= 256 << 20 && with.peak >= with.resident, "{with:?}");
    drop(taken);
    assert!(own().peak >= 256 << 20);
    assert!(memory(u32::MAX >> 1).is_none());
}

/// Processor time that a process has used.
#[cfg(target_os = "linux")]
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in brackets may contain anything.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    // SAFETY: a query without memory.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap();
    Duration::from_millis(ticks * 1000 / per_second)
}
