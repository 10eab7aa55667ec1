//! The server's HTTP side: sockets, limits, authentication, and how an answer is written down. It knows paths and headers but
//! no API's JSON: a request that has come through is a [`crate::dialects::ApiRequest`], and what comes back is an
//! [`crate::dialects::ApiResponse`].
//!
//! Everyone outside is taken for slow, wrong or hostile until shown otherwise: each wait has an end, each size a limit, and
//! web pages in a browser on this machine get nothing, as they can reach any local port. `routes` is the list of all that
//! is served.

mod auth;
mod body;
mod connection;
mod connections;
mod filters;
mod heap;
mod info;
mod metrics;
mod openapi;
mod request_log;
mod router;
mod routes;
mod server;
mod service;
mod state;

use sha2::{Digest, Sha256};
use std::{fmt, time::Duration};
use subtle::{Choice, ConstantTimeEq};

pub use server::Server;

pub use crate::dialects::DialectSettings;

use crate::chat::Client;

/// The key that clients on this machine may send where none is set, since some of them insist on having one.
pub const LOCAL_KEY: &str = "pensieve-local-key";

/// Clients that send or read more slowly than this for long are cut off.
const BYTES_PER_SECOND_MIN: f64 = 1024.0;

/// Where a server listens, and to whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// An address and a port; 0 for any port that is free.
    pub listen: Vec<String>,
    /// The keys that are accepted. Without any, every client on this machine is served, and none from elsewhere.
    pub keys: Vec<Key>,
    /// Names by which the server is called, besides those of this machine.
    pub hosts: Vec<String>,
    /// Origins of web pages that may use the server, as `https://example.org`.
    pub origins: Vec<String>,
    pub limits: Limits,
    pub dialects: DialectSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    /// Requests that have come with their bodies, and wait or are answered.
    pub requests_max: usize,
    pub streams_max: usize,
    pub headers_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being read or answered.
    pub bodies_bytes_max: usize,
    /// How long the headers of a request may take, and how long a connection stays open that has none.
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    /// How long a client may leave its answer unread, or read it at less than a kilobyte a second.
    pub write_stall: Duration,
    /// How long running answers have when the server is told to end.
    pub drain: Duration,
}

/// A key, of which only a digest is kept.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: vec!["127.0.0.1:8000".into()],
            keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            limits: Limits::default(),
            dialects: DialectSettings::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 512,
            requests_max: 256,
            streams_max: 256,
            headers_max: 128,
            header_bytes_max: 64 << 10,
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 256 << 20,
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(60),
            write_stall: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}

impl Key {
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether they are the same, in a time that does not depend on where they differ.
    fn matches(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }

    /// The client that has this key, and this share. Neither the id nor the salt gives the key away.
    fn client(&self, share: u64) -> Client {
        let salt: [u8; 32] = Sha256::new().chain_update(b"pensieve client\0").chain_update(self.0).finalize().into();
        let (id, _) = salt.split_first_chunk().unwrap_or((&[0; 8], &[]));
        Client { id: u64::from_le_bytes(*id), share, salt: salt.to_vec() }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}
