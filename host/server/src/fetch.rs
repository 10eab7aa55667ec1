//! Fetches what a client names by its address, for a server whose configuration allows it.
//!
//! The server can reach what the client may not: the machine itself and the network around it. So an address is refused
//! unless it is public, at the place where a connection is made: the addresses that are checked are those that are
//! connected to, for each redirect anew, whatever a name server says in between. No proxy is used, as it would connect to
//! addresses that nothing here has seen.

use std::{
    io::Read,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ureq::{
    Agent,
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::{DefaultConnector, NextTimeout},
    },
};

/// From the first byte sent to the last one received, redirects included.
const TIME_MAX: Duration = Duration::from_secs(20);
const REDIRECTS_MAX: u32 = 3;

/// Fetches an `http` or `https` address with at most `bytes_max` bytes, within `time_max` if that is less than the limit of
/// an address. The error is for the client.
pub(crate) fn get(url: &str, bytes_max: usize, time_max: Duration) -> Result<Vec<u8>, String> {
    get_by(&agent(PublicResolver::default(), time_max), url, bytes_max)
}

fn get_by(agent: &Agent, url: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
    let answer = agent.get(url).call().map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let body = answer.into_body().into_reader();
    body.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > bytes_max {
        return Err(format!("it has more than {bytes_max} bytes"));
    }
    Ok(bytes)
}

fn agent(resolver: impl Resolver, time_max: Duration) -> Agent {
    let config = Config::builder()
        .proxy(None)
        .max_redirects(REDIRECTS_MAX)
        .timeout_global(Some(time_max.min(TIME_MAX)))
        .user_agent("pensieve")
        .build();
    Agent::with_parts(config, DefaultConnector::default(), resolver)
}

/// Resolves names to public addresses only.
#[derive(Debug, Default)]
struct PublicResolver(DefaultResolver);

impl Resolver for PublicResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let all = self.0.resolve(uri, config, timeout)?;
        match all.iter().find(|address| !is_public(address.ip())) {
            None => Ok(all),
            Some(address) => {
                let why = format!("'{}' is not a public address", address.ip());
                Err(ureq::Error::Io(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)))
            }
        }
    }
}

/// True for addresses that anyone on the internet can reach.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_reserved = match (a, b, c) {
        // This network, private networks, loopback, multicast and what is reserved for later.
        (0 | 10 | 127 | 224..=255, ..) => true,
        // Carriers' own networks.
        (100, 64..=127, _) => true,
        // Link-local addresses, where clouds keep their credentials.
        (169, 254, _) => true,
        (172, 16..=31, _) | (192, 168, _) => true,
        // Protocol assignments, documentation, relays, benchmarks.
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) => true,
        _ => false,
    };
    !is_reserved
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    // Forms that hold an address of version 4: mapped, translated, and 6to4.
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_public_v4(inner);
    }
    let octets = address.octets();
    let inner = |at: usize| Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]);
    if (first, second) == (0x64, 0xff9b) {
        return third == 0 && is_public_v4(inner(12));
    }
    if first == 0x2002 {
        return is_public_v4(inner(2));
    }
    // Of what is assigned so far all public addresses begin with these bits; the rest are protocols and documentation.
    let is_global = first & 0xe000 == 0x2000;
    let is_protocol = first == 0x2001 && second < 0x0200;
    let is_documentation = (first, second) == (0x2001, 0x0db8) || first == 0x3fff;
    is_global && !is_protocol && !is_documentation
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        net::{SocketAddr, TcpListener},
        thread,
    };

    #[test]
    fn addresses_inside_are_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1111", "64:ff9b::8.8.8.8"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    /// Answers every request with these bytes.
    fn server(answer: String) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        address
    }

    fn reply(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    /// Takes `public.test` for a public name, and resolves it to a server of the test.
    #[derive(Debug)]
    struct TestResolver(SocketAddr, PublicResolver);

    impl Resolver for TestResolver {
        fn resolve(&self, uri: &Uri, config: &Config, time: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
            if uri.host() != Some("public.test") {
                return self.1.resolve(uri, config, time);
            }
            let mut addresses = self.empty();
            addresses.push(self.0);
            Ok(addresses)
        }
    }

    #[test]
    fn loopback_is_refused_by_name_by_number_and_behind_a_redirect() {
        let inside = server(reply("secret"));
        for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
            let error = get(&format!("http://{host}:{}/", inside.port()), 100, TIME_MAX).unwrap_err();
            assert!(error.contains("is not a public address"), "{host}: {error}");
        }
        let to_inside = format!(
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{}/\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            inside.port()
        );
        let agent = agent(TestResolver(server(to_inside), PublicResolver::default()), TIME_MAX);
        let error = get_by(&agent, "http://public.test/", 100).unwrap_err();
        assert!(error.contains("is not a public address"), "{error}");
    }

    #[test]
    fn what_is_fetched_has_limits() {
        let small = agent(TestResolver(server(reply("picture")), PublicResolver::default()), TIME_MAX);
        assert_eq!(get_by(&small, "http://public.test/a.png", 7).unwrap(), b"picture");
        assert_eq!(get_by(&small, "http://public.test/a.png", 6).unwrap_err(), "it has more than 6 bytes");
        let circle =
            "HTTP/1.1 302 Found\r\nlocation: http://public.test/\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let circle = agent(TestResolver(server(circle.to_owned()), PublicResolver::default()), TIME_MAX);
        assert!(get_by(&circle, "http://public.test/", 100).unwrap_err().contains("redirect"));
        assert!(get("ftp://public.test/", 100, TIME_MAX).is_err());
    }
}
