//! The program as a test starts it: in a separate home, with only its own plugins, on a free port.

use std::{
    collections::HashMap,
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::{
        fs::{FileExt, lchown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use super::client::{Reply, get};
use crate::artifacts::{copy_program, place_program, program};

/// Time limit of anything here on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Options of a test server.
#[derive(Default)]
pub struct Options {
    /// Plugins in its folder.
    pub plugins: Vec<PathBuf>,
    /// Models by id; if empty, one is configured that no plugin takes, so that the program does not add its own.
    pub models: Vec<(String, PathBuf)>,
    /// Text of its configuration.
    pub config: String,
    /// Additional arguments.
    pub arguments: Vec<String>,
    /// Additional environment variables.
    pub variables: Vec<(String, String)>,
    /// The user that it runs as; only root can choose.
    pub user: Option<u32>,
}

/// A running server.
pub struct Server {
    /// The address that it listens on.
    pub address: SocketAddr,
    child: Child,
    log: File,
    home: Arc<TempDir>,
}

impl Options {
    /// Options with only this configuration.
    pub fn configured(config: &str) -> Self {
        Self { config: config.into(), ..Self::default() }
    }

    /// Starts it in a new home and waits until it listens.
    pub fn start(&self) -> Server {
        self.start_in(&home())
    }

    /// Starts it in a home that has been used before.
    pub fn start_in(&self, home: &Arc<TempDir>) -> Server {
        let (mut child, log) = self.spawn(home);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("pensieve is listening on http://");
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            panic!("it did not start, {:?}, and said {line:?}: {}", child.wait(), text(&log));
        };
        // Nothing else may be printed there.
        thread::spawn(move || {
            let mut rest = String::new();
            let _ = stdout.read_to_string(&mut rest);
            assert_eq!(rest, "");
        });
        Server { address, child, log, home: home.clone() }
    }

    /// Starts it and waits until it exits with an error.
    pub fn fail(&self) -> (ExitStatus, String) {
        let home = home();
        let (mut child, log) = self.spawn(&home);
        let status = ended(&mut child, PATIENCE).expect("it does not end");
        (status, text(&log))
    }

    /// Starts it; its log goes to a file, so that what it has written can be read at once.
    fn spawn(&self, home: &Arc<TempDir>) -> (Child, File) {
        let log = tempfile::tempfile().unwrap();
        let plugins = home.path().join("given");
        fs::create_dir_all(&plugins).unwrap();
        for plugin in &self.plugins {
            fs::copy(plugin, plugins.join(plugin.file_name().unwrap())).unwrap();
        }
        // Plugins are also found beside the program, and the target folder is full of them.
        let link = home.path().join("bin").join("pensieve");
        if !link.exists() {
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            match self.user {
                None => place_program(&link),
                // A file has one owner under all of its names.
                Some(_) => copy_program(&program(), &link),
            }
        }
        fs::write(home.path().join("pensieve.toml"), &self.config).unwrap();
        let mut command = Command::new(&link);
        command.arg("serve").arg("--plugins").arg(&plugins);
        if self.models.is_empty() && !self.config.contains("[[models]]") {
            let nothing = home.path().join("nothing");
            fs::create_dir_all(&nothing).unwrap();
            fs::write(nothing.join("config.json"), r#"{"architectures": ["NothingForCausalLM"]}"#).unwrap();
            command.arg("--model").arg(format!("nothing={}", nothing.display()));
        }
        if !self.arguments.iter().any(|argument| argument == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        for (id, source) in &self.models {
            command.arg("--model").arg(format!("{id}={}", source.display()));
        }
        command.args(&self.arguments).current_dir(home.path());
        command.env_clear().env("PENSIEVE_HOME", home.path()).env("HOME", home.path());
        command.envs(["PATH", "TMPDIR", "LD_LIBRARY_PATH"].iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone().unwrap());
        if let Some(user) = self.user {
            give(home.path(), user);
            command.uid(user).gid(user);
        }
        (command.spawn().unwrap(), log)
    }
}

/// Makes a user the owner of everything in a folder.
fn give(path: &Path, user: u32) {
    lchown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path(), user));
    }
}

impl Server {
    pub fn home(&self) -> &Arc<TempDir> {
        &self.home
    }

    /// The folder of its plugins.
    pub fn plugins(&self) -> PathBuf {
        self.home.path().join("given")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        text(&self.log)
    }

    /// Requests a page.
    pub fn get(&self, path: &str) -> Reply {
        get(self.address, path)
    }

    /// Its metrics by name and labels, as on the page.
    pub fn metrics(&self) -> HashMap<String, f64> {
        let reply = self.get("/metrics");
        assert_eq!(reply.status(), 200, "{reply:?}");
        let text = reply.text();
        let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        };
        samples.map(sample).collect()
    }

    /// Waits until the metrics look as expected.
    pub fn until(&self, what: &str, holds: impl Fn(&HashMap<String, f64>) -> bool) -> HashMap<String, f64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let metrics = self.metrics();
            if holds(&metrics) {
                return metrics;
            }
            assert!(Instant::now() < deadline, "not {what}: {metrics:#?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: a signal to a child that has not been waited for, so the id is still its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Waits for it to exit; `None` if it takes longer.
    pub fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
        ended(&mut self.child, within)
    }

    /// Stops it gracefully; returns its whole log.
    pub fn stop(mut self) -> String {
        self.signal(libc::SIGTERM);
        let status = self.ended(PATIENCE).expect("it does not end");
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// A home in the target folder, where the program can be hard-linked.
pub fn home() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap())
}

/// The text of a log, read without moving the position where it is written.
fn text(log: &File) -> String {
    let mut bytes = vec![0; usize::try_from(log.metadata().unwrap().len()).unwrap()];
    log.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn ended(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}
