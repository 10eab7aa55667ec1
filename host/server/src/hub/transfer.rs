//! Requests to the hub, and resumable downloads.
//!
//! A download consists of one or more range requests, each for the part that is still missing. This covers dropped connections,
//! temporary server errors, interrupted programs, and hung connections: no request lasts longer than
//! [`RetryPolicy::body`](super::RetryPolicy::body), so nothing waits forever and no received byte is lost.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    thread,
    time::Duration,
};
use ureq::{
    Agent, Body,
    config::RedirectAuthHeaders,
    http::{Response, StatusCode, header},
    tls::{Certificate, PemItem, RootCerts, TlsConfig},
};

use super::{
    Hub, HubError, HubErrorKind, HubName, Progress, RetryPolicy,
    error::cleaned,
    remote::{Digest, Remote},
};
use pensieve_protocol::outside::Outside;

const ANSWER_BYTES_MAX: u64 = 8 << 20;
const ANSWER_FAILURES_MAX: u32 = 3;
const CHUNK_BYTES: usize = 256 << 10;
const REDIRECTS_MAX: u32 = 10;
const PAUSE_MAX: Duration = Duration::from_secs(20);

pub(super) struct HubClient {
    agent: Agent,
    endpoint: String,
    authorization: Option<String>,
    retry: RetryPolicy,
}

/// A client of web servers with this program's limits, names and certificates.
pub(super) fn agent(https_only: bool, retry: RetryPolicy) -> Result<Agent, HubError> {
    let mut tls = TlsConfig::builder();
    if let Some(roots) = certificates()? {
        tls = tls.root_certs(roots);
    }
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(REDIRECTS_MAX)
        .https_only(https_only)
        // A token is only for the hub; redirects to storage use signed URLs.
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .timeout_resolve(Some(retry.answer))
        .timeout_connect(Some(retry.answer))
        .timeout_recv_response(Some(retry.answer))
        .timeout_recv_body(Some(retry.body))
        .user_agent(concat!("pensieve/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls.build())
        .build();
    Ok(config.into())
}

enum Broken {
    Retry { why: String, after: Option<Duration> },
    Final(HubError),
}

impl HubClient {
    pub(super) fn open(hub: &Hub) -> Result<Self, HubError> {
        Ok(Self {
            // An HTTPS hub must not redirect to plain HTTP, where anyone can listen, or into the local network.
            agent: agent(hub.endpoint.starts_with("https://"), hub.retry)?,
            endpoint: hub.endpoint.clone(),
            authorization: hub.token.as_ref().map(|token| format!("Bearer {token}")),
            retry: hub.retry,
        })
    }

    /// Fetches a short document about a repository.
    pub(super) fn text(&self, url: &str, name: &HubName) -> Result<Vec<u8>, HubError> {
        // Nothing has been downloaded yet, so fail early without a network.
        self.persist(self.retry.failures_max.min(ANSWER_FAILURES_MAX), &mut |_| {
            let mut response = self.ask(url, 0)?;
            if response.status() != StatusCode::OK {
                return Err(self.refusal(&response, &name.repository()));
            }
            let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
            body.map_err(|error| Broken::Retry { why: error.to_string(), after: None })
        })
    }

    /// Completes a file, which may contain a first part already, and checks its digest.
    pub(super) fn download(
        &self,
        url: &str,
        remote: &Remote,
        file: &mut File,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let failed = |error: io::Error| HubError::file(path, &error);
        let mut sum = Sum::new(remote);
        let mut done = sum.take_in(file, remote.bytes).map_err(failed)?;
        progress.begin(&remote.name, done, remote.bytes);
        self.persist(self.retry.failures_max, &mut |moved| {
            while done < remote.bytes {
                let before = done;
                let result = self.request(url, remote, file, path, &mut sum, &mut done, progress);
                *moved |= done > before;
                result?;
            }
            Ok(())
        })?;
        // Excess bytes are cut off; the digest decides.
        file.set_len(remote.bytes).map_err(failed)?;
        if sum.finish() != remote.digest.as_str() {
            file.set_len(0).map_err(failed)?;
            let message = format!("'{}' is damaged: its digest is not {}", remote.name, remote.digest.as_str());
            return Err(HubError::new(HubErrorKind::Damaged, message)
                .help("pull again; if that does not help, tell the repository's owner"));
        }
        progress.end();
        Ok(())
    }

    /// One request for the part that is still missing.
    #[allow(clippy::too_many_arguments, reason = "all but the URL is the state of one download")]
    fn request(
        &self,
        url: &str,
        remote: &Remote,
        file: &mut File,
        path: &Path,
        sum: &mut Sum,
        done: &mut u64,
        progress: &mut dyn Progress,
    ) -> Result<(), Broken> {
        let failed = |error: io::Error| Broken::Final(HubError::file(path, &error));
        let mut response = self.ask(url, *done)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if begins_at(&response, *done) => {}
            // A server that ignores the range sends the whole file.
            StatusCode::OK if *done == 0 => {}
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if *done > 0 => {
                file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
                (*sum, *done) = (Sum::new(remote), 0);
                progress.reach(0);
                if response.status() != StatusCode::OK {
                    return Err(Broken::Retry { why: "the hub sends another part than asked for".into(), after: None });
                }
            }
            _ => return Err(self.refusal(&response, &remote.name)),
        }
        let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        while *done < remote.bytes {
            let room = usize::try_from(remote.bytes - *done).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let count = match body.read(&mut chunk[..room]) {
                Ok(0) => return Err(Broken::Retry { why: "the connection was closed".into(), after: None }),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Broken::Retry { why: error.to_string(), after: None }),
            };
            file.write_all(&chunk[..count]).map_err(failed)?;
            sum.update(&chunk[..count]);
            *done += count as u64;
            progress.reach(*done);
            if progress.is_cancelled() {
                return Err(Broken::Final(HubError::new(HubErrorKind::Cancelled, "the download was cancelled")));
            }
        }
        Ok(())
    }

    fn ask(&self, url: &str, from: u64) -> Result<Response<Body>, Broken> {
        let mut request = self.agent.get(url);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::TooManyRedirects | ureq::Error::RequireHttpsOnly(_) => {
                Broken::Final(self.unreachable(&error.to_string()))
            }
            error => Broken::Retry { why: error.to_string(), after: None },
        })
    }

    /// Retries until an attempt succeeds, or too many in a row have failed without progress.
    fn persist<T>(
        &self,
        failures_max: u32,
        attempt: &mut dyn FnMut(&mut bool) -> Result<T, Broken>,
    ) -> Result<T, HubError> {
        let mut failures = 0;
        loop {
            let mut moved = false;
            let (why, after) = match attempt(&mut moved) {
                Ok(done) => return Ok(done),
                Err(Broken::Final(error)) => return Err(error),
                Err(Broken::Retry { why, after }) => (why, after),
            };
            failures = if moved { 1 } else { failures + 1 };
            if failures >= failures_max {
                return Err(self.unreachable(&why));
            }
            let pause = self.retry.pause.saturating_mul(1 << failures.min(16)) / 2;
            // Jitter, so that many clients do not retry at the same moment.
            let pause = pause.mul_f64(0.75 + fastrand::f64() / 2.0);
            thread::sleep(after.unwrap_or(pause).min(PAUSE_MAX));
        }
    }

    fn unreachable(&self, why: &str) -> HubError {
        HubError::new(HubErrorKind::Network, format!("no answer from {}: {}", self.endpoint, cleaned(why)))
            .help("check the network and HF_ENDPOINT; a partial download is kept, and the next pull resumes it")
    }

    fn refusal(&self, response: &Response<Body>, what: &str) -> Broken {
        let reason = response.headers().get("x-error-message").and_then(|value| value.to_str().ok());
        let reason = reason.map(|reason| format!(" ({})", cleaned(reason))).unwrap_or_default();
        let status = response.status();
        let error = match status.as_u16() {
            401 | 403 => {
                let known = if self.authorization.is_some() { "with this token" } else { "without a token" };
                let message = format!("the hub denies access to '{what}' {known}: {status}{reason}");
                HubError::new(HubErrorKind::Denied, message).help(
                    "it may not exist, be private, or require consent on its page; set HF_TOKEN to a token with access",
                )
            }
            404 => HubError::new(HubErrorKind::Absent, format!("the hub has no '{what}': {status}{reason}"))
                .help("check owner, repository and revision"),
            408 | 425 | 429 | 500.. => {
                let after =
                    response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                return Broken::Retry { why: format!("{status}{reason}"), after: after.map(Duration::from_secs) };
            }
            _ => self.unreachable(&format!("{status}{reason}")),
        };
        Broken::Final(error)
    }
}

