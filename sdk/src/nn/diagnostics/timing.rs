//! Times of work on a device that answers late.

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
}

/// Repeats `work`, which computes something as often as it is told, after once that does not count and compiles pipelines.
pub(super) fn time(backend: &dyn Backend, quick: bool, mut work: impl FnMut(u32) -> Result<()>) -> Result<Timed> {
    work(1)?;
    backend.finish()?;
    let (started, mut repeats) = (Instant::now(), 0);
    loop {
        work(QUEUED)?;
        backend.finish()?;
        repeats += QUEUED;
        let elapsed = started.elapsed();
        if elapsed >= if quick { QUICK_SPAN } else { SPAN } {
            return Ok(Timed { ms: elapsed.as_secs_f64() * 1e3 / f64::from(repeats), repeats });
        }
    }
}
