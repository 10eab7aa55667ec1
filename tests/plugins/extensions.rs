//! A newer plugin, written on the bare contract: it offers an extension that no current host knows, and asks the
//! host for one that it lacks. Its options choose whether its `kv-transfer/1` has the right table or one of another layout.

use pensieve_plugin_api::{
    self as api, Architecture_TO, ErrorCode, Extension, Manifest, Model_TO, PluginError, PluginModule,
    abi_stable::{
        StableAbi,
        library::{LibHeader, RootModuleResult},
        sabi_trait::TD_Opaque,
        sabi_types::RMut,
        std_types::{RErr, RNone, ROk, ROption, RResult, RSlice, RSliceMut, RSome, RStr, RVec},
    },
    ext::kv_transfer::{self, KvTransfer},
};
use pensieve_test_plugins::{Future, ID as FUTURE_ID};

const VOCABULARY: u32 = 4;
const BLOCK_BYTES: usize = 8;

#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
#[used]
static HEADER: LibHeader = api::header(constructor);

extern "C" fn constructor() -> RootModuleResult {
    PluginModule { manifest, architecture, sampler, adapter_format, extension }.export()
}

extern "C" fn manifest() -> Manifest {
    let claim = api::Claim { architecture: "later".into(), gguf: RVec::new(), classes: RVec::new() };
    Manifest {
        id: "extensions".into(),
        version: "9.0.0".into(),
        description: "a plugin of a later day".into(),
        toolchain: "any".into(),
        sdk: "".into(),
        architectures: vec![claim].into(),
        samplers: RVec::new(),
        adapter_formats: RVec::new(),
    }
}

extern "C" fn architecture(_index: u32) -> RResult<api::ArchitectureBox, PluginError> {
    ROk(Architecture_TO::from_value(Later, TD_Opaque))
}

extern "C" fn sampler(_index: u32) -> RResult<api::SamplerBox, PluginError> {
    RErr(PluginError::new(ErrorCode::NOT_FOUND, "no samplers"))
}

extern "C" fn adapter_format(_index: u32) -> RResult<api::AdapterBox, PluginError> {
    RErr(PluginError::new(ErrorCode::NOT_FOUND, "no adapter formats"))
}

extern "C" fn extension(id: RStr<'_>) -> ROption<Extension> {
    if id == FUTURE_ID { RSome(Extension::offer(&FUTURE)) } else { RNone }
}

static FUTURE: Future = Future { answer };

extern "C" fn answer() -> u64 {
    42
}

/// Not the table that the id `kv-transfer/1` promises.
#[repr(C)]
#[derive(StableAbi)]
pub struct WrongTransfer {
    /// Returns 32 bits where the contract has 64.
    pub block_bytes: extern "C" fn(model: RMut<'_, ()>) -> u32,
}

static WRONG_TRANSFER: WrongTransfer = WrongTransfer { block_bytes: wrong_block_bytes };

extern "C" fn wrong_block_bytes(_model: RMut<'_, ()>) -> u32 {
    0
}

static RIGHT_TRANSFER: KvTransfer = KvTransfer { bytes, export, import };

unsafe extern "C" fn bytes(_model: RMut<'_, ()>, _group: u32) -> u64 {
    BLOCK_BYTES as u64
}

unsafe extern "C" fn export(
    model: RMut<'_, ()>,
    _group: u32,
    block: u32,
    mut bytes: RSliceMut<'_, u8>,
) -> RResult<(), PluginError> {
    if block != 0 || bytes.len() != BLOCK_BYTES {
        return RErr(PluginError::new(ErrorCode::INVALID, "one block of eight bytes"));
    }
    bytes.copy_from_slice(&loaded(model).block);
    ROk(())
}

unsafe extern "C" fn import(
    model: RMut<'_, ()>,
    _group: u32,
    block: u32,
    bytes: RSlice<'_, u8>,
) -> RResult<(), PluginError> {
    if block != 0 || bytes.len() != BLOCK_BYTES {
        return RErr(PluginError::new(ErrorCode::INVALID, "one block of eight bytes"));
    }
    loaded(model).block.copy_from_slice(&bytes);
    ROk(())
}

fn loaded(model: RMut<'_, ()>) -> &mut Loaded {
    // SAFETY: the tables are offered by `Loaded` alone, and a host passes the object that offered them.
    unsafe { &mut *model.into_raw().cast::<Loaded>() }
}

struct Later;

impl api::Architecture for Later {
    fn describe(&self, _source: &api::Source<'_>) -> RResult<api::Card, PluginError> {
        ROk(api::Card {
            architecture: "later".into(),
            vocabulary: VOCABULARY,
            context: 64,
            block_tokens: 2,
            caches: vec![api::CacheGroup { kind: api::CacheKind::TOKENS, window: 0, bytes: BLOCK_BYTES as u64 }].into(),
            candidates: 0,
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: "".into(),
            chat_template: RNone,
            bos: RNone,
            add_bos: false,
            eos: RVec::new(),
            formats: "".into(),
            facts: "".into(),
            fingerprint: "later".into(),
        })
    }

    fn load(&self, request: &api::LoadRequest<'_>, services: api::ServicesArc) -> RResult<api::ModelBox, PluginError> {
        let host_is_later = services.extension(FUTURE_ID.into()).is_some();
        let wrong = request.source.options.contains("wrong");
        ROk(Model_TO::from_value(Loaded { wrong, host_is_later, block: [0; BLOCK_BYTES] }, TD_Opaque))
    }

    fn extension(&self, id: RStr<'_>) -> ROption<Extension> {
        extension(id)
    }
}

struct Loaded {
    wrong: bool,
    host_is_later: bool,
    block: [u8; BLOCK_BYTES],
}

impl api::Model for Loaded {
    fn resident(&self) -> api::Resident {
        api::Resident {
            device: "cpu".into(),
            note: if self.host_is_later { "a later host" } else { "a host of today" }.into(),
            weight_bytes: 0,
            state_bytes: BLOCK_BYTES as u64,
            places: vec![1].into(),
            context: 2,
        }
    }

    fn forward(&mut self, _batch: &api::Batch<'_>, outputs: &mut api::Outputs<'_>) -> RResult<(), PluginError> {
        for row in outputs.logits.chunks_exact_mut(VOCABULARY as usize) {
            row.copy_from_slice(&[0.0, 0.0, 1.0, 0.0]);
        }
        ROk(())
    }

    fn attach(&mut self, _adapter: &api::AdapterData) -> RResult<u32, PluginError> {
        RErr(PluginError::new(ErrorCode::UNSUPPORTED, "no adapters"))
    }

    fn detach(&mut self, _adapter: u32) -> RResult<(), PluginError> {
        RErr(PluginError::new(ErrorCode::NOT_FOUND, "no adapters"))
    }

    fn release(&mut self, _sequence: u64) {}

    fn extension(&self, id: RStr<'_>) -> ROption<Extension> {
        match id.as_str() {
            FUTURE_ID => RSome(Extension::offer(&FUTURE)),
            kv_transfer::ID if self.wrong => RSome(Extension::offer(&WRONG_TRANSFER)),
            kv_transfer::ID => RSome(Extension::offer(&RIGHT_TRANSFER)),
            _ => RNone,
        }
    }
}
