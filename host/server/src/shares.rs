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
        let mut share = self.nothing(client);
        share.grow(amount).then_some(share)
    }

    /// A share of nothing, for what becomes known piece by piece.
    pub(crate) fn nothing(&self, client: u64) -> Share {
        Share { shares: self.clone(), client, amount: 0 }
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
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Takes an amount of its own for the same client.
    pub(crate) fn beside(&self, amount: usize) -> Option<Self> {
        self.shares.take(self.client, amount)
    }

    /// Returns the amount taken so far, and goes on with nothing.
    pub(crate) fn split(&mut self) -> Self {
        let nothing = self.shares.nothing(self.client);
        std::mem::replace(self, nothing)
    }

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
        let mut other = shares.nothing(2);
        assert!(other.grow(1) && !other.grow(1) && other.beside(1).is_none());
        drop(taken);
        let first = other.split();
        assert!(other.grow(4));
        assert_eq!((first.amount(), other.amount()), (1, 4));
        drop((first, other));
        assert_eq!((shares.returned(), shares.returned()), (7, 0));
        let held = shares.held();
        assert!(held.free == 8 && held.by_client.is_empty(), "{held:?}");
    }
}
