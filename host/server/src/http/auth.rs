//! Authentication by headers alone, before anything is read, routed or computed. Pure functions.
//!
//! Web pages in a browser on this machine can send requests to local ports. Three checks keep them out: `Host` must be
//! a name of this server, which stops DNS rebinding; an `Origin` must be this server's own or listed; and bodies must have the content type
//! of JSON, which browsers do not send without a CORS preflight.

use hyper::{
    HeaderMap, Uri,
    header::{AUTHORIZATION, HOST, ORIGIN},
};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use subtle::Choice;

use super::{KEY_LEN_MIN, Key, Keyring, Settings};
use crate::{
    chat::Client,
    dialects::{ApiError, ErrorCode},
    keys::KeyTable,
};
use pensieve_protocol::{outside::Outside, share::ONLY_CLIENT};

/// The accepted keys, host names and origins.
#[derive(Debug)]
pub(super) struct Auth {
    keyring: Arc<Keyring>,
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// A client, and the key that it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) client: Client,
    key: Key,
    network: u64,
}

impl Identity {
    fn new(table: &KeyTable, key: &Key, network: u64) -> Option<Self> {
        let known = table.find(key)?;
        let digest = match &known.account {
            None => Sha256::new().chain_update(b"pensieve client\0").chain_update(key.digest()),
            // By the name, so that stored responses and caches outlive a change of the key.
            Some(account) => Sha256::new().chain_update(b"pensieve named key\0").chain_update(account.name()),
        };
        // Neither the id nor the salt reveals the key.
        let salt: [u8; 32] = digest.finalize().into();
        let (id, _) = salt.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let id = u64::from_le_bytes(*id);
        let share = if table.has_clients { (id ^ network.rotate_left(32)).max(1) } else { ONLY_CLIENT };
        let client = Client { id, share, salt: salt.to_vec(), account: known.account.clone() };
        Some(Self { client, key: key.clone(), network })
    }

    /// The same client with what its key may do now; an error if the key is not accepted any more.
    pub(super) fn renewed(&self, keyring: &Keyring) -> Result<Self, ApiError> {
        let renewed = Self::new(&keyring.table(), &self.key, self.network);
        renewed.ok_or_else(|| unauthenticated("the key is not valid any more"))
    }
}

impl Auth {
    pub(super) fn new(settings: &Settings, address: SocketAddr, keyring: Arc<Keyring>) -> Self {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".into(), "[::1]".into(), "host.docker.internal".into()];
        if !address.ip().is_unspecified() {
            hosts.push(literal(address.ip()));
        }
        hosts.extend(settings.hosts.iter().map(|host| host.to_ascii_lowercase()));
        let origins = settings.origins.iter().map(|origin| origin.trim_end_matches('/').to_ascii_lowercase());
        Self { keyring, hosts, origins: origins.collect() }
    }

    /// Refuses requests for other hosts. `local` is the address that the client connected to.
    pub(super) fn check_host(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Result<(), ApiError> {
        let refused = |message: String| Err(ApiError::new(ErrorCode::Permission, message));
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return refused("exactly one Host header is required".into());
        };
        let host = host.to_str().unwrap_or_default();
        let whole = uri.authority().map(hyper::http::uri::Authority::as_str);
        for host in [Some(host), whole].into_iter().flatten() {
            let name = without_port(host).to_ascii_lowercase();
            if !self.hosts.contains(&name) && name != literal(local) {
                let shown = Outside::new(&name).at_most(80);
                return refused(format!("this server is not called '{shown}'; add the name to server.hosts"));
            }
        }
        Ok(())
    }

