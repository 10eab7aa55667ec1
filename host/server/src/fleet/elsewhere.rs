//! Models that other servers compute: where these are, and how they are reached. Plain data; `upstream` speaks to them.

use std::{fmt, time::Duration};

use hyper::{Uri, http::uri::Scheme};

/// Servers behind one model.
const REPLICAS_MAX: usize = 64;
const URL_LEN_MAX: usize = 1024;

/// A model that one or several other servers compute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// The servers' API roots; all serve the same model.
    pub urls: Vec<UpstreamUrl>,
    /// The model's name there.
    pub model: String,
    /// `None` to ask the servers.
    pub kind: Option<UpstreamKind>,
    pub key: Option<Secret>,
    /// Certificates in PEM of the only authorities that are trusted; `None` for the system's.
    pub authorities: Option<Vec<u8>>,
    /// This server's own certificate and its private key, in PEM.
    pub identity: Option<Identity>,
    /// Requests that one server is given at a time.
    pub streams_max: u32,
    /// Requests that one server is given in any minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers, as they are estimated, that one server is given in any minute.
    pub tokens_per_minute: Option<u32>,
    /// Time without a byte after which an answer is given up.
    pub silence: Duration,
    /// The longest sequence in tokens; `None` for what the servers say.
    pub context: Option<u32>,
    /// It reads images; `None` for what the servers say.
    pub images: Option<bool>,
}

/// A certificate for connections on which both sides show one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Secret,
}

/// The program on the other side, as far as it decides what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamKind {
    Vllm,
    Sglang,
    LlamaCpp,
    Ollama,
    Pensieve,
    /// A server that speaks OpenAI's chat completions, with no fields of its own.
    OpenAi,
    /// A server that speaks Anthropic's Messages.
    Anthropic,
}

