//! Asks a question of a child process: the same program under another verb, which runs foreign code, prints one line of
//! JSON, or some, and is not needed any more.
//!
//! The child may crash, hang, leave children of its own or print without end. So it has a process group, which is killed
//! as soon as the answer or the deadline is there, and its output is read up to a limit. What it wrote to stderr last goes
//! into the error, as it is often the only trace of the reason.

use super::{
    footprint::{OverLimit, over_limit},
    patience::within,
    program,
};
use pensieve_protocol::{
    fence::{Policy, VARIABLE},
    outside::Outside,
    questions::Checked,
    refusal::RefusalKind,
};
use serde::de::DeserializeOwned;
use std::{
    ffi::OsString,
    fmt,
    ops::ControlFlow,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, Take},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};

/// A manifest is a list of names.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// A card carries a tokenizer of some ten megabytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Of what a child writes to stderr, the end is kept.
const STDERR_BYTES_KEPT: usize = 64 << 10;
const STDERR_CHARS_SHOWN: usize = 200;

/// Environment variables that a child inherits: enough to find libraries and devices, none of the server's secrets.
const VARIABLES: [&str; 21] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_CACHE_PATH",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "RAYON_NUM_THREADS",
    // Checks that Apple's libraries make when they are asked to.
    "MTL_DEBUG_LAYER",
    "MTL_SHADER_VALIDATION",
    "OBJC_DEBUG_MISSING_POOLS",
    "RUST_BACKTRACE",
    "PENSIEVE_KERNELS",
];

/// candle submits a Metal command buffer after so many ops; with this, a step is one. The scheduler bounds how long it takes.
const METAL_OPS: (&str, &str) = ("CANDLE_METAL_COMPUTE_PER_BUFFER", "8192");

/// The variables of a child that runs foreign code, its policy among them.
pub(super) fn environment(policy: Option<&Policy>) -> impl Iterator<Item = (&'static str, OsString)> {
    let known = VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
    let known = known.chain([(METAL_OPS.0, METAL_OPS.1.into())]);
    known.chain(policy.map(|policy| (VARIABLE, policy.to_variable().into())))
}

#[derive(Debug)]
pub enum ChildError {
    Spawn(std::io::Error),
    TimedOut(Duration),
    /// It was ended at its limit of memory.
    TooLarge(OverLimit),
    Crashed {
        signal: i32,
        stderr: String,
    },
    /// It ended by itself without an answer.
    Ended {
        status: ExitStatus,
        stderr: String,
    },
    /// It answered something that is not an answer.
    Garbled(String),
}

impl ChildError {
    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::Spawn(_) => RefusalKind::NotInspected,
            Self::TimedOut(_) => RefusalKind::TimedOut,
            Self::TooLarge(_) => RefusalKind::TooLarge,
            Self::Crashed { .. } => RefusalKind::Crashed,
            Self::Ended { .. } => RefusalKind::Exited,
            Self::Garbled(_) => RefusalKind::Garbled,
        }
    }

    /// The command that helps where macOS has killed a process for mapping this file, whose signature does not fit its code.
    pub fn signature_help(&self, file: &Path) -> Option<String> {
        cfg!(target_os = "macos").then(|| self.if_killed(file)).flatten()
    }

    fn if_killed(&self, file: &Path) -> Option<String> {
        let Self::Crashed { signal, .. } = self else { return None };
        let file = Outside::path(file).to_string().replace('\'', r"'\''");
        let help =
            format!("most likely its signature does not fit it; sign it anew: codesign --force --sign - '{file}'");
        (*signal == rustix::process::Signal::KILL.as_raw()).then_some(help)
    }
}

/// The predicate of a sentence about the file: `crashed the process that …`.
impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |f: &mut fmt::Formatter<'_>, stderr: &str| {
            if stderr.is_empty() { Ok(()) } else { write!(f, "; it said: {stderr}") }
        };
        match self {
            Self::Spawn(error) => write!(f, "could not be looked at: a child process does not start: {error}"),
            Self::TimedOut(limit) => write!(f, "did not answer within {} s", limit.as_secs_f32()),
            Self::TooLarge(over) => write!(f, "{over}, while it was looked at"),
            Self::Crashed { signal, stderr } => {
                write!(f, "crashed the process that looked at it, by {}", signal_name(*signal))?;
                shown(f, stderr)
            }
            Self::Ended { status, stderr } => {
                write!(f, "ended the process that looked at it, with {status}")?;
                shown(f, stderr)
            }
            Self::Garbled(what) => write!(f, "made the process that looked at it answer nonsense: {what}"),
        }
    }
}

