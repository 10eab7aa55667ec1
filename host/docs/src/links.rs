//! Where a link in a page leads in the site.

use crate::pages::{ATTACHMENTS, PAGES, Page};

/// The end of a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// An address, relative to the page if it is in the site.
    Address(String),
    /// A file or folder of the sources that is not in the site.
    Sources(String),
}

pub(crate) fn destination(page: &Page, link: &str) -> Destination {
    if link.starts_with('#') || link.contains("://") || link.starts_with("mailto:") {
        return Destination::Address(link.to_owned());
    }
    let (path, anchor) = link.find('#').map_or((link, ""), |at| link.split_at(at));
    let folder = page.source.rsplit_once('/').map_or("", |(folder, _)| folder);
    let source = joined(folder, path);
    match file_of(&source) {
        Some(file) => Destination::Address(format!("{}{file}{anchor}", to_root(&page.file()))),
        None => Destination::Sources(source),
    }
}

/// The way from a file of the site to the site's root: `../` for each folder that it lies in.
pub(crate) fn to_root(file: &str) -> String {
    "../".repeat(file.matches('/').count())
}

/// The file of the site for one of the sources.
pub(crate) fn file_of(source: &str) -> Option<String> {
    let page = PAGES.iter().find(|page| page.source == source).map(Page::file);
    let attachment = || ATTACHMENTS.iter().find(|attachment| attachment.source == source);
    page.or_else(|| Some(attachment()?.file.to_owned()))
}

/// A relative path from a folder, both in the sources.
pub(crate) fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_of_the_site_or_name_the_sources() {
        let page = |source| Page { name: "x", text: "", source };
        let adr = Page { name: "adr/0001-abi-stable", text: "", source: "docs/adr/0001-abi-stable.md" };
        let address = |text: &str| Destination::Address(text.to_owned());
        for (page, link, expected) in [
            (&page("docs/x.md"), "cli.md#serving", address("cli.html#serving")),
            (&page("docs/x.md"), "../README.md#install", address("readme.html#install")),
            (&page("docs/x.md"), "../examples/pensieve.toml", address("pensieve.toml.txt")),
            (&page("docs/x.md"), "#below", address("#below")),
            (&page("docs/x.md"), "https://example.org/a.md", address("https://example.org/a.md")),
            (
                &page("docs/x.md"),
                "adr/0002-only-plain-data-crosses.md",
                address("adr/0002-only-plain-data-crosses.html"),
            ),
            (&adr, "../security.md", address("../security.html")),
            (&adr, "0002-only-plain-data-crosses.md", address("../adr/0002-only-plain-data-crosses.html")),
            (&page("README.md"), "docs/cli.md", address("cli.html")),
            (&page("README.md"), "plugins/llama/src/lib.rs", Destination::Sources("plugins/llama/src/lib.rs".into())),
            (&page("docs/x.md"), "../.ci/containers", Destination::Sources(".ci/containers".into())),
        ] {
            assert_eq!(destination(page, link), expected, "{link}");
        }
    }
}
