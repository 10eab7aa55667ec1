//! A library whose header is that of another abi_stable.

use pensieve_plugin_api::abi_stable::library::AbiHeader;

/// As large as the header that a host may read before it trusts the version in it.
#[repr(C)]
struct Header {
    magic: [u8; 32],
    major: u32,
    minor: u32,
    rest: [u64; 64],
}

#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
#[used]
static HEADER: Header = Header { magic: AbiHeader::VALUE.magic_string, major: 0, minor: 99, rest: [0; 64] };