    /// The origin of the requesting web page, if it is another one than this server's; an error unless it is allowed.
    /// Call it after [`Self::check_host`]: a page that names this server in `Host` and comes from there is its own.
    pub(super) fn check_origin(&self, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
        let refused = |message: &str| Err(ApiError::new(ErrorCode::Permission, message));
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else {
            // Images, scripts and the like of another page, which come without an origin.
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let is_foreign = ["cross-site", "same-site"].contains(&text("sec-fetch-site"));
            if is_foreign && text("sec-fetch-mode") != "navigate" {
                return refused("another page may not load this");
            }
            return Ok(None);
        };
        let origin = origin.to_str().unwrap_or_default();
        let is_single = origins.next().is_none();
        if is_single && self.origins.contains(&origin.to_ascii_lowercase()) {
            return Ok(Some(origin.to_owned()));
        }
        // Behind a proxy that ends TLS, the page's address begins with https.
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let rest = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
        if is_single && !host.is_empty() && rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host)) {
            return Ok(None);
        }
        refused("pages of this origin may not use the server; add the origin to server.origins")
    }

    /// Identifies the client by its key. A server without keys is reachable only from this machine and accepts any key,
    /// as clients may send one for another service.
    /// `query` may hold the key as `key=…`; it is empty where that is not accepted.
    pub(super) fn check_key(&self, headers: &HeaderMap, query: &str, network: u64) -> Result<Identity, ApiError> {
        let table = self.keyring.table();
        let identity = |key: &Key| Identity::new(&table, key, network);
        if table.is_local {
            let only = table.known.first().and_then(|known| identity(&known.key));
            return only.ok_or_else(|| unauthenticated("this server has no keys"));
        }
        let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(|value| bearer(value.to_str().ok()?));
        let plain = ["x-api-key", "x-goog-api-key"].into_iter().flat_map(|name| headers.get_all(name));
        let plain = plain.filter_map(|value| value.to_str().ok());
        let asked = query.split('&').filter_map(|pair| pair.strip_prefix("key="));
        let asked = asked.filter_map(|key| percent_decode_str(key).decode_utf8().ok());
        let presented = bearer.chain(plain).map(Cow::Borrowed).chain(asked).filter(|key| !key.is_empty());
        let presented: Vec<(Key, bool)> =
            presented.map(|key| (Key::new(&key), key.len() >= KEY_LEN_MIN)).take(4).collect();
        // All keys are compared even after a match, so that timing reveals nothing.
        let mut matched = None;
        for known in &table.known {
            // A short key could be guessed from its hash in the configuration.
            let may_match = |is_long: bool| Choice::from(u8::from(is_long || known.account.is_none()));
            let matches = presented
                .iter()
                .fold(Choice::from(0), |any, (other, is_long)| any | (known.key.matches(other) & may_match(*is_long)));
            if bool::from(matches) {
                matched = Some(&known.key);
            }
        }
        let what = if presented.is_empty() { "this server needs a key" } else { "the key is wrong" };
        matched.and_then(identity).ok_or_else(|| unauthenticated(what))
    }
}

fn unauthenticated(what: &str) -> ApiError {
    ApiError { help: KEY_HELP.to_owned(), ..ApiError::new(ErrorCode::Authentication, what) }
}

/// Help for every kind of client.
const KEY_HELP: &str = "set the server's key as ANTHROPIC_API_KEY for Claude Code, as OPENAI_API_KEY or api_key for OpenAI's \
    clients, as GEMINI_API_KEY for the Gemini CLI, and as OLLAMA_API_KEY or the header 'Authorization: Bearer KEY' for Ollama's";

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Strips the port from `[::1]:8000`; anything else after a colon is part of the name.
fn without_port(host: &str) -> &str {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    }
}

