//! `pensieve pull`: checkpoints from the hub, onto this machine.

use clap::Args;
use std::io::Write;

use super::{
    error::{CliError, CliResult},
    progress::DownloadProgress,
};
use crate::config::units;
use pensieve_server::hub::{Hub, HubError, HubName};

/// Bring a model from the Hugging Face hub onto this machine.
///
/// Of several GGUF files it takes a middling quantization (Q4_K_M, if there is one), and says so. A download that was
/// interrupted goes on where it broke off. Files lie in the hub's own cache, $HF_HOME/hub or $HF_HUB_CACHE.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF
  pensieve pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q8_0.gguf
  pensieve pull --list hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF
  HF_TOKEN=hf_… pensieve pull hf:meta-llama/Llama-3.2-1B-Instruct")]
pub(super) struct Pull {
    /// What to bring: hf:OWNER/REPO[@REVISION][/FILE].
    #[arg(value_name = "NAME", value_parser = name)]
    name: HubName,
    /// Only tell what there is, and how large.
    #[arg(long)]
    list: bool,
}

impl Pull {
    pub(super) fn run(self) -> CliResult {
        let hub = Hub::from_environment()?;
        if self.list {
            return list(&hub, &self.name);
        }
        let pulled = hub.pull(&self.name, &mut DownloadProgress::new())?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{}", pulled.path.display()).map_err(|error| CliError::system("standard output", &error))
    }
}

fn list(hub: &Hub, name: &HubName) -> CliResult {
    let mut stdout = std::io::stdout().lock();
    let bare = HubName { file: None, ..name.clone() };
    for offer in hub.list(&bare)? {
        let slash = if offer.file.is_empty() { "" } else { "/" };
        let mark = if offer.preferred { "  (taken unasked)" } else { "" };
        let line = writeln!(stdout, "{:>10}  {bare}{slash}{}{mark}", units::bytes(offer.bytes), offer.file);
        line.map_err(|error| CliError::system("standard output", &error))?;
    }
    Ok(())
}

fn name(text: &str) -> Result<HubName, HubError> {
    text.parse()
}
