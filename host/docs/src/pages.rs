//! The pages as they are written, and the other files that they link: all of it is part of the program.

/// A page in Markdown.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Its name for readers: `cli`, or `adr/0001-abi-stable`.
    pub name: &'static str,
    pub text: &'static str,
    /// Its place in the sources: `docs/cli.md`.
    pub source: &'static str,
}

/// A file that pages show or link.
pub(crate) struct Attachment {
    /// Its place in the site.
    pub(crate) file: &'static str,
    /// Its place in the sources.
    pub(crate) source: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) content: &'static [u8],
}

/// The order of the pages, with their titles: a list of links below each heading.
pub(crate) const SUMMARY: &str = include_str!("../../../docs/SUMMARY.md");

macro_rules! pages {
    ($($name:literal),* $(,)?) => {
        &[
            Page { name: "readme", text: include_str!("../../../README.md"), source: "README.md" },
            $(Page {
                name: $name,
                text: include_str!(concat!("../../../docs/", $name, ".md")),
                source: concat!("docs/", $name, ".md"),
            }),*
        ]
    };
}

macro_rules! attachments {
    ($($file:literal: $source:literal, $media_type:literal);* $(;)?) => {
        &[$(Attachment {
            file: $file,
            source: $source,
            media_type: $media_type,
            content: include_bytes!(concat!("../../../", $source)),
        }),*]
    };
}

/// The README and every page in `docs`; a test keeps the list complete.
pub static PAGES: &[Page] = pages![
    "a-teams-server",
    "adapters",
    "anthropic",
    "architecture",
    "claude-code-on-a-mac",
    "cli",
    "clients",
    "configuration",
    "gemini",
    "living-with-it",
    "metal",
    "models",
    "my-fine-tune",
    "ollama",
    "openai",
    "performance",
    "publishing",
    "releasing",
    "renamed",
    "scaling",
    "security",
    "server",
    "writing-a-plugin",
    "adr/0001-abi-stable",
    "adr/0002-only-plain-data-crosses",
    "adr/0003-cpu-kernels-of-our-own",
    "adr/0004-http-over-our-own-accept-loop",
    "adr/0005-a-worker-process-for-each-model",
    "adr/0006-adapters-are-not-merged",
    "adr/0007-who-takes-a-checkpoint",
    "adr/0008-pulling-from-the-hub",
    "adr/0009-prompt-processes",
    "adr/0010-a-fence-around-children",
    "adr/0011-cache-groups",
    "adr/0012-formats-are-data",
    "adr/0013-layers-over-several-gpus",
    "adr/0014-memory-of-a-request",
    "adr/0015-the-sdk-in-crates-and-ranks",
    "adr/0016-a-seam-for-metals-driver",
    "adr/0017-rows-that-are-not-words",
    "adr/0018-items-in-a-prompt",
    "adr/0019-plugins-travel-as-signed-packages",
    "adr/0020-upstreams-behind-the-same-door",
    "adr/0021-keys-with-names-and-a-ledger-of-lines",
    "adr/0022-products-on-the-cpu",
];

/// Text files bear `.txt`, so that browsers show them.
pub(crate) static ATTACHMENTS: &[Attachment] = attachments![
    "page/chat-dark.png": "docs/page/chat-dark.png", "image/png";
    "page/overview-light.png": "docs/page/overview-light.png", "image/png";
    "page/requests-light.png": "docs/page/requests-light.png", "image/png";
    "pensieve.toml.txt": "examples/pensieve.toml", "text/plain; charset=utf-8";
    "scaling/pensieve.yaml.txt": "docs/scaling/pensieve.yaml", "text/plain; charset=utf-8";
    "scaling/vllm.yaml.txt": "docs/scaling/vllm.yaml", "text/plain; charset=utf-8";
];

impl Page {
    /// Its place in the site.
    pub(crate) fn file(&self) -> String {
        format!("{}.html", self.name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    #[test]
    fn every_page_is_in_the_program_and_in_the_summary() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut written = BTreeSet::from(["README.md".to_owned()]);
        for folder in ["docs", "docs/adr"] {
            let names = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".md"));
            written.extend(names.filter(|name| name != "SUMMARY.md").map(|name| format!("{folder}/{name}")));
        }
        let known: BTreeSet<String> = PAGES.iter().map(|page| page.source.to_owned()).collect();
        assert_eq!(known, written);
        let links: Vec<&str> = SUMMARY.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        for page in PAGES {
            let link = page.source.strip_prefix("docs/").map_or(format!("../{}", page.source), str::to_owned);
            assert_eq!(links.iter().filter(|known| **known == link).count(), 1, "SUMMARY.md and {link}");
        }
        assert_eq!(links.len(), PAGES.len(), "SUMMARY.md links what is no page");
    }
}
