//! Where a checkpoint comes from, as written on the command line and in the configuration.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{UpstreamSource, file, reader};
use pensieve_server::hub::HubName;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A `.gguf` file or a folder with safetensors.
    Path(PathBuf),
    Hub(HubName),
    /// The bundled model.
    Starter,
    /// Other servers compute it.
    Upstream(Box<UpstreamSource>),
}

impl Source {
    /// A relative path starts at `folder`. The error is a message for the user.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        match text {
            "" => Err("a source is empty; name a .gguf file, a folder, hf:OWNER/REPO or 'starter'".into()),
            "starter" => Ok(Self::Starter),
            _ if text.starts_with("hf:") => {
                text.parse().map(Self::Hub).map_err(|error: pensieve_server::hub::HubError| error.to_string())
            }
            _ => Ok(Self::Path(reader::path(folder, file::user_home().as_deref(), text))),
        }
    }

    /// The default model id: the name of the file, folder or repository.
    pub fn id(&self) -> String {
        match self {
            Self::Starter => "pensieve-starter".into(),
            Self::Upstream(source) => source.upstream.model.clone(),
            Self::Hub(name) => match &name.file {
                Some(file) => stem(file.rsplit('/').next().unwrap_or(file)),
                None => name.repo.clone(),
            },
            Self::Path(path) => match path.file_name().and_then(|name| name.to_str()) {
                Some(name) => stem(name),
                None => "model".into(),
            },
        }
    }
}

fn stem(name: &str) -> String {
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Hub(name) => name.fmt(f),
            Self::Starter => f.write_str("starter"),
            Self::Upstream(source) => f.write_str(&source.upstream.addresses()),
        }
    }
}
