//! Limits connections in total and per network, and decides which one is closed when the limit is reached.
//!
//! Clients that open connections and send nothing must not keep others out. A connection that waits for its client (for
//! a request, or for the rest of a body) can be closed at any time, and the one that has been silent for longest is
//! closed to make room. A connection whose request is being answered is never closed for another.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

use super::upgrade::Upgrade;
use pensieve_protocol::share;

/// A connection counts as active each time this many more bytes of a body have arrived. Single bytes do not keep it
/// open.
const HEARD_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Connections {
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Debug)]
struct Table {
    free: usize,
    by_network: HashMap<u64, usize>,
    open: HashMap<u64, Open>,
    /// Ids of connections that wait for their clients, ordered by last activity.
    quiet: BTreeMap<u64, u64>,
    /// Counter for ids and for the order of activity.
    last: u64,
}

#[derive(Debug)]
struct Open {
    network: u64,
    /// Key in `quiet`, if it is in there.
    heard: Option<u64>,
    close: Arc<Notify>,
}

/// Result of a request for admission.
enum Admission {
    Admitted(u64, Arc<Notify>),
    /// Another connection is being closed to make room.
    MakingRoom,
    Refused,
}

#[derive(Debug)]
pub(super) struct ConnectionSlot {
    handle: ConnectionHandle,
    close: Arc<Notify>,
}

/// Handle of a connection for the code that answers its requests.
#[derive(Clone, Debug)]
pub(super) struct ConnectionHandle {
    all: Arc<Connections>,
    id: u64,
    upgrade: Arc<Mutex<Option<Upgrade>>>,
}

/// Marks the connection as answering a request, until dropped.
#[derive(Debug)]
pub(super) struct Answering(ConnectionHandle);

/// Marks the connection as reading a body, until dropped.
#[derive(Debug)]
pub(super) struct Reading {
    handle: ConnectionHandle,
    unheard: usize,
}

/// A client's network: its IPv4 address, or its /64 in IPv6. All loopback addresses count as one.
pub(super) fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        address if address.is_loopback() => 1,
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (Ipv6Addr::to_bits(address) >> 64) as u64,
    }
}

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let table =
            Table { free: max, by_network: HashMap::new(), open: HashMap::new(), quiet: BTreeMap::new(), last: 0 };
        Arc::new(Self { table: Mutex::new(table), ended: Notify::new() })
    }

    /// Admits a connection from this network, closing another one if needed. `None` if none can be closed.
    pub(super) async fn admit(self: &Arc<Self>, network: u64) -> Option<ConnectionSlot> {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let admission = self.table().admit(network);
            match admission {
                Admission::Admitted(id, close) => {
                    return Some(ConnectionSlot {
                        handle: ConnectionHandle { all: self.clone(), id, upgrade: Arc::default() },
                        close,
                    });
                }
                Admission::MakingRoom => ended.await,
                Admission::Refused => return None,
            }
        }
    }

    pub(super) async fn all_ended(&self) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.table().open.is_empty() {
                return;
            }
            ended.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn admit(&mut self, network: u64) -> Admission {
        let own = self.by_network.get(&network).copied().unwrap_or(0);
        if share::may_take(network, own, self.free, 1) {
            self.free -= 1;
            *self.by_network.entry(network).or_default() += 1;
            self.last += 1;
            let (id, close) = (self.last, Arc::new(Notify::new()));
            self.open.insert(id, Open { network, heard: Some(id), close: close.clone() });
            self.quiet.insert(id, id);
            return Admission::Admitted(id, close);
        }
        // A network that has used up its share closes one of its own connections, even if there is room left.
        let is_full = self.free == 0;
        let can_close = |open: &&Open| is_full || open.network == network;
        let Some(open) = self.quiet.values().filter_map(|id| self.open.get(id)).find(can_close) else {
            return Admission::Refused;
        };
        open.close.notify_one();
        if let Some(heard) = open.heard {
            self.quiet.remove(&heard);
        }
        Admission::MakingRoom
    }

    /// Records activity; `is_quiet` tells whether the connection now waits for its client.
    fn mark(&mut self, id: u64, is_quiet: bool) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if let Some(heard) = open.heard.take() {
            self.quiet.remove(&heard);
        }
        if is_quiet {
            self.last += 1;
            open.heard = Some(self.last);
            self.quiet.insert(self.last, id);
        }
    }

    fn remove(&mut self, id: u64) {
        self.mark(id, false);
        let Some(open) = self.open.remove(&id) else { return };
        self.free += 1;
        if let Some(count) = self.by_network.get_mut(&open.network) {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&open.network);
            }
        }
    }
}

