//! Libraries in macOS's format, checked as on a Mac: one that is written here byte by byte, and one that the compiler
//! links for Apple silicon if that target is installed.

use super::*;
use std::process::Command;

const APPLE_SILICON: Platform = (BinaryFormat::MachO, Architecture::Aarch64, true);
const TARGET: &str = "aarch64-apple-darwin";
/// Page size of Apple silicon; segments begin at pages.
const PAGE: usize = 16 << 10;

fn check(bytes: &[u8]) -> Result<(), Reason> {
    check_data(bytes, bytes.len() as u64, APPLE_SILICON)
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

/// A library with two segments that exports a plugin's symbol: a page of code, followed by the symbol table.
fn library() -> Vec<u8> {
    let symbols: [u8; 16] = {
        // Offset of the name in the string table, "exported, in section 1", and the address.
        let mut entry = [0; 16];
        entry[0] = 1;
        (entry[4], entry[5]) = (0x0f, 1);
        entry[8..].copy_from_slice(&1024_u64.to_le_bytes());
        entry
    };
    let strings = format!("\0_{ROOT_MODULE_LOADER_NAME}\0");
    let linkedit = symbols.len() + strings.len();
    let mut commands = Vec::new();
    for (segment, offset, size, sections) in [("__TEXT", 0, PAGE, 1), ("__LINKEDIT", PAGE, linkedit, 0)] {
        commands.extend([0x19_u32, 72 + 80 * sections].map(u32::to_le_bytes).concat());
        commands.extend(name(segment));
        commands.extend([offset, PAGE, offset, size].map(|number| (number as u64).to_le_bytes()).concat());
        commands.extend([5_u32, 5, sections, 0].map(u32::to_le_bytes).concat());
        if sections == 1 {
            commands.extend([name("__const"), name(segment)].concat());
            commands.extend([1024_u64, (PAGE - 1024) as u64].map(u64::to_le_bytes).concat());
            commands.extend([1024_u32, 3, 0, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat());
        }
    }
    let places = [PAGE, 1, PAGE + symbols.len(), strings.len()].map(|number| number as u32);
    commands.extend([&[2, 24], &places[..]].concat().into_iter().flat_map(u32::to_le_bytes));
    let header = [0xfeed_facf, 0x0100_000c, 0, 6, 3, commands.len() as u32, 0, 0];
    let mut bytes = [header.into_iter().flat_map(u32::to_le_bytes).collect(), commands].concat();
    bytes.resize(PAGE, 0);
    bytes.extend(symbols);
    bytes.extend(strings.bytes());
    bytes
}

/// A real library, linked by the compiler's own linker; `None`, with a message, if the target is not installed.
fn linked() -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, library) = (folder.path().join("plugin.rs"), folder.path().join("plugin.dylib"));
    let text = format!(
        "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! {{ loop {{}} }}\n\
         #[export_name = \"{ROOT_MODULE_LOADER_NAME}\"]\npub static HEADER: [u64; 4096] = [7; 4096];\n\
         #[no_mangle]\npub extern \"C\" fn code(place: usize) -> u64 {{ HEADER[place & 4095] }}\n"
    );
    std::fs::write(&source, text).expect("a source");
    let flags = ["--edition=2021", "--crate-type=cdylib", "-Cpanic=abort", "--target", TARGET];
    let linker =
        ["-Clinker=rust-lld", "-Clinker-flavor=ld64.lld", "-Clink-arg=-undefined", "-Clink-arg=dynamic_lookup"];
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(flags).args(linker).arg("-o").args([&library, &source]).output();
    let output = output.expect("a compiler");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("target may not be installed"), "{said}");
        println!("SKIPPED: a linked library for macOS: rustup target add {TARGET}");
        return None;
    }
    Some(std::fs::read(library).expect("a library"))
}

/// Random lengths down to zero.
fn lengths(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let mut random = fastrand::Rng::with_seed(11);
    let end = bytes.len();
    (0..4).chain([28, 31, 32]).chain([PAGE - 1, PAGE, end - 1]).chain((0..40).map(move |_| random.usize(..end)))
}

fn is_truncated_at_any_length(bytes: &[u8]) {
    for length in lengths(bytes) {
        let found = check(&bytes[..length]);
        assert!(matches!(found, Err(Reason::Truncated { .. })), "{length} of {} bytes: {found:?}", bytes.len());
    }
}

#[test]
fn a_library_for_macos_is_whole_or_truncated_and_never_damaged() {
    let bytes = library();
    check(&bytes).expect("a plugin");
    is_truncated_at_any_length(&bytes);
}

#[test]
fn so_is_one_that_was_linked() {
    let Some(bytes) = linked() else { return };
    check(&bytes).expect("a plugin");
    is_truncated_at_any_length(&bytes);
}

#[test]
fn so_is_one_for_several_processors() {
    let library = library();
    // One entry: the processor, offset and length of its library, and its alignment as a power of two.
    let header = [0xcafe_babe, 1, 0x0100_000c, 0, PAGE as u32, library.len() as u32, 14];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    bytes.resize(PAGE, 0);
    bytes.extend(&library);
    check(&bytes).expect("a plugin");
    is_truncated_at_any_length(&bytes);
    bytes[8..12].copy_from_slice(&0x0100_0007_u32.to_be_bytes());
    assert!(matches!(check(&bytes), Err(Reason::OtherPlatform { .. })));
}
