//! TLS to upstreams: authorities of the system and of the configuration, names, and certificates on both sides.

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use super::{ask, fake::*};
use crate::http::server::{Options, PATIENCE};

const EXTENSIONS: &str = "[req]\ndistinguished_name = name\nprompt = no\n[name]\nCN = test\n\
    [authority]\nbasicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign\n\
    [leaf]\nbasicConstraints = CA:FALSE\nsubjectAltName = DNS:localhost\nextendedKeyUsage = serverAuth, clientAuth\n";

/// An authority, and a certificate by it for `localhost`, which servers and clients may show.
struct Authority {
    folder: TempDir,
}

impl Authority {
    /// `None` where there is no `openssl`.
    fn new() -> Option<Self> {
        let own = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(own.path("openssl.cnf"), EXTENSIONS).unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf";
        let steps = [
            format!("req -x509 {key} -subj /CN=authority -days 2 -extensions authority -keyout ca.key -out ca.pem"),
            format!("req -new {key} -subj /CN=leaf -keyout leaf.key -out leaf.csr"),
            "x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile openssl.cnf \
             -extensions leaf -out leaf.pem"
                .to_owned(),
        ];
        for step in steps {
            let made = Command::new("openssl").args(step.split_whitespace()).current_dir(own.folder.path()).output();
            match made {
                Ok(made) => assert!(made.status.success(), "{step}: {}", String::from_utf8_lossy(&made.stderr)),
                Err(error) => {
                    eprintln!("skipped, as openssl cannot be run: {error}");
                    return None;
                }
            }
        }
        Some(own)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A server with its certificate, which may want to see the client's.
    fn server(&self, asks_for_certificate: bool) -> ServerConfig {
        let provider = Arc::new(default_provider());
        let config =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let config = if asks_for_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(certificate(&self.path("ca.pem"))).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            config.with_client_cert_verifier(verifier)
        } else {
            config.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(self.path("leaf.key")).unwrap();
        config.with_single_cert(vec![certificate(&self.path("leaf.pem"))], key).unwrap()
    }
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// The status that a client gets from a model at this URL.
fn status(url: &str, settings: &str, variables: &[(&str, &Path)]) -> u16 {
    let config = format!("[[models]]\nid = \"big\"\nupstream = \"{url}\"\n{settings}\n");
    let variables = variables.iter().map(|(name, path)| ((*name).to_owned(), path.display().to_string())).collect();
    let server = Options { config, variables, ..Options::default() }.start();
    ask(&server, "chat", false).status()
}

#[test]
fn a_server_is_trusted_if_an_authority_of_the_system_or_of_the_configuration_knows_it() {
    let Some(authority) = Authority::new() else { return };
    let fake = Fake::secure(hello(), authority.server(false));
    let (url, ca) = (fake.secure_url("localhost"), authority.path("ca.pem"));
    let of_system: [(&str, &Path); 1] = [("SSL_CERT_FILE", &ca)];
    assert_eq!(status(&url, "", &[]), 502, "nobody knows it");
    assert_eq!(status(&url, "", &of_system), 200, "the system does");
    let named = format!("upstream_ca = {ca:?}");
    assert_eq!(status(&url, &named, &[]), 200);
    assert_eq!(status(&fake.secure_url("127.0.0.1"), &named, &[]), 502, "the certificate has another name");
    let Some(other) = Authority::new() else { return };
    let named = format!("upstream_ca = {:?}", other.path("ca.pem"));
    assert_eq!(status(&url, &named, &of_system), 502, "the configuration's are the only ones");
}

#[test]
fn a_server_that_wants_a_certificate_gets_the_configured_one() {
    let Some(authority) = Authority::new() else { return };
    let fake = Fake::secure(hello(), authority.server(true));
    let trust = format!("upstream_ca = {:?}", authority.path("ca.pem"));
    let own = format!(
        "{trust}\nupstream_certificate = {:?}\nupstream_certificate_key = {:?}",
        authority.path("leaf.pem"),
        authority.path("leaf.key")
    );
    let url = fake.secure_url("localhost");
    assert_eq!(status(&url, &own, &[]), 200);
    assert_eq!(status(&url, &trust, &[]), 502);
}

#[test]
fn kept_connections_that_the_server_has_given_up_cost_no_answer() {
    let Some(authority) = Authority::new() else { return };
    let pieces: Vec<_> = [text("Hello")].into_iter().chain(end("stop")).collect();
    let fake = Fake::secure(Behaviour::Late(pieces.clone(), Duration::from_millis(500)), authority.server(false));
    let url = fake.secure_url("localhost");
    let config =
        format!("[[models]]\nid = \"big\"\nupstream = \"{url}\"\nupstream_ca = {:?}\n", authority.path("ca.pem"));
    let server = Options::configured(&config).start();
    let answers = || {
        let reply = ask(&server, "chat", false);
        assert!(reply.status() == 200 && reply.text().contains("Hello"), "{reply:?}");
    };
    // Each takes a connection of its own, and leaves it for others.
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(answers))));
    let before = fake.asked_count();
    fake.set(Behaviour::Once(pieces));
    let deadline = Instant::now() + PATIENCE;
    let mut asked = 0;
    while fake.asked_count() - before < asked + 2 {
        answers();
        asked += 1;
        assert!(Instant::now() < deadline, "none of {asked} requests met a connection that was given up");
    }
}