/// An address in the form of a `Host` header.
fn literal(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::keys::{LOCAL_KEY, NamedKey};
    use hyper::header::{HeaderName, HeaderValue};

    const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000);

    fn auth(keys: &[&str]) -> Auth {
        let settings = Settings {
            keys: keys.iter().map(|key| Key::new(key)).collect(),
            hosts: vec!["Box.example".into()],
            origins: vec!["https://app.example/".into()],
            ..Settings::default()
        };
        let keyring = Keyring::new(&settings.keys, &settings.named_keys, true);
        Auth::new(&settings, LOCAL, Arc::new(keyring))
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn only_names_of_this_server_are_answered_to() {
        let check = |hosts: &[&str], uri: &str, local: &str| {
            let headers: Vec<(&'static str, &str)> = hosts.iter().map(|host| ("host", *host)).collect();
            auth(&[]).check_host(&uri.parse().unwrap(), &self::headers(&headers), local.parse().unwrap()).is_ok()
        };
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "[::1]", "box.example:80"] {
            assert!(check(&[host], "/", "127.0.0.1"), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert!(!check(&[host], "/", "127.0.0.1"), "{host}");
        }
        for host in ["localhost.", "192.168.1.7", "[::1", "::1", "127.0.0.1:80:80", "localhost@evil.example", "ö"] {
            assert!(!check(&[host], "/", "127.0.0.1"), "{host}");
        }
        for host in ["localhost:evil.example", "localhost:", "localhost:+80", "localhost:65536", "[::1]:evil.example"] {
            assert!(!check(&[host], "/", "127.0.0.1"), "{host}");
        }
        assert!(!check(&[], "/", "127.0.0.1"));
        assert!(!check(&["localhost", "localhost"], "/", "127.0.0.1"));
        assert!(!check(&["localhost"], "http://evil.example/", "127.0.0.1"));
        assert!(check(&["localhost"], "http://localhost:8000/", "127.0.0.1"));
        assert!(check(&["192.168.1.7:8000"], "/", "192.168.1.7"));
        assert!(check(&["192.168.1.7:8000"], "/", "::ffff:192.168.1.7"));
        assert!(check(&["[fe80::1]:8000"], "/", "fe80::1"));
    }

    #[test]
    fn pages_of_strangers_stay_outside() {
        let check = |origins: &[&str]| {
            let headers: Vec<(&'static str, &str)> = origins.iter().map(|origin| ("origin", *origin)).collect();
            auth(&[]).check_origin(&self::headers(&headers))
        };
        assert_eq!(check(&[]).unwrap(), None);
        assert_eq!(check(&["https://app.example"]).unwrap().as_deref(), Some("https://app.example"));
        for origin in ["null", "", "http://app.example", "https://app.example:444", "http://localhost:8000", "ö"] {
            assert!(check(&[origin]).is_err(), "{origin}");
        }
        assert!(check(&["https://app.example", "https://evil.example"]).is_err());
    }

    #[test]
    fn the_servers_own_page_is_no_stranger() {
        let check = |lines: &[(&'static str, &str)]| auth(&[]).check_origin(&headers(lines));
        let own = ("host", "localhost:8000");
        assert_eq!(check(&[own, ("origin", "http://localhost:8000")]).unwrap(), None);
        assert_eq!(check(&[own, ("origin", "https://LOCALHOST:8000")]).unwrap(), None);
        for origin in ["http://localhost:3000", "http://localhost", "http://127.0.0.1:8000", "ftp://localhost:8000"] {
            assert!(check(&[own, ("origin", origin)]).is_err(), "{origin}");
        }
        assert!(check(&[("host", ""), ("origin", "http://")]).is_err());
        assert!(check(&[own, ("origin", "http://localhost:8000"), ("origin", "http://localhost:8000")]).is_err());
        let mode = |site: &str, mode: &str| check(&[own, ("sec-fetch-site", site), ("sec-fetch-mode", mode)]).is_ok();
        for site in ["cross-site", "same-site"] {
            assert!(!mode(site, "no-cors") && mode(site, "navigate"), "{site}");
        }
        assert!(mode("same-origin", "cors") && mode("none", "navigate"));
    }

    #[test]
    fn without_a_key_set_any_key_or_none_will_do() {
        let check = |lines: &[(&'static str, &str)]| auth(&[]).check_key(&headers(lines), "", 1).unwrap();
        let client = check(&[]);
        for line in [("x-api-key", LOCAL_KEY), ("x-api-key", "sk-ant-other"), ("authorization", "Bearer sk-proj-x")] {
            assert_eq!(check(&[line]), client, "{line:?}");
        }
    }

    #[test]
    fn a_share_is_a_keys_at_an_address() {
        let share = |key: &str, network: u64| {
            auth(&["one", "two"]).check_key(&headers(&[("x-api-key", key)]), "", network).unwrap().client.share
        };
        assert_eq!(share("one", 1), share("one", 1));
        assert!(share("one", 1) != share("two", 1) && share("one", 1) != share("one", 2));
    }

    #[test]
    fn with_a_key_set_nothing_else_will_do() {
        let auth_of_two = auth(&["one", "two"]);
        let check = |lines: &[(&'static str, &str)]| {
            auth_of_two.check_key(&headers(lines), "", 1).ok().map(|identity| identity.client)
        };
        let (one, two) = (check(&[("x-api-key", "one")]).unwrap(), check(&[("authorization", "bearer two")]).unwrap());
        assert!(one.id != two.id && one.salt != two.salt);
        assert_eq!(check(&[("authorization", "Bearer wrong"), ("x-api-key", "one")]), Some(one));
        for lines in [
            vec![],
            vec![("x-api-key", "")],
            vec![("x-api-key", "on")],
            vec![("x-api-key", "one ")],
            vec![("x-api-key", LOCAL_KEY)],
            vec![("authorization", "one")],
            vec![("authorization", "Basic one")],
            vec![("authorization", "Bearer ")],
        ] {
            assert_eq!(check(&lines), None, "{lines:?}");
        }
        let google = |lines: &[(&'static str, &str)], query: &str| {
            auth(&["one", "t&o"]).check_key(&headers(lines), query, 1).is_ok()
        };
        assert!(google(&[("x-goog-api-key", "one")], "") && google(&[], "key=one"));
        assert!(google(&[], "alt=sse&key=t%26o"));
        for query in ["", "key=", "key=on", "key=%6", "Key=one", "akey=one"] {
            assert!(!google(&[("x-goog-api-key", "two")], query), "{query}");
        }
    }

    #[test]
    fn a_named_key_keeps_its_client_when_it_is_replaced_and_is_not_short() {
        const LONG: [&str; 2] = ["a-key-of-twenty-four-chars", "another-key-of-many-chars"];
        let named =
            |name: &str, key: &str| NamedKey { name: name.into(), keys: vec![Key::new(key)], ..NamedKey::default() };
        let settings = Settings::default();
        let keyring = Arc::new(Keyring::new(&[], &[named("a", LONG[0]), named("b", "short")], false));
        let auth = Auth::new(&settings, LOCAL, keyring.clone());
        let check = |key: &str| auth.check_key(&headers(&[("x-api-key", key)]), "", 1).ok();
        let first = check(LONG[0]).unwrap();
        assert_eq!(first.client.key_name(), "a");
        assert_eq!((check("short"), check(""), check(LOCAL_KEY)), (None, None, None));
        keyring.replace(&[], &[named("a", LONG[1]), named("b", "short")]).unwrap();
        let second = check(LONG[1]).unwrap();
        assert_eq!((check(LONG[0]), first.renewed(&keyring).is_err()), (None, true));
        assert_eq!((second.client.id, &second.client.salt), (first.client.id, &first.client.salt));
        assert_eq!(second.renewed(&keyring).unwrap(), second);
    }
}
