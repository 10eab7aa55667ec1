//! A page in HTML, and its sections as text for the search.

use std::collections::HashMap;

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

use crate::{
    links::{Destination, destination},
    pages::Page,
};

/// A page in HTML, without what is around it.
pub(crate) struct Rendered {
    pub(crate) title: String,
    pub(crate) html: String,
    /// From the top down; the first one is what stands below the title.
    pub(crate) sections: Vec<Section>,
}

/// A heading and the text below it, up to the next one.
#[derive(Default)]
pub(crate) struct Section {
    /// The name by which it is linked.
    pub(crate) anchor: String,
    pub(crate) heading: String,
    pub(crate) text: String,
}

impl Section {
    fn part(&mut self, is_heading: bool) -> &mut String {
        if is_heading { &mut self.heading } else { &mut self.text }
    }
}

pub(crate) fn render(page: &Page) -> Rendered {
    let events: Vec<Event<'_>> = Parser::new_ext(page.text, Options::ENABLE_TABLES).collect();
    let mut sections = sections(&events);
    let mut anchors = sections.iter().map(|section| section.anchor.clone()).collect::<Vec<_>>().into_iter();
    let mut is_source = false;
    let rewritten = events.into_iter().map(|event| match event {
        Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
            let id = anchors.next().map(CowStr::from);
            Event::Start(Tag::Heading { level, id, classes, attrs })
        }
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => match destination(page, &dest_url) {
            Destination::Address(address) => Event::Start(Tag::Link { link_type, dest_url: address.into(), title, id }),
            Destination::Sources(path) => {
                is_source = true;
                let title = escaped(&format!("in the sources: {path}"));
                Event::InlineHtml(format!("<span class=\"source\" title=\"{title}\">").into())
            }
        },
        Event::End(TagEnd::Link) if std::mem::take(&mut is_source) => Event::InlineHtml("</span>".into()),
        Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
            let dest_url = match destination(page, &dest_url) {
                Destination::Address(address) => address.into(),
                Destination::Sources(_) => dest_url,
            };
            Event::Start(Tag::Image { link_type, dest_url, title, id })
        }
        // Pages are Markdown alone; what looks like a tag is text.
        Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
        event => event,
    });
    let mut text = String::new();
    html::push_html(&mut text, rewritten);
    let title = sections.first().map(|section| section.heading.clone()).unwrap_or_default();
    for section in &mut sections {
        section.text = section.text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    Rendered { title, html: text, sections }
}

fn sections(events: &[Event<'_>]) -> Vec<Section> {
    let (mut sections, mut names, mut is_heading) = (Vec::<Section>::new(), HashMap::<String, usize>::new(), false);
    for event in events {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                is_heading = true;
                sections.push(Section::default());
            }
            Event::End(TagEnd::Heading(_)) => {
                is_heading = false;
                if let Some(section) = sections.last_mut() {
                    let name = anchor(&section.heading);
                    let before = names.entry(name.clone()).or_default();
                    section.anchor = if *before == 0 { name } else { format!("{name}-{before}") };
                    *before += 1;
                }
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(section) = sections.last_mut() {
                    section.part(is_heading).push_str(text);
                }
            }
            Event::SoftBreak | Event::HardBreak | Event::End(_) => {
                // The end of a word, but for spans within a line.
                let is_span = matches!(event, Event::End(TagEnd::Link | TagEnd::Emphasis | TagEnd::Strong));
                if let Some(section) = sections.last_mut().filter(|_| !is_span) {
                    section.part(is_heading).push(' ');
                }
            }
            _ => {}
        }
    }
    sections
}

/// The name by which a heading is linked, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || "-_ ".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_html_whose_headings_can_be_linked() {
        let text = "# The `page`\n\nFirst *words* of\nit, see [that](cli.md#serving) and [code](../host/src/main.rs).\n\n\
                    ## Twice\n\n| a | b |\n|---|---|\n| 1 | <b>2</b> |\n\n## Twice\n\n    code <x>\n";
        let rendered = render(&Page { name: "x", text, source: "docs/x.md" });
        assert_eq!(rendered.title, "The page");
        let sections: Vec<(&str, &str)> =
            rendered.sections.iter().map(|section| (&*section.anchor, &*section.text)).collect();
        let first = "First words of it, see that and code.";
        assert_eq!(sections, [("the-page", first), ("twice", "a b 1 2"), ("twice-1", "code <x>")]);
        for expected in [
            "<h1 id=\"the-page\">The <code>page</code></h1>",
            "<a href=\"cli.html#serving\">that</a>",
            "<span class=\"source\" title=\"in the sources: host/src/main.rs\">code</span>",
            "<td>&lt;b&gt;2&lt;/b&gt;</td>",
            "code &lt;x&gt;",
            "<h2 id=\"twice-1\">",
        ] {
            assert!(rendered.html.contains(expected), "{expected} is not in {}", rendered.html);
        }
    }
}
