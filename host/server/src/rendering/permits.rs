//! Permits for a limited number of processes, of which a client may have only some at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::lock;

#[derive(Debug)]
pub(super) struct Permits {
    all: Arc<Semaphore>,
    of_client: usize,
    /// Semaphores of clients that have a permit or wait for one.
    clients: Mutex<HashMap<u64, Arc<Semaphore>>>,
}

/// A permit, returned on drop.
#[derive(Debug)]
pub(super) struct Permit {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Permits {
    /// `all` permits, of which a client may have `of_client`.
    pub fn new(all: usize, of_client: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), of_client, clients: Mutex::default() }
    }

    /// Waits for a permit; `None` if there is none within this time.
    pub async fn take(&self, client: u64, time: Duration) -> Option<Permit> {
        let share = self.share(client);
        let permit = async {
            // The client's own permit comes first, so that its waiting requests do not block other clients.
            let own = share.acquire_owned().await.ok()?;
            Some(Permit { _own: own, _of_all: self.all.clone().acquire_owned().await.ok()? })
        };
        timeout(time, permit).await.ok().flatten()
    }

    /// The number of permits that are not taken.
    pub fn available(&self) -> usize {
        self.all.available_permits()
    }

    fn share(&self, client: u64) -> Arc<Semaphore> {
        let mut clients = lock(&self.clients);
        clients.retain(|_, share| Arc::strong_count(share) > 1);
        clients.entry(client).or_insert_with(|| Arc::new(Semaphore::new(self.of_client))).clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_client_leaves_a_permit_to_others() {
        let permits = Permits::new(3, 2);
        let now = Duration::from_millis(10);
        let first = permits.take(1, now).await.unwrap();
        let _second = permits.take(1, now).await.unwrap();
        assert!(permits.take(1, now).await.is_none());
        let _other = permits.take(2, now).await.unwrap();
        assert!(permits.available() == 0 && permits.take(2, now).await.is_none());
        drop(first);
        assert!(permits.take(2, now).await.is_some());
    }
}
