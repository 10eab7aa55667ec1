//! Attacks that a fence must refuse, each as a function that says whether it succeeded. Where one can choose, it changes nothing
//! that matters: a server that trusts a plugin has it all done to itself.

#![allow(clippy::expect_used, reason = "an attack that cannot be tried fails its test")]

#[cfg_attr(target_os = "macos", path = "attacks_on_macos.rs")]
#[cfg_attr(not(target_os = "macos"), path = "attacks_on_linux.rs")]
mod system;

use std::{
    alloc::{Layout, alloc},
    ffi::CString,
    fs::{self, File},
    net::TcpListener,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    process::Command,
    ptr::null_mut,
};

use libc::{c_int, pid_t};

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
    let planted = format!("planted{}", std::env::consts::DLL_SUFFIX);
    let both = |attack: fn(&Path) -> bool| attack(&secret) | attack(&model);
    let mut all = vec![
        ("has a secret variable", std::env::var_os("SECRET").is_some()),
        ("read a secret file", fs::read(&secret).is_ok()),
        ("wrote into the home", fs::write(home.join("planted"), "x").is_ok()),
        ("wrote into the plugin folder", fs::write(home.join("given").join(planted), "x").is_ok()),
        ("wrote into a folder for everybody", wrote_into(Path::new("/tmp")) || wrote_into(Path::new("/dev/shm"))),
        ("changed a file's mode", both(changes_mode)),
        ("changed a file's times", both(changes_times)),
        ("changed a file's owner", both(changes_owner)),
        ("gave a file another name", links(&model, &home.join("linked"))),
        ("locked a file", both(locks)),
    ];
    all.extend(system::of_files(home, &[&secret, &model]));
    all
}

fn of_others(parent: pid_t) -> Vec<Attempt> {
    let mut all = vec![
        ("may signal its parent", may_signal(parent)),
        ("set its parent's priority", sets_priority(parent)),
        ("left its process group", leaves_group()),
        ("started a process", Command::new("true").spawn().is_ok()),
        ("forked", forks()),
    ];
    all.extend(system::of_others(parent));
    all
}

fn of_the_kernel(home: &Path) -> Vec<Attempt> {
    let mut all = vec![
        ("took six gigabytes", takes_memory()),
        ("shared six gigabytes", maps(LARGE_BYTES, libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANON)),
        ("mapped a terabyte", maps(ADDRESS_BYTES, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANON)),
        ("left memory in the kernel", makes_objects()),
        ("opened a TCP socket", opens_socket(libc::AF_INET, libc::SOCK_STREAM)),
        ("opened a UDP socket", opens_socket(libc::AF_INET6, libc::SOCK_DGRAM)),
        ("opened a local socket", opens_socket(libc::AF_UNIX, libc::SOCK_STREAM)),
        ("listened for connections", TcpListener::bind("127.0.0.1:0").is_ok()),
        ("sent a datagram", sends_datagram(&home.join("datagrams"))),
    ];
    all.extend(system::of_the_kernel());
    all
}

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
    let named = unsafe {
        libc::chmod(name.as_ptr(), 0o666) == 0 || libc::fchmodat(libc::AT_FDCWD, name.as_ptr(), 0o666, 0) == 0
    };
    // SAFETY: the descriptor is open.
    named || File::open(path).is_ok_and(|file| unsafe { libc::fchmod(file.as_raw_fd(), 0o666) } == 0)
}

fn changes_times(path: &Path) -> bool {
    let (name, times) = (text(path), [libc::timespec { tv_sec: 1, tv_nsec: 1 }; 2]);
    // SAFETY: the path ends with a zero, there are two times, and all live through the call.
    let named = unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), 0) } == 0;
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

fn may_signal(process: pid_t) -> bool {
    // SAFETY: the call takes plain numbers; signal 0 only asks.
    unsafe { libc::kill(process, 0) == 0 }
}

fn sets_priority(process: pid_t) -> bool {
    let process = process.cast_unsigned();
    // SAFETY: the calls take plain numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, process, libc::getpriority(libc::PRIO_PROCESS, process)) == 0 }
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

/// Objects of System V, which stay when their process has ended.
fn makes_objects() -> bool {
    // SAFETY: all of these calls take plain numbers; what was made is removed again.
    unsafe {
        let memory = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
        let semaphores = libc::semget(libc::IPC_PRIVATE, 1, 0o600);
        let removed = [
            memory >= 0 && libc::shmctl(memory, libc::IPC_RMID, null_mut()) == 0,
            semaphores >= 0 && libc::semctl(semaphores, 0, libc::IPC_RMID) == 0,
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
