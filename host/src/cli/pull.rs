//! `pensieve pull`: downloads checkpoints from the Hugging Face hub.

use clap::Args;
use std::{
    hint::black_box,
    thread::{self, available_parallelism},
    time::Instant,
};

use super::{error::CliResult, progress::DownloadProgress, terminal};
use crate::config::units::{self, Amount};
use pensieve_protocol::outside::Outside;
use pensieve_server::{
    fleet::default_budget,
    hub::{Hub, HubError, HubName},
};

/// Bytes that each thread reads to measure memory bandwidth: more than its share of any cache.
const SAMPLE_BYTES: usize = 64 << 20;

/// Download a model from the Hugging Face hub.
///
/// Of several GGUF files it takes a medium quantization that fits in memory (Q4_K_M, if there is one), and says so. An
/// interrupted download resumes where it stopped. Files go to the hub's own cache, $HF_HOME/hub or $HF_HUB_CACHE.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF
  pensieve pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q8_0.gguf
  pensieve pull --list hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF
  pensieve pull --fit 6GiB hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF
  HF_TOKEN=hf_… pensieve pull hf:meta-llama/Llama-3.2-1B-Instruct")]
pub(super) struct Pull {
    /// The source to download: hf:OWNER/REPO[@REVISION][/FILE].
    #[arg(value_name = "NAME", value_parser = name)]
    name: HubName,
    /// Only list the files: their size, whether they fit, and an upper bound for the speed of one stream on this CPU.
    #[arg(long)]
    list: bool,
    /// Memory for models [default: two thirds of this machine's].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    fit: Option<u64>,
}

impl Pull {
    pub(super) fn run(self) -> CliResult {
        let memory = self.fit.unwrap_or_else(default_budget);
        let hub = Hub { memory: Some(memory), ..Hub::from_environment()? };
        if self.list {
            return list(&hub, &self.name);
        }
        let pulled = hub.pull(&self.name, &mut DownloadProgress::new())?;
        terminal::print_exact(&format!("{}\n", pulled.path.to_string_lossy()))
    }
}

fn list(hub: &Hub, name: &HubName) -> CliResult {
    let bare = HubName { file: None, ..name.clone() };
    let offers = hub.list(&bare)?;
    let bandwidth = memory_bandwidth();
    for offer in offers {
        let slash = if offer.file.is_empty() { "" } else { "/" };
        let mark = if offer.preferred { "  (default)" } else { "" };
        let fits = if offer.fits { "fits" } else { "too large" };
        // Each token reads all weights once; fewer in a mixture of experts, for which this bound is too low.
        let speed = bandwidth / offer.bytes.max(1) as f64;
        let speed = format!("up to {speed:.0$} tokens/s", usize::from(speed < 10.0));
        let size = units::bytes(offer.bytes);
        let file = Outside::new(&offer.file);
        terminal::say(&format!("{size:>10}  {fits:<9}  {speed:>22}  {bare}{slash}{file}{mark}"))?;
    }
    Ok(())
}

/// Measures the bytes per second that all cores together read from memory, which bounds the speed of one stream.
fn memory_bandwidth() -> f64 {
    let threads = available_parallelism().map_or(1, usize::from);
    let buffers: Vec<Vec<u64>> = (0..threads).map(|n| vec![n as u64 + 1; SAMPLE_BYTES / 8]).collect();
    let pass = || {
        let began = Instant::now();
        thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(move || black_box(buffer.iter().fold(0_u64, |sum, value| sum.wrapping_add(*value))));
            }
        });
        (threads * SAMPLE_BYTES) as f64 / began.elapsed().as_secs_f64().max(1e-9)
    };
    // The first pass warms up; the fastest one counts.
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}

fn size(text: &str) -> Result<u64, String> {
    u64::parse(text).ok_or_else(|| "it takes a number of bytes with a unit, such as 12GiB".to_owned())
}

fn name(text: &str) -> Result<HubName, HubError> {
    text.parse()
}
