//! Truncated libraries and libraries with flipped bits. A truncated one must be recognized before the system maps it,
//! so these are opened in this process: a check that misses one ends the test run with SIGBUS. No check can promise
//! that for flipped bits, so those are opened in a child, as by design.

use pensieve_worker::plugin::{LoadedPlugin, Reason};
use std::{
    fs,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{library_name, plugin},
    random::Random,
};

#[test]
fn recognises_a_plugin_truncated_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(plugin("bigram")).unwrap();
    let headers = [4, 5, 15, 16, 17, 40, 52, 63, 64, 65, 100, 119, 120, 200, 400, 600, 1000, 2000];
    let inside = (1..=40).map(|part| bytes.len() * part / 41);
    let ends = [bytes.len() - 4096, bytes.len() - 64, bytes.len() - 2, bytes.len() - 1];
    for length in headers.into_iter().chain(inside).chain(ends) {
        let path = folder.path().join(library_name(&length.to_string()));
        fs::write(&path, &bytes[..length]).unwrap();
        let error = LoadedPlugin::open(&path).expect_err("a refusal");
        let Reason::Truncated { needed, length: found } = error.reason else {
            panic!("cut to {length} bytes: {error}");
        };
        assert!(found == length as u64 && needed > found, "cut to {length} bytes: {error}");
        assert!(error.to_string().ends_with("; copy or download it again"), "{error}");
    }
}

#[test]
fn answers_for_every_flipped_bit_in_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(plugin("bigram")).unwrap();
    let mut random = Random(2);
    let (mut opened, mut refused, mut crashed) = (0, 0, 0);
    for case in 0..60 {
        let place = headers(&bytes, &mut random);
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << random.below(8);
        let path = folder.path().join(library_name(&case.to_string()));
        fs::write(&path, &damaged).unwrap();
        let (status, said) = open_in_child(&path);
        match status.code() {
            Some(0) => {
                assert_eq!(said, "bigram\n", "byte {place}");
                opened += 1;
            }
            Some(1) => {
                assert!(
                    said.starts_with(&format!("plugin '{}' ", library_name(&case.to_string()))) && said.contains("; "),
                    "byte {place}: {said}"
                );
                refused += 1;
            }
            // The dynamic loader ended the child, by a signal or with its own message.
            _ => crashed += 1,
        }
        fs::remove_file(&path).unwrap();
    }
    println!("60 flipped bits: {opened} opened, {refused} refused, {crashed} crashed the child");
    // macOS ends a process that maps a page that does not match the library's signature.
    let crashes_max = if cfg!(target_os = "macos") { 60 } else { 3 };
    // Many header bits mean nothing to the dynamic loader, so many damaged libraries still work.
    assert!(refused > 0 && crashed <= crashes_max, "{opened} opened, {refused} refused, {crashed} crashed the child");
}

/// Offset of a byte in the file's header, segment table or section table; the tables are found through the header.
fn headers(bytes: &[u8], random: &mut Random) -> usize {
    let number = |place: usize, len: usize| {
        let mut number = [0; 8];
        number[..len].copy_from_slice(&bytes[place..place + len]);
        usize::try_from(u64::from_le_bytes(number)).unwrap()
    };
    let tables = if cfg!(target_os = "macos") {
        [(0, 32), (32, number(20, 4)), (32, number(20, 4))]
    } else {
        let segments = (number(0x20, 8), number(0x36, 2) * number(0x38, 2));
        [(0, 64), segments, (number(0x28, 8), number(0x3a, 2) * number(0x3c, 2))]
    };
    let (start, len) = tables[random.below(3)];
    start + random.below(len)
}

/// The reply of a child that opens a library, within ten seconds.
fn open_in_child(path: &Path) -> (ExitStatus, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_open_plugin"));
    let mut child = command.arg(path).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{} hangs", path.display());
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    (output.status, String::from_utf8_lossy(&output.stdout).into_owned())
}
