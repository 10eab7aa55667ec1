//! Reads a library's headers before the system maps it.
//!
//! `dlopen` trusts the file: a truncated one raises SIGBUS when its missing pages are touched, and one for another
//! machine or without our symbol yields an error that users do not understand. The code here only reads, so it cannot
//! fail in any other way than with an error. It does not prove that a library is sound (only running it would), but
//! rejects files that cannot be.

#[cfg(test)]
mod macho_tests;

use object::{
    Architecture, BinaryFormat, Endianness, ExportTarget, FileKind, Object, ObjectKind, ObjectSection, ObjectSegment,
    ReadCache, ReadRef, elf, macho,
    read::elf::{ElfFile64, FileHeader, ProgramHeader},
    read::macho::{FatArch, MachHeader, MachOFatFile32, Segment},
};
use pensieve_plugin_api::abi_stable::library::{LibHeader, ROOT_MODULE_LOADER_NAME};
use pensieve_protocol::quarantine;
use std::{fs::File, mem::size_of, path::Path};

use super::Reason;

/// First bytes of the supported formats, with the size of the header that they begin.
const HEADERS: [(&[u8], usize); 3] = [
    (b"\x7fELF", size_of::<elf::FileHeader64<Endianness>>()),
    (b"\xcf\xfa\xed\xfe", size_of::<macho::MachHeader64<Endianness>>()),
    // A universal library: the header and the entry of at least one processor.
    (b"\xca\xfe\xba\xbe", size_of::<macho::FatHeader>() + size_of::<macho::FatArch32>()),
];

/// Maximum memory that a library may request beyond the file's bytes.
const ZEROED_BYTES_MAX: u64 = 1 << 32;

/// Checks that the file is a complete shared library for this machine that exports a plugin's symbol, and is not
/// quarantined: loading a quarantined one would wait for the user to answer a dialog.
pub(super) fn check(path: &Path) -> Result<(), Reason> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Reason::NotFound),
        Err(error) => return Err(Reason::Unreadable(error)),
    };
    let metadata = file.metadata().map_err(Reason::Unreadable)?;
    if !metadata.is_file() {
        return Err(Reason::NotALibrary("it is not a file".into()));
    }
    if is_marked(&file, quarantine::ATTRIBUTE) {
        return Err(Reason::Quarantined(path.to_path_buf()));
    }
    check_data(&ReadCache::new(file), metadata.len(), host())
}

fn is_marked(file: &File, attribute: &str) -> bool {
    rustix::fs::fgetxattr_query(file, attribute).is_ok()
}

fn check_data<'data>(data: impl ReadRef<'data>, length: u64, host: Platform) -> Result<(), Reason> {
    // A file shorter than its format's header is truncated; the parser could not even name its format.
    let start = data.read_bytes_at(0, length.min(4)).unwrap_or_default();
    for (magic, header) in HEADERS {
        if magic.starts_with(start) {
            require(header as u64, length)?;
        }
    }
    let kind =
        FileKind::parse(data).map_err(|_| Reason::NotALibrary(format!("nothing known in its {length} bytes")))?;
    match kind {
        FileKind::MachOFat32 if host.0 == BinaryFormat::MachO => {
            let (offset, size) = fat_slice(data, host)?;
            require(offset.saturating_add(size), length)?;
            let slice = data.read_bytes_at(offset, size).map_err(|()| Reason::Truncated { needed: offset, length })?;
            return check_data(slice, size, host);
        }
        FileKind::MachOFat32 | FileKind::MachOFat64 => {
            return Err(Reason::OtherPlatform { found: "macOS".into(), host: platform(host) });
        }
        FileKind::Archive => return Err(Reason::NotALibrary("it is an archive".into())),
        FileKind::Coff | FileKind::CoffBig | FileKind::CoffImport => {
            return Err(Reason::NotALibrary("it looks like a Windows object file or like arbitrary bytes".into()));
        }
        FileKind::Elf64 => require(elf_extent(data)?, length)?,
        FileKind::MachO64 => require(macho_extent(data, length)?, length)?,
        _ => {}
    }
    let file = object::File::parse(data).map_err(|error| Reason::Damaged(error.to_string()))?;
    check_platform(&file, host)?;
    if file.kind() != ObjectKind::Dynamic {
        return Err(Reason::NotALibrary(format!("it is of kind '{:?}'", file.kind())));
    }
    for segment in file.segments() {
        let (offset, size) = segment.file_range();
        require(end(offset, size)?, length)?;
    }
    for section in file.sections() {
        if let Some((offset, size)) = section.file_range() {
            require(end(offset, size)?, length)?;
        }
    }
    if let object::File::Elf64(file) = &file {
        check_mapping(file, length)?;
    }
    check_symbol(&file)
}