/// Runs the program with these arguments, behind the fence of this policy, and reads its answer. The child ends with this
/// process, which holds its standard input.
pub async fn ask<T: DeserializeOwned>(
    program: &Path,
    arguments: &[OsString],
    policy: &Policy,
    deadline: Duration,
) -> Result<T, ChildError> {
    ask_within(program, arguments, policy, deadline, ANSWER_BYTES_MAX).await
}

/// Asks what a plugin is. Its code may have answered in the child's place, so that the answer is held to what a child may say.
pub async fn inspect(
    program: &Path,
    arguments: &[OsString],
    policy: &Policy,
    deadline: Duration,
) -> Result<Checked, ChildError> {
    let checked = ask_within(program, arguments, policy, deadline, MANIFEST_BYTES_MAX).await?;
    match checked {
        Checked::Manifest(manifest) => match manifest.check() {
            Ok(()) => Ok(Checked::Manifest(manifest)),
            Err(what) => Err(ChildError::Garbled(what)),
        },
        Checked::Refusal(refusal) => Ok(Checked::Refusal(refusal.cleaned())),
    }
}

async fn ask_within<T: DeserializeOwned>(
    program: &Path,
    arguments: &[OsString],
    policy: &Policy,
    deadline: Duration,
    bytes_max: u64,
) -> Result<T, ChildError> {
    let mut child = RunningChild::spawn(program, arguments, Some(policy), &[], bytes_max)?;
    let answer = child.line(deadline).await;
    child.end().await;
    answer
}

/// Runs the program with these arguments and passes its output on line by line until `hear` breaks. No line may take
/// longer than the deadline. The child's standard input ends with this process, so that the child may end with it too. It may
/// do without a fence where a person wants to look into it with a debugger.
pub async fn ask_for_lines<T: DeserializeOwned>(
    program: &Path,
    arguments: &[OsString],
    policy: Option<&Policy>,
    deadline: Duration,
    hear: impl FnMut(T) -> ControlFlow<()>,
) -> Result<(), ChildError> {
    ask_for_lines_with(program, arguments, policy, &[], deadline, hear).await.map(drop)
}

/// As [`ask_for_lines`], with variables of its own in the child's environment. Returns the end of what the child wrote to stderr.
pub async fn ask_for_lines_with<T: DeserializeOwned>(
    program: &Path,
    arguments: &[OsString],
    policy: Option<&Policy>,
    variables: &[(OsString, OsString)],
    deadline: Duration,
    mut hear: impl FnMut(T) -> ControlFlow<()>,
) -> Result<String, ChildError> {
    let mut child = RunningChild::spawn(program, arguments, policy, variables, ANSWER_BYTES_MAX)?;
    let stdin = child.child.stdin.take();
    let heard = loop {
        match child.line(deadline).await {
            Ok(line) => {
                if hear(line).is_break() {
                    break Ok(());
                }
            }
            Err(silence) => break Err(silence),
        }
    };
    drop(stdin);
    let stderr = child.end().await;
    heard.map(|()| stderr)
}

struct RunningChild {
    child: Child,
    group: ProcessGroup,
    memory_limit: Option<u64>,
    stdout: BufReader<Take<ChildStdout>>,
    /// Reads what the child writes there, until somebody asks for it.
    stderr: Option<JoinHandle<String>>,
}

impl RunningChild {
    fn spawn(
        program: &Path,
        arguments: &[OsString],
        policy: Option<&Policy>,
        variables: &[(OsString, OsString)],
        bytes_max: u64,
    ) -> Result<Self, ChildError> {
        program::check(program).map_err(ChildError::Spawn)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(environment(policy)).process_group(0).kill_on_drop(true);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(ChildError::Spawn)?;
        let group = ProcessGroup::of(&child);
        let stderr = Some(tokio::spawn(end_of_stderr(child.stderr.take())));
        let Some(stdout) = child.stdout.take() else {
            return Err(ChildError::Garbled("its output is missing".into()));
        };
        let memory_limit = policy.and_then(|policy| policy.data_bytes);
        Ok(Self { child, group, memory_limit, stdout: BufReader::new(stdout.take(bytes_max)), stderr })
    }

    async fn line<T: DeserializeOwned>(&mut self, deadline: Duration) -> Result<T, ChildError> {
        let mut line = Vec::new();
        let over_limit = over_limit(self.child.id(), self.memory_limit);
        let answered = async {
            self.stdout.read_until(b'\n', &mut line).await.ok();
            let is_cut = line.last() != Some(&b'\n') && self.stdout.get_ref().limit() == 0;
            if is_cut || line.last() == Some(&b'\n') { None } else { Some(self.child.wait().await) }
        };
        let answered = tokio::select! {
            answered = within(deadline, answered) => answered,
            over = over_limit => return Err(ChildError::TooLarge(over)),
        };
        match answered {
            None => Err(ChildError::TimedOut(deadline)),
            Some(None) => serde_json::from_slice(&line).map_err(|error| ChildError::Garbled(error.to_string())),
            Some(Some(Err(error))) => Err(ChildError::Spawn(error)),
            Some(Some(Ok(status))) => {
                let stderr = last_line(&self.take_stderr().await);
                match status.signal() {
                    Some(signal) => Err(ChildError::Crashed { signal, stderr }),
                    None => Err(ChildError::Ended { status, stderr }),
                }
            }
        }
    }

