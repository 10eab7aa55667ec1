//! Stored responses, for `previous_response_id` and `GET /v1/responses/ID`: in memory, bounded in bytes and number,
//! with the oldest evicted first. Clients see only their own. They are kept as text, since parsed values take ten times
//! the memory, and shared with readers.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;

use super::numbering::Numbering;

const RESPONSES_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct StoredResponse {
    /// A JSON object.
    pub(super) response: Bytes,
    /// All items of the conversation as a JSON list: inputs, then outputs.
    pub(super) items: Bytes,
    /// Number of input items.
    pub(super) inputs: usize,
    /// Of the events that it came in.
    pub(super) numbering: Numbering,
}

#[derive(Debug, Default)]
pub(crate) struct ResponseStore {
    bytes_max: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Oldest first.
    list: VecDeque<OwnedResponse>,
    bytes: usize,
}

#[derive(Debug)]
struct OwnedResponse {
    client: u64,
    id: String,
    stored: StoredResponse,
}

impl OwnedResponse {
    fn bytes(&self) -> usize {
        let StoredResponse { response, items, numbering, .. } = &self.stored;
        size_of::<Self>() + self.id.len() + response.len() + items.len() + numbering.bytes()
    }
}

impl ResponseStore {
    /// An empty store; with a size of 0 it stores nothing.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, entries: Mutex::default() }
    }

    /// Stores a response under its id in place of what it was before, evicting the oldest ones if needed.
    pub(super) fn put(&self, client: u64, id: &str, stored: StoredResponse) {
        self.remove(client, id);
        let entry = OwnedResponse { client, id: id.to_owned(), stored };
        let bytes = entry.bytes();
        if bytes > self.bytes_max {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        while entries.bytes + bytes > self.bytes_max || entries.list.len() >= RESPONSES_MAX {
            let Some(oldest) = entries.list.pop_front() else { break };
            entries.bytes -= oldest.bytes();
        }
        entries.bytes += bytes;
        entries.list.push_back(entry);
    }

    pub(super) fn get(&self, client: u64, id: &str) -> Option<StoredResponse> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.list.iter().find(|entry| entry.client == client && entry.id == id).map(|entry| entry.stored.clone())
    }

    /// Removes all responses of a client but this one.
    pub(super) fn remove_others(&self, client: u64, id: &str) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Entries { list, bytes } = &mut *entries;
        list.retain(|entry| {
            let stays = entry.client != client || entry.id == id;
            *bytes -= if stays { 0 } else { entry.bytes() };
            stays
        });
    }

    pub(super) fn remove(&self, client: u64, id: &str) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let place = entries.list.iter().position(|entry| entry.client == client && entry.id == id);
        if let Some(removed) = place.and_then(|place| entries.list.remove(place)) {
            entries.bytes -= removed.bytes();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stored(text: &str) -> StoredResponse {
        StoredResponse {
            response: text.to_owned().into(),
            items: Bytes::new(),
            inputs: 0,
            numbering: Numbering::default(),
        }
    }

    #[test]
    fn the_oldest_go_first_and_clients_see_their_own_only() {
        let one = OwnedResponse { client: 1, id: "a".into(), stored: stored("12345678") };
        let store = ResponseStore::new(3 * one.bytes());
        for id in ["a", "b", "c"] {
            store.put(1, id, stored("12345678"));
        }
        assert!(store.get(1, "a").is_some() && store.get(2, "a").is_none());
        store.put(1, "d", stored("12345678"));
        assert!(store.get(1, "a").is_none() && store.get(1, "b").is_some());
        store.remove(2, "b");
        assert!(store.get(1, "b").is_some());
        store.remove(1, "b");
        assert!(store.get(1, "b").is_none());
        store.put(1, "d", stored("87654321"));
        assert_eq!(store.get(1, "d").unwrap().response, "87654321");
        store.put(2, "d", stored("12345678"));
        store.remove_others(1, "d");
        assert!(store.get(1, "c").is_none() && store.get(1, "d").is_some() && store.get(2, "d").is_some());
        store.put(1, "large", stored(&"x".repeat(1000)));
        assert!(store.get(1, "large").is_none() && store.get(1, "d").is_some());
        let off = ResponseStore::new(0);
        off.put(1, "a", stored(""));
        assert!(off.get(1, "a").is_none());
    }
}
