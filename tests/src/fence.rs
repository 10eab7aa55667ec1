//! The fence around children, tested with a plugin that attacks wherever its code runs: under the real program, as root
//! and as another user. The fences of children without plugins, or on machines with a GPU, are tested with a separate
//! program.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod survey;

use serde_json::json;
use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    os::unix::{
        fs::{MetadataExt, lchown},
        net::UnixDatagram,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use pensieve_protocol::fence::{Kind, Policy};

use crate::{
    artifacts::{copy_program, test_plugin},
    http::{
        client::post,
        server::{Options, Server, home},
    },
};

/// A user who owns nothing on this machine.
const STRANGER: u32 = 65_534;

/// The users that a server can run as here: the current one and, if that is root, another one.
fn users() -> Vec<Option<u32>> {
    // SAFETY: the call takes no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: only root can try what root may");
    }
    if is_root { vec![None, Some(STRANGER)] } else { vec![None] }
}

/// Whether this kernel keeps a child from everything that the plugin tries.
#[cfg(target_os = "linux")]
fn can_fence() -> bool {
    // SAFETY: without attributes the call only returns its version, or fails.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) };
    if version < 6 {
        println!("skipped: this kernel has no Landlock of version 6");
    }
    version >= 6
}

/// A sandbox profile keeps a child from what `docs/security.md` promises.
#[cfg(not(target_os = "linux"))]
fn can_fence() -> bool {
    cfg!(target_os = "macos")
}

/// Attacks that a sandbox profile lets through: it bounds files, the network and programs, and neither memory nor what
/// a process may do to others of its user. A socket without an address is no network.
const UNBOUND_ON_MACOS: [&str; 14] = [
    "locked a file",
    "watched a folder",
    "may signal its parent",
    "set its parent's priority",
    "had the kernel signal its parent",
    "left its process group",
    "left memory in the kernel",
    "left shared memory by name",
    "took six gigabytes",
    "shared six gigabytes",
    "mapped a terabyte",
    "opened a TCP socket",
    "opened a UDP socket",
    "opened a local socket",
];

/// What counts of that which a child has achieved.
fn bounded<'a>(achieved: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let (unbound, bounded) = achieved
        .into_iter()
        .filter(|what| !what.is_empty())
        .partition::<Vec<_>, _>(|what| cfg!(target_os = "macos") && UNBOUND_ON_MACOS.contains(what));
    if !unbound.is_empty() {
        println!("macOS keeps no child from this: {unbound:?}");
    }
    bounded.into_iter().collect()
}

/// Targets of attacks in a home: a secret, a model, and a datagram socket.
struct Targets {
    files: Vec<(PathBuf, u32, SystemTime)>,
    datagrams: UnixDatagram,
}

