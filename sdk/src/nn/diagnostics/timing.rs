//! Times of work on a device that answers late.

use candle_core::Device;
use std::time::{Duration, Instant};

use crate::Result;

/// How long a shape is repeated.
const SPAN: Duration = Duration::from_millis(300);
const QUICK_SPAN: Duration = Duration::from_millis(2);
/// Repetitions that are queued before the device is waited for, so that launching hides behind computing.
const QUEUED: u32 = 8;

/// Milliseconds of one repetition, and how many there were.
pub(super) struct Timed {
    pub(super) ms: f64,
    pub(super) repeats: u32,
}

/// Repeats `work` after one that does not count, which compiles pipelines.
pub(super) fn time(device: &Device, quick: bool, mut work: impl FnMut() -> Result<()>) -> Result<Timed> {
    work()?;
    device.synchronize()?;
    let (started, mut repeats) = (Instant::now(), 0);
    loop {
        for _ in 0..QUEUED {
            work()?;
        }
        device.synchronize()?;
        repeats += QUEUED;
        let elapsed = started.elapsed();
        if elapsed >= if quick { QUICK_SPAN } else { SPAN } {
            return Ok(Timed { ms: elapsed.as_secs_f64() * 1e3 / f64::from(repeats), repeats });
        }
    }
}