/// Checks that segments and sections, which both describe the mapping, agree; otherwise the system's loader would
/// crash.
fn check_mapping<'data>(file: &ElfFile64<'data, Endianness, impl ReadRef<'data>>, length: u64) -> Result<(), Reason> {
    let endian = file.endian();
    let damaged = |what: &str| Err(Reason::Damaged(what.into()));
    let is_mapped = |address: u64, offset: u64, size: u64| {
        file.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).any(|segment| {
            let (start, from) = (segment.p_vaddr(endian), segment.p_offset(endian));
            let (above, within) = (address.wrapping_sub(start), offset.wrapping_sub(from));
            above == within && within.checked_add(size).is_some_and(|end| end <= segment.p_filesz(endian))
        })
    };
    let mut dynamic = 0;
    for segment in file.elf_program_headers() {
        let (offset, in_file, in_memory) =
            (segment.p_offset(endian), segment.p_filesz(endian), segment.p_memsz(endian));
        if in_file > in_memory || in_memory > length.saturating_add(ZEROED_BYTES_MAX) {
            return damaged("a segment's size in memory is impossible");
        }
        if in_file > 0 && !is_mapped(segment.p_vaddr(endian), offset, in_file) {
            return damaged("a segment lies outside of what is mapped");
        }
        dynamic += u32::from(segment.p_type(endian) == elf::PT_DYNAMIC);
    }
    if dynamic != 1 {
        return damaged("it has no table for the system's loader, or several");
    }
    for section in file.sections() {
        if let Some((offset, size)) = section.file_range()
            && section.address() != 0
            && !is_mapped(section.address(), offset, size)
        {
            return damaged("a section lies outside of what is mapped");
        }
    }
    Ok(())
}

/// Checks that the plugin's header is in mapped memory, as it is read before anything else can be checked.
fn check_symbol<'data>(file: &object::File<'data, impl ReadRef<'data>>) -> Result<(), Reason> {
    // In Mach-O, C symbols begin with an underscore.
    let name = match file.format() {
        BinaryFormat::MachO => format!("_{ROOT_MODULE_LOADER_NAME}"),
        _ => ROOT_MODULE_LOADER_NAME.to_owned(),
    };
    let damaged = |error: object::Error| Reason::Damaged(format!("its list of exports: {error}"));
    for export in file.exports().map_err(damaged)? {
        let export = export.map_err(damaged)?;
        if export.name().name() != Some(name.as_bytes()) {
            continue;
        }
        let ExportTarget::Address { address } = export.target() else {
            return Err(Reason::Damaged("its plugin symbol is not a place in memory".into()));
        };
        let end = end(address, size_of::<LibHeader>() as u64)?;
        let mapped = |start: u64, size: u64| start <= address && end <= start.saturating_add(size);
        if !file.segments().any(|segment| mapped(segment.address(), segment.size())) {
            return Err(Reason::Damaged("its plugin symbol lies outside of it".into()));
        }
        return Ok(());
    }
    Err(Reason::MissingSymbol)
}

/// The format, processor and byte order of a library.
type Platform = (BinaryFormat, Architecture, bool);

fn check_platform<'data>(file: &object::File<'data, impl ReadRef<'data>>, host: Platform) -> Result<(), Reason> {
    let found = (file.format(), file.architecture(), file.is_little_endian());
    if found == host {
        return Ok(());
    }
    Err(Reason::OtherPlatform { found: platform(found), host: platform(host) })
}

fn host() -> Platform {
    let format = if cfg!(target_vendor = "apple") { BinaryFormat::MachO } else { BinaryFormat::Elf };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        "riscv64" => Architecture::Riscv64,
        "powerpc64" => Architecture::PowerPc64,
        "loongarch64" => Architecture::LoongArch64,
        "s390x" => Architecture::S390x,
        _ => Architecture::Unknown,
    };
    (format, architecture, cfg!(target_endian = "little"))
}

