//! `[server]`: addresses, keys, limits and the settings of the client APIs.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    HOUR, MS, file,
    reader::{self, Section},
};
use pensieve_server::http;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// `ADDRESS:PORT`; the first one is shown to the user.
    pub listen: Vec<String>,
    /// API keys; with none, a server on loopback needs no key.
    pub keys: Vec<String>,
    /// Keys that have names and limits, from `[[keys]]`.
    pub named_keys: Vec<http::NamedKey>,
    /// Host names that requests may use besides the machine's own.
    pub hosts: Vec<String>,
    /// Origins of web pages that may send requests.
    pub origins: Vec<String>,
    /// Folders from which clients may load adapters at run time.
    pub adapter_folders: Vec<PathBuf>,
    /// Lets clients load adapters from the hub at run time.
    pub adapter_downloads: bool,
    pub log: String,
    /// `text` or `json`.
    pub log_format: &'static str,
    pub limits: http::Limits,
    pub dialects: http::DialectSettings,
    /// Objects may have properties that their schemas do not list, unless a model says otherwise.
    pub open_schemas: bool,
}

impl ServerSettings {
    pub fn http(&self) -> http::Settings {
        // The server adds the host of its first address itself.
        let other_hosts = self.listen.iter().skip(1).filter_map(|listen| Some(listen.rsplit_once(':')?.0.to_owned()));
        http::Settings {
            listen: self.listen.clone(),
            keys: self.own_keys(),
            named_keys: self.named_keys.clone(),
            hosts: self.hosts.iter().cloned().chain(other_hosts).collect(),
            origins: self.origins.clone(),
            limits: self.limits,
            dialects: self.dialects.clone(),
            ledger: None,
        }
    }

    /// The digests of the server's own keys.
    pub fn own_keys(&self) -> Vec<http::Key> {
        self.keys.iter().map(|key| http::Key::new(key)).collect()
    }

    /// False for a server that serves every client on this machine.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || !self.named_keys.is_empty()
    }

    pub(super) fn read(&mut self, section: Section<'_, '_>, folder: &Path) {
        let mut folders = Vec::new();
        section.text_or_texts("listen", &mut self.listen);
        section.text_or_texts("key", &mut self.keys);
        section.texts("hosts", &mut self.hosts);
        section.texts("origins", &mut self.origins);
        section.texts("adapter_folders", &mut folders);
        section.choice("adapter_downloads", ALLOW_OR_REFUSE, &mut self.adapter_downloads);
        section.flag("open_schemas", &mut self.open_schemas);
        section.text("log", &mut self.log);
        section.word("log_format", &["text", "json"], &mut self.log_format);
        self.read_limits(&section);
        self.read_dialects(&section);
        let home = file::user_home();
        self.adapter_folders = folders.iter().map(|text| reader::path(folder, home.as_deref(), text)).collect();
        let is_name =
            |host: &&String| !host.is_empty() && !host.contains(['/', ':', ' ', '*']) || host.starts_with('[');
        if let Some(host) = self.hosts.iter().find(|host| !is_name(host)) {
            let what = format!("'hosts' in [server] holds \"{host}\", which is not a host name");
            section.note("hosts", what, "name it without scheme and port, such as \"pensieve.example.org\"");
        }
        if let Some(origin) = self.origins.iter().find(|origin| !origin.contains("://")) {
            let what = format!("'origins' in [server] holds \"{origin}\", which is not an origin");
            section.note("origins", what, "an origin has a scheme, such as \"http://localhost:3000\"");
        }
        if self.listen.is_empty() {
            section.note("listen", "'listen' in [server] is an empty list", LISTEN_HELP);
        }
        for listen in &mut self.listen {
            match listen_address(listen) {
                Ok(address) => *listen = address,
                Err(what) => {
                    section.note("listen", format!("'listen' in [server] is \"{listen}\": {what}"), LISTEN_HELP);
                }
            }
        }
        if let Err(what) = check_log(&self.log) {
            section.note("log", format!("'log' in [server] is \"{}\": {what}", self.log), LOG_HELP);
        }
        if self.keys.iter().any(|key| !is_key(key)) {
            section.note("key", "a 'key' in [server] cannot be sent in a header", KEY_HELP);
        }
        section.finish();
    }

    fn read_limits(&mut self, section: &Section<'_, '_>) {
        let limits = &mut self.limits;
        section.integer("connections_max", 1..=100_000, &mut limits.connections_max);
        section.integer("requests_max", 1..=100_000, &mut limits.requests_max);
        section.integer("streams_max", 1..=100_000, &mut limits.streams_max);
        section.bytes("body_max", 1024..=1 << 30, &mut limits.body_bytes_max);
        section.bytes("bodies_max", 1024..=1 << 40, &mut limits.bodies_bytes_max);
        section.duration("header_timeout", 100 * MS..=HOUR, &mut limits.header_timeout);
        section.duration("body_timeout", 100 * MS..=HOUR, &mut limits.body_timeout);
        section.duration("stall_timeout", 100 * MS..=HOUR, &mut limits.write_stall);
        section.duration("drain", Duration::ZERO..=HOUR, &mut limits.drain);
        let (total, single) = (limits.bodies_bytes_max, limits.body_bytes_max);
        if total < single {
            let what =
                format!("'bodies_max' in [server] is {total} bytes, less than the {single} that one body may have");
            section.note("bodies_max", what, "raise it, or lower 'body_max'");
        }
    }

    fn read_dialects(&mut self, section: &Section<'_, '_>) {
        let dialects = &mut self.dialects;
        section.choice("model_downloads", ALLOW_OR_REFUSE, &mut dialects.model_downloads);
        section.choice("attachments", [("note", false), ("reject", true)], &mut dialects.reject_attachments);
        section.choice("fetch_images", ALLOW_OR_REFUSE, &mut dialects.fetch_images);
        section.integer("images_max", 1..=1024, &mut dialects.images.count);
        section.integer("image_pixels_max", 1..=1 << 30, &mut dialects.images.pixels);
        // 0 means as many tokens as fit the context.
        let mut max_tokens = dialects.max_tokens.unwrap_or(0);
        section.integer("max_tokens", 0..=1 << 24, &mut max_tokens);
        dialects.max_tokens = Some(max_tokens).filter(|tokens| *tokens > 0);
        section.text("claude_prefix", &mut dialects.claude_prefix);
        section.bytes("response_store", 0..=1 << 40, &mut dialects.response_store_bytes);
    }
}

