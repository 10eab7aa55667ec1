//! `pensieve docs`: the pages of this version's documentation, which are part of the program.

use clap::Args;

use super::{
    error::{CliError, CliResult, Exit},
    terminal::print,
};

/// All pages in `docs`; a test keeps the list complete.
const PAGES: &[(&str, &str)] = &[
    ("a-teams-server", include_str!("../../../docs/a-teams-server.md")),
    ("adapters", include_str!("../../../docs/adapters.md")),
    ("anthropic", include_str!("../../../docs/anthropic.md")),
    ("architecture", include_str!("../../../docs/architecture.md")),
    ("claude-code-on-a-mac", include_str!("../../../docs/claude-code-on-a-mac.md")),
    ("cli", include_str!("../../../docs/cli.md")),
    ("clients", include_str!("../../../docs/clients.md")),
    ("configuration", include_str!("../../../docs/configuration.md")),
    ("gemini", include_str!("../../../docs/gemini.md")),
    ("living-with-it", include_str!("../../../docs/living-with-it.md")),
    ("metal", include_str!("../../../docs/metal.md")),
    ("models", include_str!("../../../docs/models.md")),
    ("ollama", include_str!("../../../docs/ollama.md")),
    ("openai", include_str!("../../../docs/openai.md")),
    ("performance", include_str!("../../../docs/performance.md")),
    ("publishing", include_str!("../../../docs/publishing.md")),
    ("releasing", include_str!("../../../docs/releasing.md")),
    ("renamed", include_str!("../../../docs/renamed.md")),
    ("scaling", include_str!("../../../docs/scaling.md")),
    ("security", include_str!("../../../docs/security.md")),
    ("server", include_str!("../../../docs/server.md")),
    ("writing-a-plugin", include_str!("../../../docs/writing-a-plugin.md")),
];

/// Show the documentation of this version, without a network: the list of its pages, a page, or where words are.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve docs
  pensieve docs configuration | less
  pensieve docs --search kv_budget")]
pub(super) struct Docs {
    /// The page to print.
    #[arg(value_name = "PAGE", conflicts_with = "words")]
    page: Option<String>,
    /// List the lines that have all of these words.
    #[arg(long = "search", value_name = "WORD", num_args = 1..)]
    words: Vec<String>,
}

impl Docs {
    pub(super) fn run(self) -> CliResult {
        match &self.page {
            Some(page) => print(find(page)?),
            None if self.words.is_empty() => print(&list()),
            None => {
                let found = search(&self.words);
                if found.is_empty() {
                    return Err(CliError::new(Exit::Absent, "no line of the documentation has these words"));
                }
                print(&found)
            }
        }
    }
}

fn find(page: &str) -> Result<&'static str, CliError> {
    let name = page.strip_prefix("docs/").unwrap_or(page);
    let name = name.strip_suffix(".md").unwrap_or(name);
    PAGES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text).ok_or_else(|| {
        let known: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
        CliError::new(Exit::Absent, format!("there is no page '{page}'; there are {}", known.join(", ")))
    })
}

fn list() -> String {
    PAGES.iter().map(|(name, text)| format!("{name:<20} {}\n", title(text))).collect()
}

fn title(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
}

fn search(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let mut found = String::new();
    for (name, text) in PAGES {
        for (number, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            if words.iter().all(|word| lower.contains(word)) {
                found.push_str(&format!("{name}:{}: {}\n", number + 1, line.trim()));
            }
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs};

    #[test]
    fn every_page_is_in_the_program_and_in_the_summary() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let pages: BTreeSet<String> = names
            .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
            .filter(|name| name != "SUMMARY")
            .collect();
        let known: BTreeSet<String> = PAGES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(known, pages);
        let summary = fs::read_to_string(format!("{folder}/SUMMARY.md")).unwrap();
        let links: Vec<&str> = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        for page in &pages {
            assert_eq!(links.iter().filter(|link| **link == format!("{page}.md")).count(), 1, "SUMMARY.md and {page}");
        }
        for link in links {
            assert!(fs::exists(format!("{folder}/{link}")).unwrap(), "SUMMARY.md links {link}");
        }
    }

    #[test]
    fn a_page_is_found_by_its_name_or_its_file_and_words_by_their_line() {
        assert_eq!(find("cli").unwrap(), find("docs/cli.md").unwrap());
        assert!(find("nothing").unwrap_err().lines[0].contains("there are a-teams-server, "));
        assert!(list().lines().all(|line| line.len() > 20), "{}", list());
        let found = search(&["KV_BUDGET".into()]);
        assert!(found.lines().all(|line| line.contains("kv_budget")) && found.contains("living-with-it:"), "{found}");
    }
}
