//! Downloads of single files that are not a repository's: packages of plugins and their indexes.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::IpAddr,
    time::Duration,
};

use super::{HubError, HubErrorKind, Progress, RetryPolicy, error::cleaned, transfer::agent};

const CHUNK_BYTES: usize = 256 << 10;
/// Time limit of one download.
const BODY_TIME: Duration = Duration::from_secs(1800);

/// Copies what is at a URL to a file, at most `bytes_max`. Only HTTPS is used, except on this machine.
pub fn fetch(url: &str, bytes_max: u64, to: &mut File, progress: &mut dyn Progress) -> Result<(), HubError> {
    let network = |why: &str| HubError::new(HubErrorKind::Network, format!("no answer from {url}: {}", cleaned(why)));
    let is_secure = url.starts_with("https://");
    if !is_secure && !is_loopback(url) {
        let message = format!("'{url}' is not an https:// URL");
        return Err(HubError::new(HubErrorKind::Usage, message).help("plain HTTP is used on this machine alone"));
    }
    let agent = agent(is_secure, RetryPolicy { body: BODY_TIME, ..RetryPolicy::default() })?;
    let mut response = agent.get(url).call().map_err(|error| network(&error.to_string()))?;
    let status = response.status();
    if !status.is_success() {
        let kind = match status.as_u16() {
            401 | 403 => HubErrorKind::Denied,
            404 | 410 => HubErrorKind::Absent,
            _ => HubErrorKind::Network,
        };
        return Err(HubError::new(kind, format!("{url} answers {status}")).help("check the URL"));
    }
    let announced = response.body().content_length();
    let too_large = || HubError::new(HubErrorKind::TooLarge, format!("{url} has more than {bytes_max} bytes"));
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large());
    }
    let name = url.rsplit('/').next().unwrap_or(url);
    let is_shown = announced.is_some_and(|bytes| bytes > 1 << 20);
    if let Some(bytes) = announced.filter(|_| is_shown) {
        progress.begin(name, 0, bytes);
    }
    let (mut done, mut chunk) = (0_u64, vec![0; CHUNK_BYTES]);
    let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
    loop {
        let count = match body.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(network(&error.to_string())),
        };
        done += count as u64;
        if done > bytes_max {
            return Err(too_large());
        }
        to.write_all(&chunk[..count]).map_err(|error| written(name, &error))?;
        if is_shown {
            progress.reach(done);
        }
    }
    if announced.is_some_and(|bytes| bytes != done) {
        return Err(network("the connection was closed early"));
    }
    if is_shown {
        progress.end();
    }
    to.flush().map_err(|error| written(name, &error))
}

fn written(name: &str, error: &io::Error) -> HubError {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
    let kind = if full.contains(&error.kind()) { HubErrorKind::Space } else { HubErrorKind::Other };
    HubError::new(kind, format!("'{name}' cannot be written: {error}"))
}

fn is_loopback(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    !authority.contains('@') && (host == "localhost" || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_alone() {
        for url in ["http://127.0.0.1:80/a", "http://localhost/a", "http://[::1]:1/a", "http://127.9.9.9"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in [
            "http://example.org/a",
            "http://127.0.0.1.example.org/",
            "http://localhost@example.org/",
            "http://10.0.0.1/",
            "ftp://127.0.0.1/",
            "http://",
        ] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