impl Default for ServerSettings {
    fn default() -> Self {
        let http::Settings { listen, limits, dialects, .. } = http::Settings::default();
        Self {
            listen,
            keys: Vec::new(),
            named_keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            adapter_folders: Vec::new(),
            adapter_downloads: true,
            log: "info".into(),
            log_format: "text",
            limits,
            dialects,
            open_schemas: false,
        }
    }
}

const ALLOW_OR_REFUSE: [(&str, bool); 2] = [("allow", true), ("refuse", false)];

pub(super) const LISTEN_HELP: &str = "it takes an address and a port, such as \"127.0.0.1:8000\", or a port";
pub(super) const LOG_HELP: &str =
    "it takes a level (error, warn, info, debug, trace), or one per part, such as \"info,pensieve::fleet=debug\"";
pub(super) const KEY_HELP: &str = "it takes 1 to 512 visible ASCII characters without spaces";

/// Parses an address and port to listen on; a port alone means loopback. The error is a message for the user.
pub fn listen_address(text: &str) -> Result<String, String> {
    if text.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{text}"));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        return Err(if is_number {
            format!("{text} is not a port; ports go up to 65535")
        } else {
            "it has no port".into()
        });
    };
    if port.parse::<u16>().is_err() {
        return Err(format!("'{port}' is not a port"));
    }
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    // A host name is resolved when the server starts; here only its form is checked.
    if name && host.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{host}' is not an address"))
    }
}

pub(super) fn check_log(text: &str) -> Result<(), String> {
    for part in text.split(',') {
        // EnvFilter treats a part without a known level as a target, and would accept a misspelt level as one.
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level).trim();
        if !["off", "error", "warn", "info", "debug", "trace"].contains(&level.to_ascii_lowercase().as_str()) {
            return Err(format!("'{level}' is not a level"));
        }
    }
    tracing_subscriber::EnvFilter::try_new(text).map(drop).map_err(|error| error.to_string())
}

pub(super) fn is_key(text: &str) -> bool {
    (1..=512).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
