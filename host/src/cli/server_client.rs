//! Requests of `ps`, `stop`, `pin` and `statusline` to a running server.

use clap::Args;
use serde::de::DeserializeOwned;
use std::{path::PathBuf, time::Duration};

use super::{
    common_args::{CommonArgs, ResolvedConfig},
    error::{CliError, Exit},
};
use pensieve_protocol::outside::Outside;
use pensieve_server::http::LOCAL_KEY;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 16 << 20;
const ERROR_CHARS_MAX: usize = 500;

/// Which running server is asked.
#[derive(Args, Clone, Debug)]
pub(super) struct ServerArgs {
    /// The server, as http://HOST:PORT [default: the configured address]. Its key comes from PENSIEVE_API_KEY, or from the
    /// configuration.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The configuration file [default: ./pensieve.toml, else pensieve.toml in $PENSIEVE_HOME].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A server that answers requests of this program.
pub(super) struct ServerClient {
    pub(super) base: String,
    key: String,
    timeout: Duration,
}

#[derive(Clone, Copy)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl ServerArgs {
    pub(super) fn resolve(&self) -> Result<ResolvedConfig, CliError> {
        CommonArgs::configured_by(self.config.clone()).resolve(&[])
    }

    pub(super) fn client(&self) -> Result<ServerClient, CliError> {
        let resolved = self.resolve()?;
        let base = match &self.url {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                url.trim_end_matches('/').trim_end_matches("/v1").to_owned()
            }
            Some(url) => {
                return Err(CliError::new(
                    Exit::Usage,
                    format!("--url {url}: it has to begin with http:// or https://"),
                ));
            }
            None => base_of(&resolved.config.server.listen[0]),
        };
        Ok(ServerClient { base, key: key_of(&resolved), timeout: ANSWER_TIMEOUT })
    }
}

impl ServerClient {
    /// Waits this long for an answer.
    pub(super) fn patient(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(super) fn ask<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, CliError> {
        let (url, base) = (format!("{}{path}", self.base), &self.base);
        let config = ureq::Agent::config_builder().timeout_global(Some(self.timeout)).proxy(None);
        let agent = config.http_status_as_error(false).build().new_agent();
        let bearer = format!("Bearer {}", self.key);
        let response = match method {
            Method::Get => agent.get(&url).header("authorization", bearer).call(),
            Method::Post => {
                agent.post(&url).header("authorization", bearer).content_type("application/json").send("{}")
            }
            Method::Delete => agent.delete(&url).header("authorization", bearer).call(),
        };
        let mut response = response.map_err(|error| {
            let line =
                format!("no server answers at {base}: {error}; start it with 'pensieve serve', or name it with --url");
            CliError::new(Exit::Absent, line)
        })?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text =
            text.map_err(|error| CliError::new(Exit::Failed, format!("the answer of {base} broke off: {error}")))?;
        match status {
            200 => serde_json::from_str(&text).map_err(|error| {
                CliError::new(Exit::Failed, format!("the server at {base} is no Pensieve of this version: {error}"))
            }),
            401 => Err(CliError::new(
                Exit::Denied,
                format!("the server at {base} needs its key; set PENSIEVE_API_KEY, or server.key in pensieve.toml"),
            )),
            _ => {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                let message = value["error"]["message"].as_str().unwrap_or("no reason was given");
                let line = Outside::new(message).at_most(ERROR_CHARS_MAX).to_string();
                Err(CliError::new(if status == 404 { Exit::Absent } else { Exit::Failed }, line))
            }
        }
    }
}

/// The URL at which a client on this machine reaches a server that listens on `listen`.
pub(super) fn base_of(listen: &str) -> String {
    let (host, port) = listen.rsplit_once(':').unwrap_or((listen, "8000"));
    let host = if matches!(host, "0.0.0.0" | "[::]") { "127.0.0.1" } else { host };
    format!("http://{host}:{port}")
}

pub(super) fn key_of(resolved: &ResolvedConfig) -> String {
    resolved.config.server.keys.first().cloned().unwrap_or_else(|| LOCAL_KEY.to_owned())
}

/// An id as a part of a path.
pub(super) fn in_path(id: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    id.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_escaped_in_paths() {
        assert_eq!(in_path("base:poet/x y"), "base%3Apoet%2Fx%20y");
        assert_eq!(in_path("pensieve-starter_1.5~"), "pensieve-starter_1.5~");
    }

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_this_machine() {
        assert_eq!(base_of("0.0.0.0:8000"), "http://127.0.0.1:8000");
        assert_eq!(base_of("[::]:80"), "http://127.0.0.1:80");
        assert_eq!(base_of("example.org:8000"), "http://example.org:8000");
    }
}
