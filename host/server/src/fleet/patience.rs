//! Time limits for child processes that count only the time in which this process runs: a stopped server does not blame
//! its children for it.

use std::time::{Duration, Instant};
use tokio::time::timeout;

use pensieve_protocol::awake::Silence;

/// Waits for the future; `None` if it takes longer than `limit`.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::pin!(future);
    let mut silence = Silence::new(limit, Instant::now());
    loop {
        match timeout(silence.wait(), &mut future).await {
            Ok(output) => return Some(output),
            Err(_) if silence.is_over(Instant::now()) => return None,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_as_long_as_the_limit_and_no_longer() {
        let pause = |ms| tokio::time::sleep(Duration::from_millis(ms));
        assert_eq!(within(Duration::from_secs(60), pause(5)).await, Some(()));
        let began = Instant::now();
        assert_eq!(within(Duration::from_millis(40), pause(60_000)).await, None);
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