impl UpstreamKind {
    pub const ALL: [(&'static str, Self); 7] = [
        ("vllm", Self::Vllm),
        ("sglang", Self::Sglang),
        ("llama.cpp", Self::LlamaCpp),
        ("ollama", Self::Ollama),
        ("pensieve", Self::Pensieve),
        ("openai", Self::OpenAi),
        ("anthropic", Self::Anthropic),
    ];

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// The root of a server's API, such as `http://10.0.0.5:8000/v1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamUrl {
    text: String,
    is_plain: bool,
    is_local: bool,
}

impl UpstreamUrl {
    /// The error completes "the URL …".
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches('/');
        if text.len() > URL_LEN_MAX {
            return Err(format!("has {} bytes, more than {URL_LEN_MAX}", text.len()));
        }
        let uri: Uri = text.parse().map_err(|error| format!("is not one: {error}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err("has no scheme and host".into());
        };
        if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS {
            return Err("is neither http:// nor https://".into());
        }
        if authority.as_str().contains('@') {
            return Err("has a user name or a password in it; use upstream_key_env or upstream_key_file".into());
        }
        if uri.query().is_some() {
            return Err("has a query, which no API's root has".into());
        }
        let host = authority.host().trim_matches(['[', ']']);
        let is_local =
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        Ok(Self { text: text.to_owned(), is_plain: *scheme == Scheme::HTTP, is_local })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The root without the API's version, where servers have their other routes.
    pub fn root(&self) -> &str {
        self.text.strip_suffix("/v1").unwrap_or(&self.text)
    }

    /// True for OpenAI's own API, at OpenAI or at Azure, which has left names behind that other servers go on with.
    pub fn is_openai(&self) -> bool {
        let host = self.text.split("://").nth(1).unwrap_or_default();
        let host = host.split(['/', ':']).next().unwrap_or_default().to_ascii_lowercase();
        ["openai.com", "azure.com", "azure.us", "azure.cn"]
            .iter()
            .any(|domain| host.strip_suffix(domain).is_some_and(|left| left.ends_with('.')))
    }

    /// True if what is sent there stays on this machine.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// True if others on the way can read what is sent there.
    pub fn is_readable(&self) -> bool {
        self.is_plain && !self.is_local
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text that no log and no error may show.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Upstream {
    /// A model of this name on these servers. The error is a message for the user.
    pub fn new(urls: &[String], model: impl Into<String>) -> Result<Self, String> {
        if urls.is_empty() || urls.len() > REPLICAS_MAX {
            return Err(format!("it takes 1 to {REPLICAS_MAX} URLs such as http://HOST:8000/v1"));
        }
        let parse = |text: &String| UpstreamUrl::parse(text).map_err(|what| format!("the URL '{text}' {what}"));
        let urls: Vec<UpstreamUrl> = urls.iter().map(parse).collect::<Result<_, _>>()?;
        if let Some(twice) = urls.iter().enumerate().find_map(|(place, url)| urls[..place].iter().find(|it| *it == url))
        {
            return Err(format!("the URL '{twice}' is named twice"));
        }
        Ok(Self {
            urls,
            model: model.into(),
            kind: None,
            key: None,
            authorities: None,
            identity: None,
            streams_max: 256,
            requests_per_minute: None,
            tokens_per_minute: None,
            silence: Duration::from_secs(300),
            context: None,
            images: None,
        })
    }

    /// Tells the operator what leaves this machine: completes "the model …".
    pub fn told(&self) -> String {
        let away: Vec<&str> = self.urls.iter().filter(|url| !url.is_local()).map(UpstreamUrl::as_str).collect();
        if away.is_empty() {
            format!("is computed by {}, on this machine", self.addresses())
        } else {
            format!("is computed by {}: requests for it leave this machine", self.addresses())
        }
    }

    /// True if its key is sent over a network without encryption.
    pub fn shows_key(&self) -> bool {
        self.key.is_some() && self.urls.iter().any(UpstreamUrl::is_readable)
    }

    /// The servers' addresses, for messages.
    pub fn addresses(&self) -> String {
        let urls: Vec<&str> = self.urls.iter().map(UpstreamUrl::as_str).collect();
        urls.join(", ")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_roots_of_apis_without_secrets() {
        let check = |text: &str, expected: Result<(&str, bool, bool), &str>| match (UpstreamUrl::parse(text), expected)
        {
            (Ok(url), Ok((root, local, readable))) => {
                assert_eq!((url.root(), url.is_local(), url.is_readable()), (root, local, readable), "{text}");
            }
            (Err(what), Err(part)) => assert!(what.contains(part), "{text}: {what}"),
            (found, _) => panic!("{text}: {found:?}"),
        };
        check("http://127.0.0.1:8000/v1/", Ok(("http://127.0.0.1:8000", true, false)));
        check("http://[::1]:8000/v1", Ok(("http://[::1]:8000", true, false)));
        check("http://10.0.0.5:8000/v1", Ok(("http://10.0.0.5:8000", false, true)));
        check("https://api.example.com/openai", Ok(("https://api.example.com/openai", false, false)));
        check("http://localhost.example.com/v1", Ok(("http://localhost.example.com", false, true)));
        check("10.0.0.5:8000", Err("no scheme"));
        check("ftp://host/v1", Err("neither http:// nor https://"));
        check("https://user:word@host/v1", Err("a password in it"));
        check("https://host/v1?key=x", Err("a query"));
        check("https://ho st/v1", Err("is not one"));
    }

    #[test]
    fn openais_own_api_is_known_by_its_host() {
        let check = |text: &str, is| assert_eq!(UpstreamUrl::parse(text).unwrap().is_openai(), is, "{text}");
        check("https://api.openai.com/v1", true);
        check("https://eu.api.OpenAI.com:443/v1", true);
        check("https://name.openai.azure.com/openai/v1", true);
        check("https://api.mistral.ai/v1", false);
        check("https://notopenai.com/v1", false);
        check("http://10.0.0.5/api.openai.com/v1", false);
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut upstream = Upstream::new(&["https://host/v1".into()], "m").unwrap();
        upstream.key = Some(Secret::new("sk-hidden"));
        assert!(!format!("{upstream:?}").contains("hidden"));
        assert!(!format!("{upstream:?}").contains("115, 107"), "nor its bytes");
    }

    #[test]
    fn every_server_is_named_once() {
        let failed = |urls: &[&str]| {
            let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            Upstream::new(&urls, "m").unwrap_err()
        };
        assert!(failed(&["http://a/v1", "http://b/v1", "http://a/v1/"]).contains("'http://a/v1' is named twice"));
        assert!(failed(&[]).contains("1 to 64 URLs"));
    }
}
