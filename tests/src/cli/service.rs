//! The service's file as systemd and launchd read it, and what is refused before either is asked.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Desk, said};
use crate::artifacts::write_script;

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let desk = Desk::new();
    fs::write(desk.path("my settings.toml"), "").unwrap();
    let said = desk.run(&["service", "install", "--manager", "systemd", "--print", "--config", "my settings.toml"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let program = desk.path("bin/pensieve").canonicalize().unwrap();
    let config = desk.path("my settings.toml");
    let command = format!("ExecStart={} serve --config \"{}\"\n", program.display(), config.display());
    assert!(said.stdout.contains(&command), "{said:?}");
    assert!(said.stdout.contains(&format!("Environment=PENSIEVE_HOME={}\n", desk.path("home").display())), "{said:?}");
    let unit = desk.path("pensieve.service");
    let verify = |text: &str| {
        fs::write(&unit, text).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--user", "--man=no"]).arg(&unit);
        let output = verify.env("HOME", desk.root.path()).env("XDG_RUNTIME_DIR", desk.root.path()).output().ok()?;
        Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let Some(verified) = verify(&said.stdout) else {
        println!("skipped: there is no systemd-analyze");
        return;
    };
    assert_eq!(verified, (true, String::new()));
    let (_, complaints) = verify(&said.stdout.replace("Restart=", "Restarts=")).unwrap();
    assert!(complaints.contains("Unknown key"), "a mistake is not found: {complaints}");
}

#[test]
fn the_agent_is_a_property_list() {
    let desk = Desk::new();
    fs::write(desk.path("a&b <c>.toml"), "").unwrap();
    let said = desk.run(&["service", "install", "--manager", "launchd", "--print", "--config", "a&b <c>.toml"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let read = "import json, plistlib, sys; print(json.dumps(plistlib.loads(sys.stdin.buffer.read())))";
    let mut python =
        Command::new("python3").args(["-c", read]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut python.stdin.take().unwrap(), said.stdout.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{said:?}");
    let agent: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let program = desk.path("bin/pensieve").canonicalize().unwrap();
    let config = desk.path("a&b <c>.toml");
    let words = [program.to_str().unwrap(), "serve", "--config", config.to_str().unwrap()];
    assert_eq!(agent["ProgramArguments"], serde_json::json!(words));
    assert_eq!((&agent["Label"], &agent["RunAtLoad"]), (&"pensieve".into(), &true.into()));
    assert_eq!(agent["KeepAlive"]["SuccessfulExit"], false);
}

#[test]
fn a_service_is_written_and_removed_and_a_users_own_is_left_alone() {
    // No test may start a service on this machine: the manager's program is not in the path.
    let desk = Desk::new();
    fs::create_dir(desk.path("empty")).unwrap();
    let run = |arguments: &[&str]| said(desk.command(arguments).env("PATH", desk.path("empty")).output().unwrap());
    let (folder, name) = match cfg!(target_os = "macos") {
        true => ("Library/LaunchAgents", "pensieve.plist"),
        false => (".config/systemd/user", "pensieve.service"),
    };
    let file = desk.path(folder).join(name);
    for verb in ["status", "remove"] {
        let said = run(&["service", verb]);
        assert_eq!(said.code, Some(3), "{said:?}");
    }
    let wrong = run(&["service", "install", "--config", "nowhere.toml"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(!file.exists());

    let installed = run(&["service", "install"]);
    assert_eq!(installed.code, Some(1), "{installed:?}");
    assert!(installed.stderr.contains("the file is written, but ") && installed.stderr.contains("start it with: "));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("bin/pensieve"), "{text}");
    // Again is no mistake.
    assert_eq!(run(&["service", "install"]).code, Some(1));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let status = run(&["service", "status"]);
    assert!(status.code == Some(0) && status.stdout.contains("unknown: "), "{status:?}");
    let removed = run(&["service", "remove"]);
    assert!(removed.code == Some(0) && removed.stdout.starts_with("removed ") && !file.exists(), "{removed:?}");

    fs::write(&file, "[Service]\nExecStart=/bin/true\n").unwrap();
    for verb in ["install", "remove"] {
        let refused = run(&["service", verb]);
        assert_eq!(refused.code, Some(8), "{refused:?}");
        assert!(refused.stderr.contains("pensieve service"), "{refused:?}");
    }
    assert!(fs::read_to_string(&file).unwrap().contains("/bin/true"));
}

/// A stand-in for the manager's program, which keeps its arguments, a line for each call.
#[test]
fn the_manager_is_told_what_to_do_in_order() {
    if cfg!(target_os = "macos") {
        return;
    }
    let desk = Desk::new();
    let (folder, log) = (desk.path("stand-ins"), desk.path("log"));
    fs::create_dir(&folder).unwrap();
    let script = format!(
        "echo \"$*\" >>'{}'\nif [ \"$2\" = show ]; then echo NRestarts=1; echo MainPID=7; echo SubState=running; \
         echo ActiveState=active; fi",
        log.display()
    );
    write_script(&folder.join("systemctl"), &script);
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let run = |arguments: &[&str]| said(desk.command(arguments).env("PATH", &path).output().unwrap());
    let told = || {
        let lines = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        lines.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let file = desk.path(".config/systemd/user/pensieve.service");
    for _ in 0..2 {
        let installed = run(&["service", "install"]);
        assert!(installed.code == Some(0) && installed.stderr.contains("the server runs"), "{installed:?}");
        let expected = ["daemon-reload", "enable pensieve.service", "restart pensieve.service"];
        assert_eq!(told(), expected.map(|arguments| format!("--user {arguments}")));
        assert!(file.is_file());
    }
    let status = run(&["service", "status"]);
    assert!(status.stdout.contains("\n  active (running), process 7, 1 restarts"), "{status:?}");
    assert!(told()[0].starts_with("--user show pensieve.service "));
    let removed = run(&["service", "remove"]);
    assert!(removed.code == Some(0) && removed.stderr.is_empty() && !file.exists(), "{removed:?}");
    assert_eq!(told(), ["--user disable --now pensieve.service", "--user daemon-reload"]);
}

/// A `launchctl` that writes down how it is called. It refuses `bootstrap` with this status for so many times.
fn launchctl(desk: &Desk, status: i32, times: usize) -> PathBuf {
    let (folder, calls) = (desk.path("managers"), desk.path("calls"));
    fs::create_dir_all(&folder).unwrap();
    let calls = calls.display();
    let script = format!(
        "echo \"$@\" >> '{calls}'
[ \"$1\" = bootstrap ] || exit 0
[ $(grep -c ^bootstrap '{calls}') -gt {times} ] && exit 0
echo 'Bootstrap failed: {status}: Input/output error' >&2
exit {status}"
    );
    write_script(&folder.join("launchctl"), &script);
    folder
}

#[test]
fn an_agent_that_replaces_a_running_one_waits_until_launchd_takes_it() {
    let run = |desk: &Desk, folder: &Path| {
        let mut folders = vec![folder.to_owned()];
        folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        let mut command = desk.command(&["service", "install", "--manager", "launchd"]);
        said(command.env("PATH", std::env::join_paths(folders).unwrap()).output().unwrap())
    };
    let calls = |desk: &Desk| {
        let text = fs::read_to_string(desk.path("calls")).unwrap();
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let desk = Desk::new();
    let installed = run(&desk, &launchctl(&desk, 5, 2));
    assert_eq!(installed.code, Some(0), "{installed:?}");
    assert!(installed.stderr.contains("launchd is not ready (Bootstrap failed: 5"), "{installed:?}");
    assert_eq!(calls(&desk), ["bootout", "bootstrap", "bootstrap", "bootstrap"]);

    // What does not pass by itself is said at once.
    let desk = Desk::new();
    let refused = run(&desk, &launchctl(&desk, 125, 2));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("start it with: launchctl bootstrap gui/"), "{refused:?}");
    assert_eq!(calls(&desk), ["bootout", "bootstrap"]);
}

#[test]
fn a_program_that_was_built_here_is_not_updated() {
    let desk = Desk::new();
    let said = desk.run(&["update"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("was not installed from a release"), "{said:?}");
}
