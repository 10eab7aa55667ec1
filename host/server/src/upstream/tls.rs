//! TLS to upstreams: which authorities are trusted, and the certificate that this server shows.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::fleet::{Secret, Upstream};

/// The error is a message for the user.
pub(super) fn config(upstream: &Upstream) -> Result<ClientConfig, String> {
    let roots = match &upstream.authorities {
        None => usual_roots(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, "upstream_ca")? {
                roots.add(certificate).map_err(|error| format!("upstream_ca: {error}"))?;
            }
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    match &upstream.identity {
        None => Ok(config.with_no_client_auth()),
        Some(identity) => {
            let key = private_key(&identity.key)?;
            let chain = certificates(&identity.certificate, "upstream_certificate")?;
            config.with_client_auth_cert(chain, key).map_err(|error| format!("upstream_certificate: {error}"))
        }
    }
}

/// The authorities of the system, among which a company has its own; Mozilla's where there are none, as in a bare container.
fn usual_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!("a certificate of the system cannot be read: {error}");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn certificates(pem: &[u8], key: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(format!("{key} holds no certificate in PEM")),
        Err(error) => Err(format!("{key}: {error}")),
    }
}

fn private_key(pem: &Secret) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem.reveal()).map_err(|error| format!("upstream_certificate_key: {error}"))
}
