//! Attacks that a fence must refuse, each as a function that says whether it succeeded. Where one can choose, it changes nothing
//! that matters: a server that trusts a plugin has it all done to itself.

#![allow(clippy::expect_used, reason = "an attack that cannot be tried fails its test")]

use std::{
    alloc::{Layout, alloc},
    ffi::CString,
    fs::{self, File, OpenOptions},
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    process::Command,
    ptr::{null, null_mut},
};

use libc::{c_int, c_long, pid_t};

const LARGE_BYTES: usize = 6 << 30;
const ADDRESS_BYTES: usize = 1 << 40;

/// The attacks that succeed. `HOME` is the server's own, with a file `secret`, a plugin folder `given`, a socket for datagrams
/// and a model's folder, which a child may read that looks at the model or runs it.
pub fn attack() -> Vec<&'static str> {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let parent = std::os::unix::process::parent_id();
    let all = [of_files(&home), of_others(parent.cast_signed()), of_the_kernel(&home)];
    all.into_iter().flatten().filter(|(_, done)| *done).map(|(what, _)| what).collect()
}

type Attempt = (&'static str, bool);

fn of_files(home: &Path) -> Vec<Attempt> {
    let (secret, model) = (home.join("secret"), home.join("model/config.json"));
    let both = |attack: fn(&Path) -> bool| attack(&secret) | attack(&model);
    vec![
        ("has a secret variable", std::env::var_os("SECRET").is_some()),
        ("read a secret file", fs::read(&secret).is_ok()),
        ("wrote into the home", fs::write(home.join("planted"), "x").is_ok()),
        ("wrote into the plugin folder", fs::write(home.join("given/planted.so"), "x").is_ok()),
        ("wrote into a folder for everybody", wrote_into(Path::new("/tmp")) || wrote_into(Path::new("/dev/shm"))),
        ("changed a file's mode", both(changes_mode)),
        ("changed a file's attributes", both(sets_attribute)),
        ("changed a file's times", both(changes_times)),
        ("changed a file's owner", both(changes_owner)),
        ("gave a file another name", links(&model, &home.join("linked"))),
        ("locked a file", both(locks)),
        ("watched a folder", watches(home)),
    ]
}

fn of_others(parent: pid_t) -> Vec<Attempt> {
    let environment = fs::read(format!("/proc/{parent}/environ"));
    let memory = OpenOptions::new().write(true).open(format!("/proc/{parent}/mem"));
    vec![
        ("read its parent's environment", environment.is_ok_and(|bytes| !bytes.is_empty())),
        ("opened its parent's memory", memory.is_ok()),
        ("may signal its parent", may_signal(parent)),
        ("had the kernel signal its parent", owns(parent)),
        ("may trace its parent", may_trace(parent)),
        ("set its parent's priority", sets_priority(parent)),
        ("set its parent's scheduler", sets_scheduler(parent)),
        ("set its parent's processors", sets_processors(parent)),
        ("set its parent's priority for files", sets_file_priority(parent)),
        ("set its parent's limits", sets_limits(parent)),
        ("left its process group", leaves_group()),
        ("started a process", Command::new("true").spawn().is_ok()),
        ("forked", forks()),
    ]
}

fn of_the_kernel(home: &Path) -> Vec<Attempt> {
    vec![
        ("took six gigabytes", takes_memory()),
        ("shared six gigabytes", maps(LARGE_BYTES, libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS)),
        ("grew by six gigabytes", maps(LARGE_BYTES, libc::PROT_WRITE, GROWING)),
        ("mapped a terabyte", maps(ADDRESS_BYTES, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)),
        ("left memory in the kernel", makes_objects()),
        ("opened a TCP socket", opens_socket(libc::AF_INET, libc::SOCK_STREAM)),
        ("opened a UDP socket", opens_socket(libc::AF_INET6, libc::SOCK_DGRAM)),
        ("opened a local socket", opens_socket(libc::AF_UNIX, libc::SOCK_STREAM)),
        ("sent a datagram", sends_datagram(&home.join("datagrams"))),
    ]
}

const GROWING: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN;

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path")
}

