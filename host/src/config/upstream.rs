//! Models in `[[models]]` that other servers compute: `upstream = ["http://HOST:8000/v1"]`. Keys and certificates are read when the
//! configuration is used, not when it is parsed, so that a copy of the file can be checked on any machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{file, reader, reader::Section};
use pensieve_protocol::outside::Outside;
use pensieve_server::fleet::{Identity, Secret, Upstream, UpstreamKind};

/// Limit of a file with a key or certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;
const KEYS: [&str; 12] = [
    "upstream_model",
    "upstream_key_env",
    "upstream_key_file",
    "upstream_kind",
    "upstream_ca",
    "upstream_certificate",
    "upstream_certificate_key",
    "upstream_streams_max",
    "upstream_requests_per_minute",
    "upstream_tokens_per_minute",
    "upstream_timeout",
    "upstream_images",
];

/// The servers of a model, with the places of the secrets that they want.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamSource {
    pub upstream: Upstream,
    key_env: Option<String>,
    key_file: Option<PathBuf>,
    authorities: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl UpstreamSource {
    /// The files that [`Self::resolve`] reads.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let (certificate, key) = self.certificate.as_ref().map(|(certificate, key)| (certificate, key)).unzip();
        [self.key_file.as_ref(), self.authorities.as_ref(), certificate, key]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// Reads keys and certificates. The error is a message for the user, without the secrets.
    pub fn resolve(&self) -> Result<Upstream, String> {
        let mut upstream = self.upstream.clone();
        upstream.key = match (&self.key_env, &self.key_file) {
            (Some(name), _) => {
                let value = env::var(name).map_err(|_| format!("upstream_key_env: the variable {name} is not set"))?;
                Some(key(&value).map_err(|what| format!("upstream_key_env: the variable {name} {what}"))?)
            }
            (None, Some(path)) => {
                let text = String::from_utf8(read(path, "upstream_key_file")?).unwrap_or_default();
                let shown = Outside::path(path).to_string();
                Some(key(&text).map_err(|what| format!("upstream_key_file: '{shown}' {what}"))?)
            }
            (None, None) => None,
        };
        upstream.authorities = self.authorities.as_ref().map(|path| read(path, "upstream_ca")).transpose()?;
        if let Some((certificate, key)) = &self.certificate {
            let certificate = read(certificate, "upstream_certificate")?;
            let key = Secret::new(read(key, "upstream_certificate_key")?);
            upstream.identity = Some(Identity { certificate, key });
        }
        Ok(upstream)
    }
}

/// A key as a header may have it.
fn key(text: &str) -> Result<Secret, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("is empty".into());
    }
    if !super::server::is_key(text) {
        return Err("holds what no header may have".into());
    }
    Ok(Secret::new(text))
}

fn read(path: &Path, name: &str) -> Result<Vec<u8>, String> {
    let shown = Outside::path(path).to_string();
    let failed = |error: std::io::Error| format!("{name}: '{shown}': {error}");
    if fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(format!("{name}: '{shown}' has more than {FILE_BYTES_MAX} bytes"));
    }
    fs::read(path).map_err(failed)
}

