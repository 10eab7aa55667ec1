//! The fence on macOS: a sandbox profile (Seatbelt), built from the child's policy and entered by `sandbox_init`. Profiles are
//! written in a Scheme, and the last matching rule wins.
//!
//! The profile denies by default, imports what Apple considers necessary for any program (`system.sb`), and allows what the
//! policy names. Names and times of files can be read anywhere, as on Linux. It follows Apple's own profiles and measurements of
//! others (agenc-core #1488, nono #405 and #635), and we have never run it on a Mac.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pensieve_protocol::fence::Policy;

/// Folders of the system's libraries, and of libraries that a plugin may link.
const SYSTEM: [&str; 8] = [
    "/System",
    "/Library/Apple",
    "/usr/lib",
    "/usr/share",
    "/usr/local/lib",
    "/opt",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
];
/// Metal on Apple silicon: the driver's end in the kernel, and the service that compiles kernels. Others measured that no further
/// class is needed to compute. The driver's is that of the connection; the class of a registry entry is another one's.
const METAL: &str = "(allow iokit-open
  (iokit-user-client-class \"AGXDeviceUserClient\"))
(allow iokit-get-properties)
(allow mach-lookup
  (global-name \"com.apple.MTLCompilerService\")
  (xpc-service-name \"com.apple.MTLCompilerService\"))
";

/// Folders of what Metal has compiled: pipelines, and libraries from their sources. Without the latter each load compiles anew.
const KEPT: [&str; 2] = ["com.apple.metal", "com.apple.metalfe"];

/// Figures of the system. By name, as `kern.procargs2` would show the environments of the user's other processes, keys included.
const SYSCTLS: &str = "(allow sysctl-read
  (sysctl-name-prefix \"hw.\")
  (sysctl-name-prefix \"machdep.cpu.\")
  (sysctl-name-prefix \"kern.os\")
  (sysctl-name-prefix \"iogpu.\")
  (sysctl-name \"kern.argmax\")
  (sysctl-name \"kern.memorystatus_level\")
  (sysctl-name \"kern.ngroups\")
  (sysctl-name \"kern.usrstack64\")
  (sysctl-name \"kern.version\")
  (sysctl-name \"vm.loadavg\"))
";

/// Paths that a profile needs besides the policy's, all resolved.
#[derive(Default)]
struct Surroundings {
    program: PathBuf,
    /// Further folders that the loader searches.
    libraries: Vec<PathBuf>,
    /// The user's folder for caches.
    caches: Option<PathBuf>,
}

impl Surroundings {
    /// Metal keeps what it has compiled here, and under the name of the program.
    fn compiled(&self) -> Vec<PathBuf> {
        let name = self.program.file_name().map(PathBuf::from).unwrap_or_default();
        let folders = self.caches.iter().flat_map(|caches| [caches.clone(), caches.join(&name)]);
        folders.flat_map(|folder| KEPT.map(|kept| folder.join(kept))).collect()
    }

    /// Makes those folders: inside the profile nobody can make the one of the program.
    fn prepare(&self) {
        for folder in self.compiled() {
            // Without one, Metal compiles anew each time.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        }
    }
}

fn profile(policy: &Policy, surroundings: &Surroundings) -> String {
    let mut text = String::from("(version 1)\n(deny default)\n(import \"system.sb\")\n");
    // These hold even if `system.sb` allows them.
    text.push_str("(deny network*)\n(deny process-fork)\n(deny process-exec*)\n");
    text.push_str("(deny sysctl-read (sysctl-name-prefix \"kern.procargs\"))\n");
    text.push_str("(allow file-read-metadata)\n(allow process-info* (target self))\n");
    text.push_str(SYSCTLS);
    text.push_str("(allow signal (target self))\n");
    let Surroundings { program, libraries, .. } = surroundings;
    let mut code: Vec<&Path> = SYSTEM.iter().map(Path::new).collect();
    code.push(program);
    code.extend(libraries.iter().chain(&policy.read).map(PathBuf::as_path));
    let mut write: Vec<PathBuf> = policy.write.clone();
    if policy.kind.has_drivers() {
        text.push_str(METAL);
        write.extend(surroundings.compiled());
    }
    allow(&mut text, "file-read* file-map-executable", &code);
    allow(&mut text, "file-read* file-write*", &write.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    text
}

/// Appends a rule for these files and folders. A path that cannot be quoted is left out, and thereby denied.
fn allow(text: &mut String, operations: &str, paths: &[&Path]) {
    let quoted: Vec<String> = paths.iter().filter_map(|path| quoted(path)).collect();
    if !quoted.is_empty() {
        text.push_str(&format!("(allow {operations}\n  (subpath {}))\n", quoted.join(")\n  (subpath ")));
    }
}

fn quoted(path: &Path) -> Option<String> {
    let path = path.to_str().filter(|path| path.starts_with('/') && !path.chars().any(char::is_control))?;
    Some(format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\"")))
}

pub(super) const HOLDS: &str =
    "reads its model and plugins, writes its own cache, no network, no programs (sandbox profile)";

#[cfg(target_os = "macos")]
pub(super) use entering::enter;

#[cfg(target_os = "macos")]
mod entering {
    use super::{Policy, Surroundings, profile};
    use std::{
        ffi::{CStr, CString, OsString, c_char, c_int},
        os::unix::ffi::OsStringExt,
        path::{Path, PathBuf},
        ptr::null_mut,
    };

    const SEARCHED: [&str; 2] = ["DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"];

    unsafe extern "C" {
        /// Of libSystem. Takes a profile's text where the flags are zero.
        fn sandbox_init(profile: *const c_char, flags: u64, error: *mut *mut c_char) -> c_int;
        fn sandbox_free_error(error: *mut c_char);
    }

    /// Enters the profile, which the system refuses inside another sandbox.
    pub(in super::super) fn enter(policy: &Policy) -> Result<(), String> {
        let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let named = SEARCHED.iter().filter_map(std::env::var_os);
        let libraries = named.flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
        let surroundings = Surroundings {
            program: resolved(&std::env::current_exe().map_err(|error| error.to_string())?),
            libraries: libraries.map(|path| resolved(&path)).collect(),
            caches: caches().map(|path| resolved(&path)),
        };
        if policy.kind.has_drivers() {
            surroundings.prepare();
        }
        let text = CString::new(profile(policy, &surroundings)).map_err(|error| error.to_string())?;
        let mut error = null_mut();
        // SAFETY: the text ends with a zero and lives through the call, which sets the pointer if it fails.
        if unsafe { sandbox_init(text.as_ptr(), 0, &raw mut error) } == 0 {
            return Ok(());
        }
        if error.is_null() {
            return Err(std::io::Error::last_os_error().to_string());
        }
        // SAFETY: the call has failed and left a text that ends with a zero and is this function's to free.
        let said = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
        // SAFETY: as above; it is not used any more.
        unsafe { sandbox_free_error(error) };
        Err(said)
    }

    fn caches() -> Option<PathBuf> {
        let mut bytes = vec![0_u8; 1024];
        // SAFETY: the call writes at most as many bytes as the buffer has.
        let length = unsafe { libc::confstr(libc::_CS_DARWIN_USER_CACHE_DIR, bytes.as_mut_ptr().cast(), bytes.len()) };
        // The length counts the zero at the end; of a longer one only the head was written.
        let text = bytes.get(..length.checked_sub(1)?)?;
        Some(PathBuf::from(OsString::from_vec(text.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pensieve_protocol::fence::Kind;

    fn surroundings() -> Surroundings {
        Surroundings {
            program: "/opt/pensieve".into(),
            libraries: vec!["/lib here".into()],
            caches: Some("/private/var/folders/x/C".into()),
        }
    }

    /// Parentheses are balanced outside of texts, so that no path ends a rule.
    fn check_form(text: &str) {
        let (mut depth, mut inside, mut letters) = (0_i32, false, text.chars());
        while let Some(letter) = letters.next() {
            match letter {
                '\\' if inside => drop(letters.next()),
                '"' => inside = !inside,
                '(' if !inside => depth += 1,
                ')' if !inside => depth -= 1,
                _ => {}
            }
            assert!(depth >= 0, "{text}");
        }
        assert!(depth == 0 && !inside, "{text}");
    }

    #[test]
    fn a_child_reads_what_its_policy_names_and_writes_its_cache() {
        let policy = Policy {
            kind: Kind::Worker,
            read: vec!["/models/m".into(), "/plugins/p.dylib".into()],
            write: vec!["/own/cache".into()],
            ..Policy::default()
        };
        let text = profile(&policy, &surroundings());
        check_form(&text);
        assert!(text.starts_with("(version 1)\n(deny default)\n"));
        let (read, written) = text.split_once("(allow file-read* file-write*").unwrap();
        for path in ["/opt/pensieve", "/lib here", "/models/m", "/plugins/p.dylib", "/usr/lib"] {
            assert!(read.contains(&format!("(subpath \"{path}\")")), "{path}: {text}");
        }
        assert_eq!(written, "\n  (subpath \"/own/cache\"))\n");
        assert!(text.contains("(deny sysctl-read (sysctl-name-prefix \"kern.procargs\"))"), "{text}");
        assert!(!text.contains("(allow sysctl-read)") && !text.contains("prefix \"kern.\")"), "{text}");
        for word in ["iokit", "mach-lookup", "(allow network", "(allow process-fork", "(allow process-exec", "Users"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn one_that_computes_with_metal_reaches_its_driver_and_the_others_do_not() {
        let with = |kind| profile(&Policy { kind, ..Policy::default() }, &surroundings());
        let text = with(Kind::GpuWorker);
        check_form(&text);
        for word in [
            // As a class of registry entries it would match nothing, and Metal would have no device.
            "(iokit-user-client-class \"AGXDeviceUserClient\")",
            "(global-name \"com.apple.MTLCompilerService\")",
            "(xpc-service-name \"com.apple.MTLCompilerService\")",
            "\"/private/var/folders/x/C/pensieve/com.apple.metal\"",
            "\"/private/var/folders/x/C/pensieve/com.apple.metalfe\"",
            "\"/private/var/folders/x/C/com.apple.metalfe\"",
        ] {
            assert!(text.contains(word), "{word}: {text}");
            for kind in [Kind::Look, Kind::Prompt, Kind::Worker] {
                assert!(!with(kind).contains(word), "{kind:?} has {word}");
            }
        }
        assert!(!with(Kind::Prompt).contains("file-write"));
    }

    #[test]
    fn folders_that_metal_may_write_are_there_before_nobody_can_make_them() {
        let caches = tempfile::tempdir().unwrap();
        let surroundings = Surroundings { caches: Some(caches.path().into()), ..surroundings() };
        surroundings.prepare();
        let made = surroundings.compiled();
        assert!(made.len() == 4 && made.iter().all(|folder| folder.is_dir()), "{made:?}");
        assert!(made.contains(&caches.path().join("pensieve/com.apple.metalfe")), "{made:?}");
        Surroundings { caches: None, ..surroundings }.prepare();
    }

    #[test]
    fn no_path_is_more_than_a_path() {
        let read = ["/a\") (allow default) (\"", "/b\\", "/c\\\") (allow network*)", "/new\nline", "relative", "/ok ü"];
        let policy = Policy { read: read.iter().map(PathBuf::from).collect(), ..Policy::default() };
        let text = profile(&policy, &surroundings());
        check_form(&text);
        for quoted in [r#"(subpath "/a\") (allow default) (\"")"#, r#"(subpath "/b\\")"#, r#"(subpath "/ok ü")"#] {
            assert!(text.contains(quoted), "{quoted}: {text}");
        }
        assert!(!text.contains("relative") && !text.contains("line"), "{text}");
    }

    /// An expression of a profile.
    #[derive(Debug, PartialEq)]
    enum Expression {
        Word(String),
        Text(String),
        List(Vec<Expression>),
    }

    /// Reads expressions up to the end of the list that they are in.
    fn read(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Vec<Expression> {
        let mut found = Vec::new();
        while let Some(letter) = letters.next() {
            match letter {
                '(' => found.push(Expression::List(read(letters))),
                ')' => break,
                '"' => {
                    let mut text = String::new();
                    while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
                        text.push(if letter == '\\' { letters.next().expect("a letter is quoted") } else { letter });
                    }
                    found.push(Expression::Text(text));
                }
                letter if letter.is_whitespace() => {}
                letter => {
                    let mut word = String::from(letter);
                    while let Some(letter) =
                        letters.next_if(|letter| !letter.is_whitespace() && !"()\"".contains(*letter))
                    {
                        word.push(letter);
                    }
                    found.push(Expression::Word(word));
                }
            }
        }
        found
    }

    /// A filter's answer about the path or name that an operation is about.
    fn fits(filter: &Expression, subject: &str) -> bool {
        let Expression::List(parts) = filter else { panic!("{filter:?} is no filter") };
        match &parts[..] {
            [Expression::Word(kind), Expression::Text(text)] => match kind.as_str() {
                "subpath" => Path::new(subject).starts_with(text),
                "sysctl-name-prefix" => subject.starts_with(text.as_str()),
                "sysctl-name" | "global-name" | "xpc-service-name" | "iokit-user-client-class" => subject == text,
                _ => panic!("no filter is known as {kind}"),
            },
            [Expression::Word(kind), Expression::Word(own)] if kind == "target" && own == "self" => subject == "self",
            _ => panic!("{parts:?} is no filter"),
        }
    }

    /// The verdict of a profile on an operation: the last matching rule's.
    fn allows(profile: &str, operation: &str, subject: &str) -> bool {
        let mut allowed = None;
        for rule in read(&mut profile.chars().peekable()) {
            let Expression::List(parts) = rule else { panic!("{rule:?} is no rule") };
            let (Some(Expression::Word(verb)), rest) = (parts.first(), &parts[1..]) else { panic!("{parts:?}") };
            if !["allow", "deny"].contains(&verb.as_str()) {
                continue;
            }
            let matches = |part: &Expression| match part {
                Expression::Word(word) => match word.strip_suffix('*') {
                    Some(start) => operation.starts_with(start),
                    None => word == operation || word == "default",
                },
                _ => false,
            };
            let filters = || rest.iter().filter(|part| matches!(part, Expression::List(_)));
            if rest.iter().any(matches) && (filters().count() == 0 || filters().any(|filter| fits(filter, subject))) {
                allowed = Some(verb == "allow");
            }
        }
        allowed.expect("a profile has a default")
    }

    /// Operations on which a profile does not decide as it must. Apple's `system.sb` counts as allowing all that must not be.
    fn wrong(profile: &str, is_gpu: bool) -> Vec<String> {
        let imported = "(allow network* process-fork process-exec* sysctl-read)";
        let profile = profile.replace("(import \"system.sb\")", imported);
        let cases = [
            ("file-read-data", "/models/m/model.gguf", true),
            ("file-read-data", "/plugins/p.dylib", true),
            ("file-map-executable", "/plugins/p.dylib", true),
            ("file-read-data", "/own/cache/block", true),
            ("file-write-create", "/own/cache/block", true),
            ("file-read-metadata", "/Users/me/.ssh", true),
            ("sysctl-read", "hw.memsize", true),
            ("signal", "self", true),
            ("file-read-data", "/Users/me/.ssh/id_ed25519", false),
            ("file-read-data", "/models/mine/model.gguf", false),
            ("file-read-data", "/etc/master.passwd", false),
            ("file-write-data", "/models/m/model.gguf", false),
            ("file-write-data", "/plugins/p.dylib", false),
            ("file-write-create", "/Users/me/.zshrc", false),
            ("file-write-create", "/opt/pensieve", false),
            ("file-map-executable", "/own/cache/block", false),
            ("network-outbound", "203.0.113.7:443", false),
            ("network-bind", "*:80", false),
            ("process-fork", "", false),
            ("process-exec", "/bin/sh", false),
            ("signal", "others", false),
            ("sysctl-read", "kern.procargs2", false),
            ("mach-lookup", "com.apple.securityd", false),
            ("iokit-open", "IOHIDLibUserClient", false),
            ("mach-lookup", "com.apple.MTLCompilerService", is_gpu),
            ("iokit-open", "AGXDeviceUserClient", is_gpu),
            ("file-write-create", "/private/var/folders/x/C/pensieve/com.apple.metalfe/functions.data", is_gpu),
            ("file-write-create", "/private/var/folders/x/C/com.example.other/data", false),
        ];
        let wrong = cases.into_iter().filter(|(what, subject, expect)| allows(&profile, what, subject) != *expect);
        wrong.map(|(what, subject, expect)| format!("{what} {subject}: not {expect}")).collect()
    }

    fn own_profile(kind: Kind) -> String {
        let (read, write) = (vec!["/models/m".into(), "/plugins/p.dylib".into()], vec!["/own/cache".into()]);
        profile(&Policy { kind, read, write, ..Policy::default() }, &surroundings())
    }

    #[test]
    fn a_profile_decides_as_the_system_will_read_it() {
        for kind in [Kind::Worker, Kind::GpuWorker] {
            assert_eq!(wrong(&own_profile(kind), kind.has_drivers()), [""; 0], "{kind:?}");
        }
    }

    #[test]
    fn a_mistake_in_a_profile_is_found() {
        let right = own_profile(Kind::GpuWorker);
        for (part, instead, what) in [
            ("(deny default)", "(allow default)", "file-write-create /Users/me/.zshrc"),
            ("(deny network*)", "", "network-outbound"),
            ("(deny process-fork)", "", "process-fork"),
            ("(deny process-exec*)", "", "process-exec"),
            ("(deny sysctl-read (sysctl-name-prefix \"kern.procargs\"))", "", "sysctl-read"),
            ("(allow file-read-metadata)", "(allow file-read*)", "file-read-data /Users/me"),
            ("(subpath \"/models/m\")", "(subpath \"/models\")", "file-read-data /models/mine"),
            ("(subpath \"/own/cache\")", "(subpath \"/\")", "file-write-data /models/m"),
            ("file-read* file-map-executable", "file-read* file-write*", "file-write-data /plugins"),
            ("(allow file-read* file-write*", "(allow file*", "file-map-executable /own/cache"),
            ("(subpath \"/models/m\")", "(subpath \"/models/n\")", "file-read-data /models/m/"),
            ("com.apple.metalfe", "com.apple.metal", "com.apple.metalfe"),
            ("(target self)", "", "signal others"),
            ("(iokit-user-client-class \"AGXDeviceUserClient\")", "", "iokit-open IOHID"),
        ] {
            assert!(right.contains(part), "{part}");
            let found = wrong(&right.replace(part, instead), true);
            assert!(found.iter().any(|found| found.contains(what)), "'{part}' as '{instead}': {found:?}");
        }
        let late = format!("{right}(allow network-outbound)\n");
        assert_eq!(wrong(&late, true), ["network-outbound 203.0.113.7:443: not false"]);
    }
}