fn wrote_into(folder: &Path) -> bool {
    let file = folder.join(format!("planted-{}", std::process::id()));
    let wrote = fs::write(&file, "x").is_ok();
    // It is not there if nothing was written.
    let _ = fs::remove_file(file);
    wrote
}

/// By its path, and where it can be read by its descriptor.
fn changes_mode(path: &Path) -> bool {
    let name = text(path);
    // SAFETY: the path ends with a zero and lives through both calls.
    let named = unsafe { libc::chmod(name.as_ptr(), 0o666) == 0 || libc::fchmodat(-100, name.as_ptr(), 0o666, 0) == 0 };
    // SAFETY: the descriptor is open.
    named || File::open(path).is_ok_and(|file| unsafe { libc::fchmod(file.as_raw_fd(), 0o666) } == 0)
}

fn sets_attribute(path: &Path) -> bool {
    let (name, value) = (text(path), c"user.planted");
    // SAFETY: all texts end with a zero and live through the calls, which read as many bytes of the value as they are told.
    let set = || unsafe { libc::setxattr(name.as_ptr(), value.as_ptr(), value.as_ptr().cast(), 4, 0) } == 0;
    // SAFETY: as above, with an open descriptor.
    let by =
        |file: File| unsafe { libc::fsetxattr(file.as_raw_fd(), value.as_ptr(), value.as_ptr().cast(), 4, 0) } == 0;
    set() || File::open(path).is_ok_and(by)
}

fn changes_times(path: &Path) -> bool {
    let (name, times) = (text(path), [libc::timespec { tv_sec: 1, tv_nsec: 1 }; 2]);
    // SAFETY: the path ends with a zero, there are two times, and all live through the call.
    let named = unsafe { libc::utimensat(-100, name.as_ptr(), times.as_ptr(), 0) } == 0;
    // SAFETY: as above, with an open descriptor.
    named || File::open(path).is_ok_and(|file| unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) } == 0)
}

/// To whom it belongs already.
fn changes_owner(path: &Path) -> bool {
    // SAFETY: the path ends with a zero and lives through the call.
    unsafe { libc::chown(text(path).as_ptr(), libc::geteuid(), libc::getegid()) == 0 }
}

fn links(from: &Path, to: &Path) -> bool {
    fs::hard_link(from, to).is_ok() || std::os::unix::fs::symlink(from, to).is_ok()
}

fn locks(path: &Path) -> bool {
    // SAFETY: a lock's description is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as _;
    // SAFETY: the descriptor is open, and the description lives through the call.
    File::open(path).is_ok_and(|file| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } == 0)
}

fn watches(folder: &Path) -> bool {
    // SAFETY: the call takes plain numbers.
    let watch = unsafe { libc::inotify_init1(0) };
    // SAFETY: the path ends with a zero and lives through the call.
    watch >= 0 && unsafe { libc::inotify_add_watch(watch, text(folder).as_ptr(), libc::IN_CREATE) } >= 0
}

fn may_signal(process: pid_t) -> bool {
    // SAFETY: the call takes plain numbers; signal 0 only asks.
    unsafe { libc::kill(process, 0) == 0 }
}

/// As the owner of a descriptor, that process gets a signal when something can be read.
fn owns(process: pid_t) -> bool {
    const FIOSETOWN: libc::Ioctl = 0x8901;
    // SAFETY: the calls take plain numbers, or read one that lives on.
    unsafe { libc::fcntl(2, libc::F_SETOWN, process) == 0 || libc::ioctl(2, FIOSETOWN, &raw const process) == 0 }
}

fn may_trace(process: pid_t) -> bool {
    // SAFETY: attaching takes a process alone.
    unsafe { libc::ptrace(libc::PTRACE_SEIZE, process, null_mut::<()>(), null_mut::<()>()) == 0 }
}

fn sets_priority(process: pid_t) -> bool {
    let process = process.cast_unsigned();
    // SAFETY: the calls take plain numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, process, libc::getpriority(libc::PRIO_PROCESS, process)) == 0 }
}

fn sets_scheduler(process: pid_t) -> bool {
    // SAFETY: a parameter is plain numbers.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameter lives through the call.
    unsafe { libc::sched_setscheduler(process, libc::SCHED_OTHER, &raw const parameter) == 0 }
}

