//! Opens a plugin and creates its providers.
//!
//! The order of the checks matters: the file's headers before the system maps it, abi_stable's header before any of its
//! types is trusted, the contract's version before layouts (whose differences mean nothing to a user), layouts before
//! the first call, and the manifest before anything is routed by it. abi_stable's `RootModule::load_from*` would be
//! shorter, but it keeps one library per module type, and a worker maps several.
//!
//! Libraries are mapped with local symbols (`RTLD_LOCAL`), so that two plugins that link the same library, possibly in
//! different versions, do not see each other's; and they stay mapped until the process exits.

use pensieve_plugin_api::{
    self as api, CONTRACT, PluginError, PluginModule_Ref,
    abi_stable::{
        StableAbi,
        library::{AbiHeader, LibHeader, LibraryError, RootModuleError, lib_header_from_path},
        sabi_types::VersionNumber,
        std_types::RStr,
    },
    ext::{
        concurrent_stages, diagnostics, kv_transfer,
        media::{self, Prepare},
        merge, rows,
        sampler_parameters::{self, SamplerParameters},
        sequence_state, timeline,
    },
};
use std::{
    fmt,
    path::{Path, PathBuf},
};

use pensieve_protocol::{manifest::Manifest, towers};

use super::{LoadError, Reason, manifest, object};

/// Extensions that a plugin as a whole may offer.
const EXTENSIONS: [&str; 9] = [
    concurrent_stages::ID,
    diagnostics::ID,
    kv_transfer::ID,
    media::ID,
    merge::ID,
    rows::ID,
    sampler_parameters::ID,
    sequence_state::ID,
    timeline::ID,
];

/// A plugin in this process. Its code stays mapped when this is dropped.
pub struct LoadedPlugin {
    path: PathBuf,
    module: PluginModule_Ref,
    manifest: Manifest,
}

impl LoadedPlugin {
    /// Maps a library and checks that it is a compatible plugin. Runs the library's code: see the module's
    /// documentation.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let (module, manifest) = open(path).map_err(|reason| LoadError::new(path, reason))?;
        Ok(Self { path: path.to_path_buf(), module, manifest })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn architecture(&self, name: &str) -> Result<api::ArchitectureBox, PluginError> {
        let names = self.manifest.architectures.iter().map(|claim| &claim.architecture);
        let index = self.index("architecture", name, names)?;
        self.module.architecture()(index).into_result()
    }

    /// A model's options as this plugin knows them: without the vision towers that the server has found beside the model,
    /// if none of its architectures reads images.
    pub fn options(&self, options: &str) -> String {
        let mut names = self.manifest.architectures.iter().map(|claim| claim.architecture.as_str());
        let reads = |name| self.architecture(name).is_ok_and(|architecture| Prepare::of(&architecture).is_some());
        if names.any(reads) { options.to_owned() } else { towers::without_beside(options) }
    }

    pub fn sampler(&self, name: &str) -> Result<api::SamplerBox, PluginError> {
        let index = self.index("sampler", name, self.manifest.samplers.iter())?;
        self.module.sampler()(index).into_result()
    }

    pub fn adapter_format(&self, name: &str) -> Result<api::AdapterBox, PluginError> {
        let index = self.index("adapter format", name, self.manifest.adapter_formats.iter())?;
        self.module.adapter_format()(index).into_result()
    }

    /// Returns the table of a plugin-wide extension, if the plugin offers it.
    pub fn extension<T: StableAbi + Sync>(&self, id: &str) -> Option<Result<&'static T, PluginError>> {
        self.module.extension()(RStr::from_str(id)).into_option().map(|extension| extension.table(id))
    }

    fn index<'a>(
        &self,
        kind: &str,
        name: &str,
        names: impl Iterator<Item = &'a String> + Clone,
    ) -> Result<u32, PluginError> {
        let place = names.clone().position(|known| known == name).and_then(|index| u32::try_from(index).ok());
        place.ok_or_else(|| {
            let known = names.map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none" } else { &known };
            let message = format!("plugin '{}' has no {kind} '{name}' (it has: {known})", self.manifest.id);
            PluginError::new(api::ErrorCode::NOT_FOUND, message)
        })
    }
}

impl fmt::Debug for LoadedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedPlugin").field("path", &self.path).field("id", &self.manifest.id).finish_non_exhaustive()
    }
}

