//! The files of the site. They are made once, when somebody first asks for one.

use std::{borrow::Cow, fmt::Write as _, sync::OnceLock};

use serde_json::json;

use crate::{
    links::{file_of, joined, to_root},
    pages::{ATTACHMENTS, PAGES, SUMMARY},
    render::{Rendered, escaped, render},
};

/// The page to open.
pub const START: &str = "index.html";
const HTML: &str = "text/html; charset=utf-8";
/// The most letters of a page's beginning beside its link.
const TEASER_CHARS_MAX: usize = 160;

/// A file of the site.
#[derive(Debug)]
pub struct File {
    /// Its path, with slashes between folders.
    pub name: String,
    pub media_type: &'static str,
    pub content: Cow<'static, [u8]>,
}

/// A heading of the summary with its links.
struct Group {
    title: &'static str,
    links: Vec<Link>,
}

struct Link {
    title: &'static str,
    file: String,
}

/// All files of the site.
pub fn site() -> &'static [File] {
    static SITE: OnceLock<Vec<File>> = OnceLock::new();
    SITE.get_or_init(make)
}

/// A file by its path.
pub fn find(name: &str) -> Option<&'static File> {
    site().iter().find(|file| file.name == name)
}

fn make() -> Vec<File> {
    let groups = groups();
    let pages: Vec<(String, Rendered)> = PAGES.iter().map(|page| (page.file(), render(page))).collect();
    let text = |name: &str, media_type, content: String| File {
        name: name.to_owned(),
        media_type,
        content: Cow::Owned(content.into_bytes()),
    };
    let mut files = vec![
        text(START, HTML, framed(START, "Documentation", &start(&groups, &pages), &groups)),
        text("docs.css", "text/css; charset=utf-8", include_str!("../site/docs.css").to_owned()),
        text("docs.js", "text/javascript; charset=utf-8", include_str!("../site/docs.js").to_owned()),
        text("sections.js", "text/javascript; charset=utf-8", sections(&pages)),
    ];
    files.extend(pages.iter().map(|(file, page)| text(file, HTML, framed(file, &page.title, &page.html, &groups))));
    files.extend(ATTACHMENTS.iter().map(|attachment| File {
        name: attachment.file.to_owned(),
        media_type: attachment.media_type,
        content: Cow::Borrowed(attachment.content),
    }));
    files
}

/// The groups of the summary: headings that have links.
fn groups() -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in SUMMARY.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            groups.push(Group { title, links: Vec::new() });
        }
        let link =
            line.strip_prefix("- [").and_then(|rest| rest.strip_suffix(')')).and_then(|rest| rest.split_once("]("));
        if let (Some((title, to)), Some(group)) = (link, groups.last_mut())
            && let Some(file) = file_of(&joined("docs", to))
        {
            group.links.push(Link { title, file });
        }
    }
    groups.retain(|group| !group.links.is_empty());
    groups
}

