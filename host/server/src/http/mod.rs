//! HTTP: sockets, limits, authentication and the writing of answers. It knows paths and headers but no API's JSON: it
//! passes a [`crate::dialects::ApiRequest`] to the dialects and gets back a [`crate::dialects::ApiResponse`].
//!
//! Clients are assumed to be slow, buggy or hostile: every wait has a timeout and every size a limit. Web pages in a
//! browser on this machine are refused, as they can reach any local port. `routes` lists all routes.

mod auth;
mod body;
mod connection;
mod connections;
mod docs;
mod filters;
mod heap;
mod info;
mod live;
mod metrics;
mod openapi;
mod page;
mod panics;
mod readers;
mod request_log;
mod router;
mod routes;
mod server;
mod service;
mod socket;
mod state;
mod upgrade;

use std::{path::PathBuf, time::Duration};

pub use server::Server;

pub use crate::{
    dialects::DialectSettings,
    keys::{KEY_LEN_MIN, Key, Keyring, LOCAL_KEY, NamedKey, check_key_name},
};

/// Clients that send or read more slowly than this for too long are cut off.
const BYTES_PER_SECOND_MIN: f64 = 1024.0;

#[derive(Clone, Debug)]
pub struct Settings {
    /// `ADDRESS:PORT`; port 0 for any free one.
    pub listen: Vec<String>,
    /// Accepted keys. Without any, the server accepts all clients on this machine and no others.
    pub keys: Vec<Key>,
    /// Accepted keys that have names and limits.
    pub named_keys: Vec<NamedKey>,
    /// Host names of the server besides those of this machine.
    pub hosts: Vec<String>,
    /// Origins of web pages that may send requests, such as `https://example.org`.
    pub origins: Vec<String>,
    pub limits: Limits,
    pub dialects: DialectSettings,
    /// The file in which the usage of keys is kept; `None` for in memory alone.
    pub ledger: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    /// Requests that are waiting or being answered, after their bodies have been read.
    pub requests_max: usize,
    pub streams_max: usize,
    pub headers_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: usize,
    /// Memory for the bodies of all current requests.
    pub bodies_bytes_max: usize,
    /// Time limit for a request's headers, and for idle connections.
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    /// How long a client may not read its answer, or read it at less than a kilobyte per second.
    pub write_stall: Duration,
    /// How long running answers may take at shutdown.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: vec!["127.0.0.1:8000".into()],
            keys: Vec::new(),
            named_keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            limits: Limits::default(),
            dialects: DialectSettings::default(),
            ledger: None,
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