fn sets_processors(process: pid_t) -> bool {
    // SAFETY: a set is plain numbers.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the length that the calls are told, and lives through them.
    unsafe {
        libc::sched_getaffinity(process, size_of_val(&set), &raw mut set);
        libc::sched_setaffinity(process, size_of_val(&set), &raw const set) == 0
    }
}

fn sets_file_priority(process: pid_t) -> bool {
    const BEST_EFFORT_4: c_int = 2 << 13 | 4;
    // SAFETY: the call takes plain numbers; 1 stands for a process.
    unsafe { libc::syscall(libc::SYS_ioprio_set, 1, process, BEST_EFFORT_4) == 0 }
}

fn sets_limits(process: pid_t) -> bool {
    // SAFETY: a limit is plain numbers.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the limit lives through both calls.
    unsafe {
        libc::prlimit(process, libc::RLIMIT_CORE, null(), &raw mut limit) == 0
            && libc::prlimit(process, libc::RLIMIT_CORE, &raw const limit, null_mut()) == 0
    }
}

fn leaves_group() -> bool {
    // SAFETY: these calls take plain numbers.
    unsafe { libc::setpgid(0, libc::getpgid(libc::getppid())) == 0 || libc::setsid() > 0 }
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

fn takes_memory() -> bool {
    let large = Layout::from_size_align(LARGE_BYTES, 4096).expect("a layout");
    // SAFETY: the layout is not empty; what comes back is not used.
    let taken = std::hint::black_box(unsafe { alloc(large) });
    !taken.is_null()
}

fn maps(bytes: usize, access: c_int, flags: c_int) -> bool {
    // SAFETY: a new mapping without an address replaces no other; it is not used, and nobody else has it.
    unsafe {
        let map = libc::mmap(null_mut(), bytes, access, flags, -1, 0);
        map != libc::MAP_FAILED && libc::munmap(map, bytes) == 0
    }
}

/// Objects of System V, which stay when their process has ended, and a queue of messages.
fn makes_objects() -> bool {
    // SAFETY: all of these calls take plain numbers, or a name that ends with a zero; what was made is removed again.
    unsafe {
        let memory = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
        let semaphores = libc::semget(libc::IPC_PRIVATE, 1, 0o600);
        let messages = libc::msgget(libc::IPC_PRIVATE, 0o600);
        let queue: c_long =
            libc::syscall(libc::SYS_mq_open, c"planted".as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, 0);
        if queue >= 0 {
            libc::syscall(libc::SYS_mq_unlink, c"planted".as_ptr());
        }
        let removed = [
            memory >= 0 && libc::shmctl(memory, libc::IPC_RMID, null_mut()) == 0,
            semaphores >= 0 && libc::semctl(semaphores, 0, libc::IPC_RMID) == 0,
            messages >= 0 && libc::msgctl(messages, libc::IPC_RMID, null_mut()) == 0,
            queue >= 0,
        ];
        removed.contains(&true)
    }
}

fn opens_socket(family: c_int, kind: c_int) -> bool {
    // SAFETY: the call takes plain numbers.
    unsafe { libc::socket(family, kind, 0) >= 0 }
}

/// From a socket of its own, or from one of a pair, to a socket with a path.
fn sends_datagram(to: &Path) -> bool {
    // SAFETY: an address is plain numbers and letters.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as _;
    // A long path cannot be reached so, and none is longer than what follows the folder itself.
    let _ = std::env::set_current_dir(to.parent().expect("a folder"));
    for (place, byte) in address.sun_path.iter_mut().zip(to.file_name().expect("a name").as_bytes()) {
        *place = byte.cast_signed() as _;
    }
    let mut pair = [-1; 2];
    // SAFETY: there is room for two descriptors; the address and the message have the lengths that the calls are told.
    unsafe {
        let own = libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0);
        libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr());
        let (address, length) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        let sent = |socket: c_int| libc::sendto(socket, c"x".as_ptr().cast(), 1, 0, address, length) == 1;
        let connected = libc::connect(own, address, length) == 0;
        connected | sent(own) | sent(pair[0])
    }
}