fn open(path: &Path) -> Result<(PluginModule_Ref, Manifest), Reason> {
    object::check(path)?;
    // The system searches its own folders for a bare file name, not the current one.
    let path = std::path::absolute(path).map_err(Reason::Unreadable)?;
    let header = lib_header_from_path(&path).map_err(|error| refusal(error, &path))?;
    let contract = check_contract(header)?;
    header.layout().ok_or(Reason::NoLayout)?;
    let module = header.init_root_module::<PluginModule_Ref>().map_err(|error| refusal(error, &path))?;
    let manifest = manifest::read(&module.manifest()(), describe(module)?).map_err(Reason::BadManifest)?;
    let offers = |id: &&&str| module.extension()(RStr::from_str(id)).into_option().is_some();
    let extensions = EXTENSIONS.iter().filter(offers).map(|id| (*id).to_owned()).collect();
    Ok((module, Manifest { contract, extensions, ..manifest }))
}

/// The plugin's function that describes its samplers, if it has one.
fn describe(module: PluginModule_Ref) -> Result<Option<impl Fn(u32) -> Result<String, String>>, Reason> {
    let Some(extension) = module.extension()(RStr::from_str(sampler_parameters::ID)).into_option() else {
        return Ok(None);
    };
    let table = extension.table::<SamplerParameters>(sampler_parameters::ID);
    let table = table.map_err(|error| Reason::OtherLayout(error.message.to_string()))?;
    Ok(Some(|index| match (table.describe)(index).into_result() {
        Ok(text) => Ok(text.to_string()),
        Err(error) => Err(format!("a sampler cannot be described: {}", error.message)),
    }))
}

/// Checks the version of the contract that the plugin was built against, which is stored beside its layout; returns it.
fn check_contract(header: &LibHeader) -> Result<String, Reason> {
    let strings = header.version_strings();
    match VersionNumber::new(strings) {
        Ok(version) if version.major == CONTRACT.major => Ok(format!("{}.{}", version.major, version.minor)),
        Ok(version) => Err(Reason::OtherContract(format!("{}.{}", version.major, version.minor))),
        Err(_) => Err(Reason::OtherContract(strings.version.escape_debug().take(40).collect())),
    }
}

fn refusal(error: LibraryError, path: &Path) -> Reason {
    match error {
        LibraryError::OpenError { err, .. } => {
            let said = cause(&*err);
            // The loader names the file, which is a private copy that the user does not know.
            let named = format!("{}: ", path.display());
            Reason::Refused(said.strip_prefix(&named).map_or(said.clone(), str::to_owned))
        }
        LibraryError::GetSymbolError { .. } => Reason::MissingSymbol,
        LibraryError::InvalidAbiHeader(found) => {
            let host = version(&AbiHeader::VALUE);
            let found = if found.magic_string == AbiHeader::VALUE.magic_string {
                version(&found)
            } else {
                "of another kind".into()
            };
            Reason::OtherAbi { found, host }
        }
        LibraryError::RootModule { err: RootModuleError::Returned(error), .. } => Reason::Failed(one_line(&error)),
        LibraryError::RootModule { err: RootModuleError::Unwound, .. } => Reason::Failed("its loader panicked".into()),
        error @ LibraryError::IncompatibleVersionNumber { .. } => Reason::OtherContract(one_line(&error)),
        error => Reason::OtherLayout(api::ext::summary(&error)),
    }
}

fn version(header: &AbiHeader) -> String {
    format!("{}.{}", header.abi_major, header.abi_minor)
}

/// Returns the message of the system's loader, without abi_stable's wrapping.
fn cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| one_line(error), one_line)
}

/// Puts a loader's message on one line, escapes control characters, and bounds the result: a damaged file may contain names
/// as long as the file.
fn one_line(text: &(impl std::fmt::Display + ?Sized)) -> String {
    const WORDS_MAX: usize = 60;
    const BYTES_MAX: usize = 400;
    let text = text.to_string();
    let mut line = String::new();
    for letter in text.split_whitespace().take(WORDS_MAX).collect::<Vec<_>>().join(" ").chars() {
        let shown = if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() };
        if line.len() + shown.len() > BYTES_MAX {
            break;
        }
        line.push_str(&shown);
    }
    line
}