/// The servers of a model; `None` if it has a source of its own.
pub(super) fn of(section: &Section<'_, '_>, id: &str, folder: &Path) -> Option<UpstreamSource> {
    let mut urls = Vec::new();
    section.text_or_texts("upstream", &mut urls);
    let (mut model, mut kind) = (String::new(), None);
    section.text("upstream_model", &mut model);
    section.some_text("upstream_kind", &mut kind);
    let (mut key_env, mut key_file, mut authorities) = (None, None, None);
    section.some_text("upstream_key_env", &mut key_env);
    section.some_text("upstream_key_file", &mut key_file);
    section.some_text("upstream_ca", &mut authorities);
    let (mut certificate, mut certificate_key) = (None, None);
    section.some_text("upstream_certificate", &mut certificate);
    section.some_text("upstream_certificate_key", &mut certificate_key);
    let (mut streams_max, mut silence, mut images) = (256, Duration::from_secs(300), true);
    section.integer("upstream_streams_max", 1..=100_000, &mut streams_max);
    let (mut requests, mut tokens) = (0, 0);
    section.integer("upstream_requests_per_minute", 0..=1_000_000, &mut requests);
    section.integer("upstream_tokens_per_minute", 0..=1_000_000_000, &mut tokens);
    section.duration("upstream_timeout", Duration::from_secs(1)..=Duration::from_secs(3600), &mut silence);
    section.flag("upstream_images", &mut images);
    if urls.is_empty() {
        if let Some(key) = KEYS.into_iter().find(|key| section.has(key)) {
            section.note(key, format!("'{id}' in [[models]] has '{key}', but no 'upstream'"), "name its servers");
        }
        return None;
    }
    let mut context = 0;
    section.integer("context", 1..=1 << 30, &mut context);
    let named = if model.is_empty() { id.to_owned() } else { model };
    let mut upstream = match Upstream::new(&urls, named) {
        Ok(upstream) => upstream,
        Err(what) => {
            section.note("upstream", format!("'upstream' in [[models]] of '{id}' is wrong"), what);
            return None;
        }
    };
    upstream.kind = kind.and_then(|word| {
        let kind = UpstreamKind::named(&word);
        if kind.is_none() {
            let known: Vec<&str> = UpstreamKind::ALL.iter().map(|(name, _)| *name).collect();
            let what = format!("'upstream_kind' in [[models]] of '{id}' is \"{}\"", Outside::new(word.as_str()));
            section.note("upstream_kind", what, format!("it is one of {}, or left out", known.join(", ")));
        }
        kind
    });
    (upstream.streams_max, upstream.silence) = (streams_max, silence);
    upstream.requests_per_minute = Some(requests).filter(|requests| *requests > 0);
    upstream.tokens_per_minute = Some(tokens).filter(|tokens| *tokens > 0);
    upstream.context = Some(context).filter(|context| *context > 0);
    upstream.images = section.has("upstream_images").then_some(images);
    if certificate.is_some() != certificate_key.is_some() {
        let what = format!("'{id}' in [[models]] has one of upstream_certificate and upstream_certificate_key");
        section.note("upstream", what, "name both, in PEM");
    }
    let path = |text: String| reader::path(folder, file::user_home().as_deref(), &text);
    Some(UpstreamSource {
        upstream,
        key_env,
        key_file: key_file.map(path),
        authorities: authorities.map(path),
        certificate: certificate.zip(certificate_key).map(|(certificate, key)| (path(certificate), path(key))),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::{Config, Source};

    fn source(text: &str, folder: &Path) -> UpstreamSource {
        let config = Config::read(text, &folder.join("pensieve.toml"), Path::new("/home")).unwrap();
        match &config.models[0].source {
            Source::Upstream(source) => (**source).clone(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_key_is_read_from_its_file_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), "sk-hidden\n").unwrap();
        let text = "[[models]]\nid = \"big\"\nupstream = \"https://host/v1\"\nupstream_key_file = \"key\"";
        let upstream = source(text, folder.path()).resolve().unwrap();
        assert_eq!(upstream.key, Some(Secret::new("sk-hidden")));
        assert_eq!(upstream.model, "big", "the id, if no name is given");
        for (content, what) in [("", "is empty"), ("a\nb", "no header may have")] {
            fs::write(folder.path().join("key"), content).unwrap();
            let error = source(text, folder.path()).resolve().unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        fs::remove_file(folder.path().join("key")).unwrap();
        assert!(source(text, folder.path()).resolve().unwrap_err().contains("upstream_key_file: "));
        let env =
            "[[models]]\nid = \"m\"\nupstream = [\"https://host/v1\"]\nupstream_key_env = \"PENSIEVE_NO_SUCH_KEY\"";
        let error = source(env, folder.path()).resolve().unwrap_err();
        assert_eq!(error, "upstream_key_env: the variable PENSIEVE_NO_SUCH_KEY is not set");
    }

    #[test]
    fn limits_are_none_unless_they_are_named() {
        let limits = |rest: &str| {
            let text = format!("[[models]]\nid = \"big\"\nupstream = \"http://h/v1\"\n{rest}");
            let Upstream { streams_max, requests_per_minute, tokens_per_minute, .. } =
                source(&text, Path::new("/x")).upstream;
            (streams_max, requests_per_minute, tokens_per_minute)
        };
        assert_eq!(limits(""), (256, None, None));
        let all = "upstream_streams_max = 2\nupstream_requests_per_minute = 60\nupstream_tokens_per_minute = 90000";
        assert_eq!(limits(all), (2, Some(60), Some(90_000)));
    }

    #[test]
    fn mistakes_are_told_with_their_lines() {
        let check = |rest: &str, what: &str| {
            let text = format!("[[models]]\nid = \"big\"\n{rest}");
            let error = Config::read(&text, Path::new("/x/pensieve.toml"), Path::new("/home")).unwrap_err();
            assert!(error.lines.iter().any(|line| line.contains(what)), "{:#?}", error.lines);
        };
        check("upstream = \"host:8000\"", "has no scheme");
        check("upstream = \"http://h/v1\"\nupstream_kind = \"tgi\"", "it is one of vllm, sglang, llama.cpp");
        check("upstream = \"http://h/v1\"\nsource = \"starter\"", "has both 'source' and 'upstream'");
        check("source = \"starter\"\nupstream_model = \"m\"", "has 'upstream_model', but no 'upstream'");
        check("source = \"starter\"\nupstream_requests_per_minute = 9", "has 'upstream_requests_per_minute', but no");
        check("upstream = \"http://h/v1\"\nthreads = 3", "threads");
        check("upstream = \"http://h/v1\"\nupstream_certificate = \"c\"", "one of upstream_certificate");
    }
}