impl Targets {
    fn put_into(home: &Path, user: Option<u32>) -> Self {
        let model = home.join("model");
        fs::create_dir(&model).unwrap();
        fs::write(model.join("config.json"), r#"{"architectures": ["HostileForCausalLM"]}"#).unwrap();
        fs::write(home.join("secret"), "key").unwrap();
        let datagrams = UnixDatagram::bind(home.join("datagrams")).unwrap();
        datagrams.set_nonblocking(true).unwrap();
        for path in [home, &model, &model.join("config.json"), &home.join("secret"), &home.join("datagrams")] {
            user.iter().for_each(|user| lchown(path, Some(*user), Some(*user)).unwrap());
        }
        let files = [model.join("config.json"), home.join("secret")].map(|path| {
            let found = path.metadata().unwrap();
            (path, found.mode(), found.modified().unwrap())
        });
        Self { files: files.into(), datagrams }
    }

    /// Checks from outside that none of them changed.
    fn check(&self, as_whom: &str) {
        for (path, mode, modified) in &self.files {
            let found = path.metadata().unwrap();
            assert_eq!((found.mode(), found.modified().unwrap()), (*mode, *modified), "{}: {as_whom}", path.display());
        }
        assert_eq!(self.datagrams.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "{as_whom}");
    }
}

/// A server with the hostile plugin and one of its models, in a home with targets to attack.
fn start(user: Option<u32>, config: &str) -> (Server, Targets) {
    let home = home();
    let targets = Targets::put_into(home.path(), user);
    let options = Options {
        plugins: vec![test_plugin("hostile")],
        models: vec![("hostile".into(), home.path().join("model"))],
        config: config.into(),
        variables: vec![("SECRET".into(), "key".into())],
        user,
        ..Options::default()
    };
    (options.start_in(&home), targets)
}

/// The answer of the plugin's model, loaded or not.
fn answer(server: &Server) -> String {
    let body = json!({ "model": "hostile", "prompt": "x", "max_tokens": 1 });
    post(server.address, "/v1/completions", &body).text()
}

/// What the plugin achieved while it was inspected.
fn achieved_by_opening(server: &Server) -> String {
    let plugins = server.get("/v1/plugins");
    let plugins = plugins.json();
    let description = plugins["data"][0]["description"].as_str().unwrap_or_else(|| panic!("{plugins}"));
    description.strip_prefix("opened, it achieved [").unwrap().strip_suffix(']').unwrap().to_owned()
}

/// What the plugin achieved while its model was loaded.
fn achieved_by_loading(server: &Server) -> String {
    let reply = answer(server);
    let (_, achieved) =
        reply.split_once("loaded, it achieved [").unwrap_or_else(|| panic!("{reply}: {}", server.log()));
    achieved.split_once(']').unwrap().0.to_owned()
}

#[test]
fn a_hostile_plugin_achieves_nothing_wherever_it_runs() {
    if !can_fence() {
        return;
    }
    for user in users() {
        let (server, targets) = start(user, "");
        assert_eq!(bounded(achieved_by_opening(&server).split(", ")), BTreeSet::new(), "as {user:?}");
        assert_eq!(bounded(achieved_by_loading(&server).split(", ")), BTreeSet::new(), "as {user:?}");
        let health = server.get("/health").json();
        assert_eq!(health["fence"]["missing"], json!([]), "{health:#}");
        assert!(!server.home().path().join("planted").exists());
        targets.check(&format!("as {user:?}"));
        server.stop();
    }
}

#[test]
fn a_plugin_that_is_trusted_by_name_may_do_what_its_user_may() {
    for user in users() {
        let (server, _targets) = start(user, "[plugins]\nunfenced = [\"hostile\"]\n");
        // It is looked at like any other.
        assert!(!can_fence() || bounded(achieved_by_opening(&server).split(", ")).is_empty());
        // Its worker asks it about the checkpoint before it loads it.
        let achieved = answer(&server);
        let expected = [
            "read a secret file",
            "wrote into the home",
            "changed a file's mode",
            "changed a file's times",
            "watched a folder",
            "had the kernel signal its parent",
            "set its parent's priority",
            "took six gigabytes",
            "mapped a terabyte",
            "left memory in the kernel",
            "forked",
            "opened a TCP socket",
            "listened for connections",
            "sent a datagram",
        ];
        for what in expected.into_iter().filter(|what| !cfg!(target_os = "macos") || !UNBOUND_ON_MACOS.contains(what)) {
            assert!(achieved.contains(what), "as {user:?} it {achieved}");
        }
        // Only root may read the server.
        for what in ["read its parent's environment", "opened its parent's memory", "may trace its parent"] {
            assert!(user.is_none() || !achieved.contains(what), "as {user:?} it {achieved}");
        }
        server.stop();
    }
}

/// The output of a child of this kind that does `what` behind its fence, as this user, with read access to a model's
/// folder.
fn said_by(what: &str, kind: Kind, user: Option<u32>, home: &Path) -> Vec<String> {
    const GIB: u64 = 1 << 30;
    let is_limited = !kind.has_drivers();
    let policy = Policy {
        kind,
        read: vec![home.join("model")],
        data_bytes: is_limited.then_some(GIB),
        address_bytes: is_limited.then_some(64 * GIB),
        files: 64,
        ..Policy::default()
    };
    // Where any user can run it.
    let own = home.join("fenced");
    if !own.exists() {
        copy_program(Path::new(env!("CARGO_BIN_EXE_fenced")), &own);
    }
    let mut command = Command::new(own);
    command.args(["around", what]).env_clear().env("HOME", home).env("POLICY", policy.to_variable()).current_dir(home);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{kind:?} as {user:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines().map(str::to_owned).collect()
}

const KINDS: [Kind; 4] = [Kind::Look, Kind::Prompt, Kind::Worker, Kind::GpuWorker];

#[test]
fn no_kind_of_child_achieves_more_than_its_driver_needs() {
    if !can_fence() {
        return;
    }
    for user in users() {
        let home = home();
        let targets = Targets::put_into(home.path(), user);
        for kind in KINDS {
            let memory = ["took six gigabytes", "shared six gigabytes", "grew by six gigabytes", "mapped a terabyte"];
            let of_drivers = ["locked a file", memory[0], memory[1], memory[2], memory[3], "opened a local socket"];
            let expected: &[&str] = if kind.has_drivers() { &of_drivers } else { &[] };
            let said = said_by("attack", kind, user, home.path());
            let expected = bounded(expected.iter().copied());
            assert_eq!(bounded(said.iter().map(String::as_str)), expected, "{kind:?} as {user:?}");
            targets.check(&format!("{kind:?} as {user:?}"));
        }
    }
}