/// The content of the first page: every page with its beginning.
fn start(groups: &[Group], pages: &[(String, Rendered)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut html = format!("<h1>Pensieve {version}</h1>\n<p>The documentation of this version, by task.</p>\n");
    for group in groups {
        let _ = write!(html, "<h2>{}</h2>\n<ul class=\"pages\">\n", escaped(group.title));
        for Link { title, file } in &group.links {
            let page = pages.iter().find(|(other, _)| other == file).and_then(|(_, page)| page.sections.first());
            let begins = page.map(|section| teaser(&section.text)).unwrap_or_default();
            let _ =
                writeln!(html, "<li><a href=\"{file}\">{}</a> <span>{}</span></li>", escaped(title), escaped(&begins));
        }
        html.push_str("</ul>\n");
    }
    html
}

/// The first sentence, or as much of it as fits.
fn teaser(text: &str) -> String {
    let sentence = text.find(". ").map_or(text, |end| &text[..=end]);
    if sentence.chars().count() <= TEASER_CHARS_MAX {
        return sentence.to_owned();
    }
    let cut: String = sentence.chars().take(TEASER_CHARS_MAX).collect();
    format!("{}…", cut.rsplit_once(' ').map_or(&*cut, |(whole, _)| whole))
}

/// A page with head, navigation and search around its content.
fn framed(file: &str, title: &str, content: &str, groups: &[Group]) -> String {
    let (root, title, version) = (to_root(file), escaped(title), env!("CARGO_PKG_VERSION"));
    let mut navigation = String::new();
    for group in groups {
        let _ = write!(navigation, "<h2>{}</h2>\n<ul>\n", escaped(group.title));
        for Link { title, file: to } in &group.links {
            let current = if to == file { " aria-current=\"page\"" } else { "" };
            let _ = writeln!(navigation, "<li><a href=\"{root}{to}\"{current}>{}</a></li>", escaped(title));
        }
        navigation.push_str("</ul>\n");
    }
    format!(
        "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{title} · Pensieve</title>
<link rel=\"stylesheet\" href=\"{root}docs.css\">
<script src=\"{root}docs.js\" data-root=\"{root}\" defer></script>
</head>
<body>
<a class=\"skip\" href=\"#docs-content\">Skip to the content</a>
<header>
<a class=\"brand\" href=\"{root}{START}\">Pensieve {version}</a>
<input type=\"search\" id=\"docs-search\" placeholder=\"Search\" aria-label=\"Search the documentation\" autocomplete=\"off\" hidden>
</header>
<div class=\"columns\">
<nav aria-label=\"Pages\">
{navigation}</nav>
<main id=\"docs-content\" tabindex=\"-1\">
<div id=\"docs-found\" role=\"status\" hidden></div>
<article id=\"docs-page\">
{content}</article>
</main>
</div>
</body>
</html>
"
    )
}

/// What the search reads: for each section its address, its page's title, its heading, and its text.
fn sections(pages: &[(String, Rendered)]) -> String {
    let sections = pages.iter().flat_map(|(file, page)| {
        page.sections.iter().map(move |section| {
            json!([format!("{file}#{}", section.anchor), page.title, section.heading, section.text])
        })
    });
    format!("globalThis.SECTIONS = {};\n", json!(sections.collect::<Vec<_>>()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_inline_and_nothing_is_loaded_from_elsewhere() {
        for file in site().iter().filter(|file| file.name.ends_with(".html")) {
            let html = std::str::from_utf8(&file.content).unwrap();
            assert_eq!(html.matches("<script").count(), 1, "{}", file.name);
            for inline in ["<style", " style=\"", " onclick", " onload", "src=\"http", "javascript:"] {
                assert!(!html.contains(inline), "{}: {inline}", file.name);
            }
        }
        for name in ["docs.css", "docs.js"] {
            let text = std::str::from_utf8(&find(name).unwrap().content).unwrap();
            for outside in ["http://", "https://", "@import", "eval(", "innerHTML"] {
                assert!(!text.contains(outside), "{name}: {outside}");
            }
        }
    }

    #[test]
    fn the_site_is_small() {
        let bytes: usize = site().iter().map(|file| file.content.len()).sum();
        assert!(bytes < 3 << 20, "{bytes}");
        let own: usize = PAGES.iter().map(|page| page.text.len()).sum();
        let attached: usize = ATTACHMENTS.iter().map(|attachment| attachment.content.len()).sum();
        // What the program carries.
        assert!(own + attached < 1 << 20, "{own} and {attached}");
    }

    #[test]
    fn the_beginning_of_a_page_is_a_sentence() {
        assert_eq!(teaser("One. Two."), "One.");
        assert_eq!(teaser("One"), "One");
        let long = teaser(&"word ".repeat(100));
        assert!(long.ends_with("word…") && long.chars().count() <= TEASER_CHARS_MAX + 1, "{long}");
    }
}
