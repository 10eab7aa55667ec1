//! Times of work on a device that answers late.

use candle_core::Device;
use std::time::{Duration, Instant};

use crate::{Result, nn::backend::Backend};

/// How long a shape is repeated.
const SPAN: Duration = Duration::from_millis(300);
const QUICK_SPAN: Duration = Duration::from_millis(2);
/// Repetitions that are launched before the device is waited for, so that launching hides behind computing.
const QUEUED: u32 = 8;

/// Milliseconds of one repetition, and how many there were.
pub(super) struct Timed {
    pub(super) ms: f64,
    pub(super) repeats: u32,
    /// Bytes that the device has allocated meanwhile, if it tells.
    pub(super) allocated_bytes: Option<u64>,
}

/// Repeats `work`, which computes something as often as it is told, after runs that do not count: they compile pipelines and
/// allocate.
pub(super) fn time(backend: &dyn Backend, quick: bool, mut work: impl FnMut(u32) -> Result<()>) -> Result<Timed> {
    for first in [1, QUEUED] {
        work(first)?;
        backend.finish()?;
    }
    let (before, started, mut repeats) = (allocated(backend.device()), Instant::now(), 0);
    loop {
        work(QUEUED)?;
        backend.finish()?;
        repeats += QUEUED;
        let elapsed = started.elapsed();
        if elapsed >= if quick { QUICK_SPAN } else { SPAN } {
            let grown = allocated(backend.device()).zip(before).map(|(now, before)| now.saturating_sub(before));
            let ms = elapsed.as_secs_f64() * 1e3 / f64::from(repeats);
            return Ok(Timed { ms, repeats, allocated_bytes: grown });
        }
    }
}

/// Bytes that a device has allocated; `None` for those that do not tell.
fn allocated(device: &Device) -> Option<u64> {
    #[cfg(target_os = "macos")]
    return device.as_metal_device().ok().map(crate::nn::backend::metal_report::allocated);
    #[cfg(not(target_os = "macos"))]
    {
        let _ = device;
        None
    }
}
