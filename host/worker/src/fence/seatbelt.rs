//! The fence on macOS: a sandbox profile (Seatbelt), built from the child's policy and entered by `sandbox_init`. Profiles are
//! written in a Scheme, and the last matching rule wins.
//!
//! The profile denies by default, imports what Apple considers necessary for any program (`system.sb`), and allows what the
//! policy names. Names and times of files can be read anywhere, as on Linux. It follows Apple's own profiles and measurements of
//! others (agenc-core #1488, nono #405 and #635), and we have never run it on a Mac.

use std::path::{Path, PathBuf};

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

fn profile(policy: &Policy, surroundings: &Surroundings) -> String {
    let mut text = String::from("(version 1)\n(deny default)\n(import \"system.sb\")\n");
    // These hold even if `system.sb` allows them.
    text.push_str("(deny network*)\n(deny process-fork)\n(deny process-exec*)\n");
    text.push_str("(deny sysctl-read (sysctl-name-prefix \"kern.procargs\"))\n");
    text.push_str("(allow file-read-metadata)\n(allow process-info* (target self))\n");
    text.push_str(SYSCTLS);
    text.push_str("(allow signal (target self))\n");
    let Surroundings { program, libraries, caches } = surroundings;
    let mut code: Vec<&Path> = SYSTEM.iter().map(Path::new).collect();
    code.push(program);
    code.extend(libraries.iter().chain(&policy.read).map(PathBuf::as_path));
    let mut write: Vec<PathBuf> = policy.write.clone();
    if policy.kind.has_drivers() {
        text.push_str(METAL);
        // Metal keeps what it has compiled under the name of the program.
        let name = program.file_name().map(PathBuf::from).unwrap_or_default();
        let kept = |folder: &PathBuf| [folder.join("com.apple.metal"), folder.join(&name).join("com.apple.metal")];
        write.extend(caches.iter().flat_map(kept));
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

#[cfg(target_os = "macos")]
pub(super) use entering::{HOLDS, enter};

#[cfg(target_os = "macos")]
mod entering {
    use super::{Policy, Surroundings, profile};
    use std::{
        ffi::{CStr, CString, OsString, c_char, c_int},
        os::unix::ffi::OsStringExt,
        path::{Path, PathBuf},
        ptr::null_mut,
    };

    pub(in super::super) const HOLDS: &str =
        "reads its model and plugins, writes its own cache, no network, no programs (sandbox profile)";
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
            "/private/var/folders/x/C/pensieve/com.apple.metal",
        ] {
            assert!(text.contains(word), "{word}: {text}");
            for kind in [Kind::Look, Kind::Prompt, Kind::Worker] {
                assert!(!with(kind).contains(word), "{kind:?} has {word}");
            }
        }
        assert!(!with(Kind::Prompt).contains("file-write"));
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
}
