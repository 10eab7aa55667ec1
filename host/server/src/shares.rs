//! Connections, streams and memory that clients share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pensieve_protocol::share;

/// A limited resource of which each client may hold a fair share.
#[derive(Clone, Debug)]
pub(crate) struct Shares(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    free: usize,
    /// Lowest value of `free` since the last call of `returned`.
    free_min: usize,
    by_client: HashMap<u64, usize>,
}

/// An amount held by a client, returned on drop.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Shares,
    client: u64,
    amount: usize,
}

/// Effectively unlimited.
impl Default for Shares {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Shares {
    pub(crate) fn new(total: usize) -> Self {
        Self(Arc::new(Mutex::new(Held { free: total, free_min: total, by_client: HashMap::new() })))
    }

    /// Takes an amount for this client; `None` if that exceeds its share.
    pub(crate) fn take(&self, client: u64, amount: usize) -> Option<Share> {
        let mut share = Share { shares: self.clone(), client, amount: 0 };
        share.grow(amount).then_some(share)
    }

    /// How far the total held has fallen below its peak since the last call.
    pub(crate) fn returned(&self) -> usize {
        let mut held = self.held();
        let returned = held.free - held.free_min;
        held.free_min = held.free;
        returned
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes more; returns false if that exceeds the client's share.
    #[must_use]
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        let mut held = self.shares.held();
        let own = held.by_client.get(&self.client).copied().unwrap_or(0);
        if !share::may_take(self.client, own, held.free, amount) {
            return false;
        }
        held.free -= amount;
        held.free_min = held.free_min.min(held.free);
        *held.by_client.entry(self.client).or_default() += amount;
        self.amount += amount;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.held();
        held.free += self.amount;
        if let Some(own) = held.by_client.get_mut(&self.client) {
            *own -= self.amount;
            if *own == 0 {
                held.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn dropping_a_share_returns_it() {
        let shares = Shares::new(8);
        let taken: Vec<Share> = std::iter::from_fn(|| shares.take(1, 1)).collect();
        assert_eq!(taken.len(), 6);
        let mut other = shares.take(2, 1).unwrap();
        assert!(!other.grow(1));
        drop(taken);
        assert!(other.grow(4));
        drop(other);
        assert_eq!((shares.returned(), shares.returned()), (7, 0));
        let held = shares.held();
        assert!(held.free == 8 && held.by_client.is_empty(), "{held:?}");
    }
}
