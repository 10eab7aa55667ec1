//! Memory accounting for one request, from the first byte of its body to the last byte of its answer.
//!
//! Everything whose size a client decides is charged to a budget shared by all clients before it is allocated: the
//! body, its parsed form, parts joined from stored responses, parts that the answer echoes, and an answer that waits to
//! be read. A charge is returned on drop, which for an answer's bytes is when they have been written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{ApiError, ErrorCode};
use crate::shares::{Share, Shares};
use pensieve_protocol::share::ONLY_CLIENT;

/// Parsing charges memory in steps of this size, as each charge takes a lock.
const STEP_BYTES: usize = 64 << 10;

/// One request's account; clones charge the same account.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory(Arc<Mutex<Share>>);

/// Effectively unlimited.
impl Default for RequestMemory {
    fn default() -> Self {
        Self::new(&Shares::default(), ONLY_CLIENT)
    }
}

impl RequestMemory {
    pub(crate) fn new(shares: &Shares, client: u64) -> Self {
        Self(Arc::new(Mutex::new(shares.nothing(client))))
    }

    /// Charges `bytes` until the last clone of this is dropped.
    pub(crate) fn keep(&self, bytes: usize) -> Result<(), ApiError> {
        if self.share().grow(bytes) { Ok(()) } else { Err(exhausted()) }
    }

    /// Charges `bytes` until the returned share is dropped.
    pub(crate) fn hold(&self, bytes: usize) -> Result<Share, ApiError> {
        self.share().beside(bytes).ok_or_else(exhausted)
    }

    fn share(&self) -> MutexGuard<'_, Share> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges for `bytes` until the last reference to any part of them is dropped.
    pub(crate) fn bytes(&self, bytes: impl Into<Bytes>) -> Result<Bytes, ApiError> {
        let bytes = bytes.into();
        let share = self.hold(bytes.len())?;
        Ok(counted(bytes, share))
    }

    pub(crate) fn meter(&self) -> Meter<'_> {
        Meter { memory: self, left: 0, refusal: None }
    }
}

/// Ties `guard` to the bytes: it is dropped with the last reference to any part of them.
pub(crate) fn counted(bytes: impl Into<Bytes>, guard: impl Send + 'static) -> Bytes {
    struct Counted<G>(Bytes, #[allow(dead_code, reason = "it is kept for its drop")] G);
    impl<G> AsRef<[u8]> for Counted<G> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Counted(bytes.into(), guard))
}

pub(crate) fn exhausted() -> ApiError {
    let message = "the running requests use up this client's share of memory; send less, or try again later";
    ApiError::new(ErrorCode::Overloaded, message)
}

/// Charges many small allocations in larger steps.
pub(crate) struct Meter<'a> {
    memory: &'a RequestMemory,
    /// Bytes charged but not used yet.
    left: usize,
    refusal: Option<ApiError>,
}

impl Meter<'_> {
    /// False if no more memory is available; [`Self::refusal`] has the error.
    #[must_use]
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        if bytes > self.left {
            let step = (bytes - self.left).max(STEP_BYTES);
            // If a whole step is not available, charge exactly what is needed.
            let charged = self.memory.keep(step).map(|()| step);
            match charged.or_else(|_| self.memory.keep(bytes - self.left).map(|()| bytes - self.left)) {
                Ok(step) => self.left += step,
                Err(error) => {
                    self.refusal = Some(error);
                    return false;
                }
            }
        }
        self.left -= bytes;
        true
    }

    pub(crate) fn refusal(&mut self) -> Option<ApiError> {
        self.refusal.take()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn free(shares: &Shares) -> usize {
        let all = (0..40).rev().map(|power| 1_usize << power);
        // Finds the largest amount available by binary search.
        all.fold((Vec::new(), 0), |(mut taken, sum), amount| match shares.take(0, amount) {
            Some(share) => {
                taken.push(share);
                (taken, sum + amount)
            }
            None => (taken, sum),
        })
        .1
    }

    #[test]
    fn bytes_count_until_their_last_part_is_dropped() {
        let shares = Shares::new(1000);
        let memory = RequestMemory::new(&shares, 0);
        let bytes = memory.bytes(vec![7; 600]).unwrap();
        assert_eq!(memory.bytes(vec![7; 600]).unwrap_err().code, ErrorCode::Overloaded);
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(free(&shares), 400);
        drop(part);
        assert_eq!(free(&shares), 1000);
    }

    #[test]
    fn what_is_kept_counts_until_the_request_ends() {
        let shares = Shares::new(1000);
        let memory = RequestMemory::new(&shares, 0);
        memory.keep(300).unwrap();
        memory.clone().keep(300).unwrap();
        assert_eq!(free(&shares), 400);
        assert!(memory.keep(500).is_err());
        drop(memory);
        assert_eq!(free(&shares), 1000);
    }

    #[test]
    fn a_meter_uses_what_is_left_to_the_last_byte() {
        let shares = Shares::new(STEP_BYTES + 10);
        let memory = RequestMemory::new(&shares, 0);
        let mut meter = memory.meter();
        assert!(meter.take(1) && meter.take(STEP_BYTES - 1) && meter.take(4) && meter.take(6));
        assert!(!meter.take(1) && meter.refusal().is_some());
    }
}