fn platform((format, architecture, little_endian): Platform) -> String {
    let system = match format {
        BinaryFormat::Elf => "Linux or another ELF system".to_owned(),
        BinaryFormat::MachO => "macOS".to_owned(),
        BinaryFormat::Pe | BinaryFormat::Coff => "Windows".to_owned(),
        other => format!("{other:?}"),
    };
    let order = if little_endian { "" } else { " (big-endian)" };
    let architecture = format!("{architecture:?}").to_lowercase();
    format!("{system} on {architecture}{order}")
}

/// Number of bytes up to the end of the header and the tables that it refers to.
fn elf_extent<'data>(data: impl ReadRef<'data>) -> Result<u64, Reason> {
    let size = size_of::<elf::FileHeader64<Endianness>>() as u64;
    let damaged = |error: object::Error| Reason::Damaged(error.to_string());
    let header = elf::FileHeader64::<Endianness>::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let table = |offset: u64, entries: u16, entry: u16| end(offset, u64::from(entries) * u64::from(entry));
    let segments = table(header.e_phoff(endian), header.e_phnum(endian), header.e_phentsize(endian))?;
    let sections = table(header.e_shoff(endian), header.e_shnum(endian), header.e_shentsize(endian))?;
    Ok(size.max(segments).max(sections))
}

/// Number of bytes up to the end of the header, its load commands and their segments. Symbols, exports and the
/// signature are in the last segment (`__LINKEDIT`); the parser calls a file without them damaged.
fn macho_extent<'data>(data: impl ReadRef<'data>, length: u64) -> Result<u64, Reason> {
    let size = size_of::<macho::MachHeader64<Endianness>>() as u64;
    let damaged = |error: object::Error| Reason::Damaged(error.to_string());
    let header = macho::MachHeader64::<Endianness>::parse(data, 0).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let mut extent = end(size, u64::from(header.sizeofcmds(endian)))?;
    require(extent, length)?;
    let mut commands = header.load_commands(endian, data, 0).map_err(damaged)?;
    while let Some(command) = commands.next().map_err(damaged)? {
        if let Some((segment, _)) = command.segment_64().map_err(damaged)? {
            let (offset, size) = segment.file_range(endian);
            extent = extent.max(end(offset, size)?);
        }
    }
    Ok(extent)
}

/// Returns the part of a macOS universal library that is for this machine.
fn fat_slice<'data>(data: impl ReadRef<'data>, host: Platform) -> Result<(u64, u64), Reason> {
    let file = MachOFatFile32::parse(data).map_err(|error| Reason::Damaged(error.to_string()))?;
    match file.arches().iter().find(|slice| slice.architecture() == host.1) {
        Some(slice) => Ok(slice.file_range()),
        None => Err(Reason::OtherPlatform { found: "macOS on other processors".into(), host: platform(host) }),
    }
}

fn end(offset: u64, size: u64) -> Result<u64, Reason> {
    offset.checked_add(size).ok_or_else(|| Reason::Damaged("a header's offset and size overflow".into()))
}

fn require(needed: u64, length: u64) -> Result<(), Reason> {
    if needed > length { Err(Reason::Truncated { needed, length }) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen() {
        let file = tempfile::tempfile().expect("a file");
        assert!(!is_marked(&file, "user.quarantine"));
        if rustix::fs::fsetxattr(&file, "user.quarantine", b"0083;;;", rustix::fs::XattrFlags::empty()).is_err() {
            return println!("SKIPPED: temporary files can have no attributes");
        }
        assert!(is_marked(&file, "user.quarantine"));
    }

    /// This test's own binary has this system's format; headers are in its first and last bytes.
    #[test]
    fn never_panics_on_damaged_headers() {
        let bytes = std::fs::read(std::env::current_exe().expect("a path")).expect("a readable file");
        let mut seed = 1_u64;
        let mut random = |end: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % end
        };
        let mut damaged = bytes.clone();
        for case in 0..3000 {
            let place = if case % 2 == 0 { random(1024) } else { bytes.len() - 1 - random(4096) };
            damaged[place] = random(256) as u8;
            let length = damaged.len() - random(2) * random(damaged.len());
            let _ = check_data(&damaged[..length], length as u64, host());
            if case % 8 == 0 {
                damaged[..1024].copy_from_slice(&bytes[..1024]);
            }
        }
        assert!(matches!(
            check_data(&bytes[..], bytes.len() as u64, host()),
            Err(Reason::MissingSymbol | Reason::NotALibrary(_))
        ));
    }
}