    /// Ends the child, and returns what it wrote to stderr.
    async fn end(mut self) -> String {
        self.group.end();
        // Killed, it is gone soon; a process that the system cannot end is not waited for.
        let _ = timeout(Duration::from_secs(1), self.child.wait()).await;
        self.take_stderr().await
    }

    async fn take_stderr(&mut self) -> String {
        let Some(reader) = self.stderr.take() else { return String::new() };
        // A grandchild may hold the pipe open, so the wait is bounded.
        timeout(Duration::from_millis(200), reader).await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// A process group that does not outlive this value.
pub(super) struct ProcessGroup(Option<rustix::process::Pid>);

impl ProcessGroup {
    pub(super) fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        Self(pid)
    }

    fn end(&mut self) {
        if let Some(group) = self.0.take() {
            // An empty group is no error worth telling.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads to the end, so that the child never waits for a reader.
async fn end_of_stderr(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), vec![0; 8 << 10]);
    while let Ok(bytes @ 1..) = pipe.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..bytes]);
        kept.drain(..kept.len().saturating_sub(STDERR_BYTES_KEPT));
    }
    String::from_utf8_lossy(&kept).into_owned()
}

fn last_line(stderr: &str) -> String {
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    pensieve_protocol::refusal::clean(last).chars().take(STDERR_CHARS_SHOWN).collect()
}

/// A signal by the name that people search for.
pub fn signal_name(signal: i32) -> String {
    use rustix::process::Signal;
    let names = [
        (Signal::SEGV, "SIGSEGV"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::FPE, "SIGFPE"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::KILL, "SIGKILL"),
        (Signal::TERM, "SIGTERM"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::SYS, "SIGSYS"),
    ];
    let name = names.iter().find(|(known, _)| known.as_raw() == signal);
    name.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use pensieve_protocol::manifest::Manifest;

    /// The result of inspecting a plugin when this script runs in the child's place.
    async fn check(script: String) -> Result<Checked, ChildError> {
        let arguments = ["-c".into(), script.into()];
        inspect(Path::new("/bin/sh"), &arguments, &Policy::default(), Duration::from_secs(20)).await
    }

    #[test]
    fn a_child_computes_each_step_on_metal_as_one_command_buffer() {
        // Some 15 ops for each of a hundred layers.
        let ops = environment(None).find(|(name, _)| *name == "CANDLE_METAL_COMPUTE_PER_BUFFER");
        assert!(ops.unwrap().1.to_str().unwrap().parse::<usize>().unwrap() > 15 * 100);
    }

    #[test]
    fn a_killed_child_of_a_mac_leads_to_the_command_that_signs() {
        let crashed = |signal: rustix::process::Signal| {
            ChildError::Crashed { signal: signal.as_raw(), stderr: String::new() }.if_killed(Path::new("/it's.dylib"))
        };
        let help = crashed(rustix::process::Signal::KILL).unwrap();
        assert!(help.contains(r"codesign --force --sign - '/it'\''s.dylib'"), "{help}");
        assert_eq!(crashed(rustix::process::Signal::SEGV), None);
        assert_eq!(ChildError::Garbled(String::new()).if_killed(Path::new("/x")), None);
    }

    #[tokio::test]
    async fn a_manifest_that_a_plugin_forged_is_held_to_the_same_limits() {
        let honest = || Manifest { id: "mine".into(), version: "1".into(), ..Manifest::default() };
        let says = |manifest: Manifest| {
            let answer = serde_json::to_string(&Checked::Manifest(manifest)).unwrap();
            format!("cat <<'END'\n{answer}\nEND")
        };
        assert!(matches!(check(says(honest())).await, Ok(Checked::Manifest(manifest)) if manifest == honest()));
        for forged in [
            Manifest { id: "../other".into(), ..honest() },
            Manifest { description: "\u{1b}[2J".into(), ..honest() },
            Manifest { samplers: (0..257).map(|n| format!("s{n}")).collect(), ..honest() },
            Manifest { samplers: vec!["top k".into()], ..honest() },
        ] {
            let refused = check(says(forged)).await.unwrap_err();
            assert_eq!(refused.kind(), RefusalKind::Garbled, "{refused}");
            assert!(!refused.to_string().contains('\u{1b}'), "{refused}");
        }
        let endless = check("printf '{\"manifest\":{\"id\":\"'; exec head -c 300000000 /dev/zero".into()).await;
        assert!(endless.is_err());
    }
}