impl ConnectionSlot {
    pub(super) fn handle(&self) -> &ConnectionHandle {
        &self.handle
    }

    pub(super) async fn evicted(&self) {
        self.close.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.handle.all.table().remove(self.handle.id);
        self.handle.all.ended.notify_waiters();
    }
}

impl ConnectionHandle {
    /// Called when the headers of a request have arrived.
    pub(super) fn answering(&self) -> Answering {
        self.mark(false);
        Answering(self.clone())
    }

    /// Called when the body of a request is about to be read.
    pub(super) fn reading(&self) -> Reading {
        self.mark(true);
        Reading { handle: self.clone(), unheard: 0 }
    }

    /// The connection is handed over once the current answer is written.
    pub(super) fn upgrade(&self, upgrade: Upgrade) {
        *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
    }

    pub(super) fn take_upgrade(&self) -> Option<Upgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn mark(&self, is_quiet: bool) {
        self.all.table().mark(self.id, is_quiet);
    }
}

impl Reading {
    pub(super) fn received(&mut self, bytes: usize) {
        self.unheard += bytes;
        if self.unheard >= HEARD_BYTES {
            self.unheard = 0;
            self.handle.mark(true);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.handle.mark(false);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.mark(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use pensieve_protocol::share::ONLY_CLIENT;

    /// Admits a connection that is within the limits.
    fn open(all: &Arc<Connections>, network: u64) -> Option<ConnectionSlot> {
        all.admit(network).now_or_never().flatten()
    }

    fn has_to_go(place: &ConnectionSlot) -> bool {
        place.evicted().now_or_never().is_some()
    }

    /// Returns the connections that another one from this network would evict.
    fn told<'a>(all: &Arc<Connections>, network: u64, places: &[&'a ConnectionSlot]) -> Vec<&'a ConnectionSlot> {
        assert!(open(all, network).is_none());
        places.iter().copied().filter(|place| has_to_go(place)).collect()
    }

    fn ids(places: &[&ConnectionSlot]) -> Vec<u64> {
        places.iter().map(|place| place.handle.id).collect()
    }

    #[test]
    fn the_one_that_was_not_heard_of_for_longest_makes_room() {
        let all = Connections::new(3);
        let [a, b, c] = [(); 3].map(|()| open(&all, ONLY_CLIENT).expect("room"));
        let answering = a.handle.answering();
        let mut body = b.handle.reading();
        body.received(HEARD_BYTES - 1);
        body.received(1);
        assert_eq!(ids(&told(&all, ONLY_CLIENT, &[&a, &b, &c])), [c.handle.id]);
        drop(c);
        let c = open(&all, ONLY_CLIENT).expect("room");
        assert_eq!(ids(&told(&all, ONLY_CLIENT, &[&a, &b, &c])), [b.handle.id], "its body came before");
        drop((body, b, answering));
        let b = open(&all, ONLY_CLIENT).expect("room");
        assert_eq!(ids(&told(&all, ONLY_CLIENT, &[&a, &b, &c])), [c.handle.id], "the answer ended after it came");
    }

    #[test]
    fn an_answer_makes_room_for_nobody() {
        let all = Connections::new(2);
        let places = [(); 2].map(|()| open(&all, ONLY_CLIENT).expect("room"));
        let _answering: Vec<Answering> = places.iter().map(|place| place.handle.answering()).collect();
        assert!(matches!(all.table().admit(ONLY_CLIENT), Admission::Refused));
    }

    #[test]
    fn one_network_leaves_room_for_others() {
        let all = Connections::new(8);
        let many: Vec<ConnectionSlot> = std::iter::from_fn(|| open(&all, 1)).collect();
        assert_eq!(many.len(), 6);
        // Its next connection has evicted its first one.
        assert!(has_to_go(&many[0]) && !has_to_go(&many[1]));
        let others = [open(&all, 2), open(&all, 3)];
        assert!(others.iter().all(Option::is_some));
        let mut all_places: Vec<&ConnectionSlot> = many.iter().collect();
        all_places.extend(others.iter().flatten());
        assert_eq!(ids(&told(&all, 4, &all_places)), [many[1].handle.id]);
        drop((many, others));
        let table = all.table();
        assert!(table.free == 8 && table.quiet.is_empty() && table.by_network.is_empty() && table.open.is_empty());
    }

    #[test]
    fn addresses_of_one_customer_are_one_network() {
        let network = |text: &str| super::network(text.parse().expect("an address"));
        assert_eq!(network("127.0.0.1"), network("127.3.2.1"));
        assert_eq!(network("127.0.0.1"), network("::1"));
        assert_eq!(network("10.0.0.1"), network("::ffff:10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    }
}
