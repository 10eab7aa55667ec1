//! The service's file, for systemd and for launchd.

use std::path::{Path, PathBuf};

use super::manager::{LABEL, Manager};
use crate::cli::error::{CliError, Exit};
use pensieve_protocol::outside::Outside;

/// By this a file is known again as one that may be replaced.
const MARK: &str = "Written by 'pensieve service install'";

pub(super) fn is_ours(text: &str) -> bool {
    text.contains(MARK)
}

/// The command line of the service, and its folders.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) program: PathBuf,
    pub(super) config: Option<PathBuf>,
    /// `PENSIEVE_HOME`, unless it is the usual one.
    pub(super) home: Option<PathBuf>,
}

impl Definition {
    pub(super) fn text(&self, manager: Manager) -> Result<String, CliError> {
        let program = plain(&self.program)?;
        if manager == Manager::Systemd && program.contains(['"', '\'', '\\']) {
            let line = format!(
                "systemd starts no program with quotes or backslashes in its path: '{}'; install it elsewhere",
                Outside::path(&self.program)
            );
            return Err(CliError::new(Exit::Usage, line));
        }
        let mut words = vec![program, "serve"];
        if let Some(config) = &self.config {
            words.extend(["--config", plain(config)?]);
        }
        let home = self.home.as_deref().map(plain).transpose()?;
        Ok(match manager {
            Manager::Systemd => unit(&words, home),
            Manager::Launchd => agent(&words, home),
        })
    }
}

/// A path that can stand in a line of text.
fn plain(path: &Path) -> Result<&str, CliError> {
    path.to_str().filter(|text| !text.chars().any(char::is_control)).ok_or_else(|| {
        let line =
            format!("'{}' cannot stand in a service's file: it has other characters than text", Outside::path(&path));
        CliError::new(Exit::Usage, line)
    })
}

fn unit(words: &[&str], home: Option<&str>) -> String {
    // A dollar sign is one in the program's path, and begins a variable in the words after it.
    let command: Vec<String> = words.iter().enumerate().map(|(place, word)| quoted(word, place > 0)).collect();
    let environment = home
        .map_or_else(String::new, |home| format!("Environment={}\n", quoted(&format!("PENSIEVE_HOME={home}"), false)));
    format!(
        "# {MARK}, and replaced by it.
[Unit]
Description=Pensieve, a local inference server
Documentation=man:pensieve(1)
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={}
ExecReload=/bin/kill -HUP $MAINPID
{environment}Restart=on-failure
RestartSec=2
TimeoutStopSec=60

[Install]
WantedBy=default.target
",
        command.join(" ")
    )
}

/// A word as systemd reads it. `%` begins a specifier everywhere, `$` a variable in a command's arguments.
fn quoted(word: &str, is_argument: bool) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:@=".contains(letter);
    if word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut text = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    if is_argument {
        text = text.replace('$', "$$");
    }
    format!("\"{text}\"")
}

fn agent(words: &[&str], home: Option<&str>) -> String {
    let words: String = words.iter().map(|word| format!("    <string>{}</string>\n", escaped(word))).collect();
    let environment = home.map_or_else(String::new, |home| {
        let home = escaped(home);
        format!("  <key>EnvironmentVariables</key>\n  <dict>\n    <key>PENSIEVE_HOME</key>\n    <string>{home}</string>\n  </dict>\n")
    });
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- {MARK}, and replaced by it. -->
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{LABEL}</string>
  <key>ProgramArguments</key>
  <array>
{words}  </array>
{environment}  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ExitTimeOut</key>
  <integer>60</integer>
  <key>ProcessType</key>
  <string>Interactive</string>
</dict>
</plist>
"#
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, process::Command};

    fn definition() -> Definition {
        Definition {
            program: "/opt/my apps/100%/$x/pensieve".into(),
            config: Some("/etc/a&b <c> \"it\" 5$\\.toml".into()),
            home: Some("/srv/50%/$home".into()),
        }
    }

    #[test]
    fn a_unit_quotes_what_systemd_would_expand() {
        let text = definition().text(Manager::Systemd).unwrap();
        let command = r#"ExecStart="/opt/my apps/100%%/$x/pensieve" serve --config "/etc/a&b <c> \"it\" 5$$\\.toml""#;
        assert!(text.contains(&format!("{command}\n")), "{text}");
        assert!(text.contains("Environment=\"PENSIEVE_HOME=/srv/50%%/$home\"\n"), "{text}");
        assert!(is_ours(&text) && !is_ours("[Service]\nExecStart=pensieve serve\n"));
        let plain = Definition { program: "/usr/bin/pensieve".into(), config: None, home: None };
        assert!(plain.text(Manager::Systemd).unwrap().contains("\nExecStart=/usr/bin/pensieve serve\n"));
    }

    #[test]
    fn an_agent_escapes_what_xml_would_read() {
        let text = definition().text(Manager::Launchd).unwrap();
        assert!(text.contains("<string>/etc/a&amp;b &lt;c&gt; \"it\" 5$\\.toml</string>"), "{text}");
        assert!(text.contains("<key>PENSIEVE_HOME</key>\n    <string>/srv/50%/$home</string>"), "{text}");
        assert!(is_ours(&text));
    }

    #[test]
    fn systemd_has_nothing_to_say_about_a_unit() {
        let folder = tempfile::tempdir().unwrap();
        let (program, unit) = (folder.path().join("my apps/100%/$x/pensieve"), folder.path().join("pensieve.service"));
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::copy("/bin/sh", &program).unwrap();
        fs::write(&unit, Definition { program, ..definition() }.text(Manager::Systemd).unwrap()).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["--user", "--man=no", "verify"]).arg(&unit).env("XDG_RUNTIME_DIR", folder.path());
        let verified = match verify.output() {
            Ok(verified) => verified,
            Err(error) => return println!("skipped: there is no systemd-analyze: {error}"),
        };
        // It may complain about other units of this machine.
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && !said.contains("pensieve.service"), "{verified:?}");
    }

    #[test]
    fn a_program_that_systemd_does_not_start_is_refused() {
        for program in ["/opt/it's/pensieve", "/opt/\"it\"/pensieve", "/opt/a\\b/pensieve"] {
            let definition = Definition { program: program.into(), config: None, home: None };
            let refused = definition.text(Manager::Systemd).unwrap_err();
            assert!(refused.lines[0].contains("install it elsewhere"), "{refused:?}");
            assert!(definition.text(Manager::Launchd).is_ok());
        }
    }

    #[test]
    fn a_path_that_would_add_a_line_is_refused() {
        let forged = Definition { program: "/tmp/x\nExecStartPre=/bin/rm".into(), config: None, home: None };
        let refused = forged.text(Manager::Systemd).unwrap_err();
        assert!(refused.lines[0].contains("cannot stand in a service's file"), "{refused:?}");
    }
}