/// True if a partial response starts at the requested offset.
fn begins_at(response: &Response<Body>, done: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let begin = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok());
    begin == Some(done)
}

/// Root certificates from `SSL_CERT_FILE`, for networks with their own.
fn certificates() -> Result<Option<RootCerts>, HubError> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else { return Ok(None) };
    let path = Path::new(&path);
    let text =
        std::fs::read(path).map_err(|error| HubError::file(path, &error).help("correct or unset SSL_CERT_FILE"))?;
    let roots: Vec<Certificate<'static>> = ureq::tls::parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if roots.is_empty() {
        let message = format!("SSL_CERT_FILE '{}' holds no certificate", Outside::path(&path));
        return Err(HubError::new(HubErrorKind::Usage, message).help("correct or unset it"));
    }
    Ok(Some(RootCerts::from(roots)))
}

enum Sum {
    Sha256(Sha256),
    Git(Sha1),
}

impl Sum {
    fn new(remote: &Remote) -> Self {
        match remote.digest {
            Digest::Sha256(_) => Self::Sha256(Sha256::new()),
            Digest::Git(_) => Self::Git(Sha1::new_with_prefix(format!("blob {}\0", remote.bytes))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::Git(sum) => sum.update(bytes),
        }
    }

    /// Hashes a file's existing content, and leaves the position at its end.
    fn take_in(&mut self, file: &mut File, bytes_max: u64) -> io::Result<u64> {
        if file.metadata()?.len() > bytes_max {
            file.set_len(0)?;
        }
        file.rewind()?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = file.read(&mut chunk)?;
            if count == 0 {
                return file.seek(SeekFrom::End(0));
            }
            self.update(&chunk[..count]);
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Sha256(sum) => format!("{:x}", sum.finalize()),
            Self::Git(sum) => format!("{:x}", sum.finalize()),
        }
    }
}
