//! `pensieve docs`: the documentation of this version, which is part of the program: in a browser, or on the terminal.

mod browser;
mod site;

use std::{io::IsTerminal, net::TcpListener, path::PathBuf};

use clap::Args;

use super::{
    error::{CliError, CliResult, Exit},
    terminal::{print, say, tell},
};
use pensieve_docs::{PAGES, Page};
use pensieve_protocol::outside::Outside;

/// Show the documentation of this version, without a network.
///
/// On a terminal, it opens in a browser, and is served on this machine alone until Ctrl-C. Elsewhere, the pages are listed. A
/// running server has the same pages at /docs.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve docs
  pensieve docs configuration | less
  pensieve docs --search kv_budget
  pensieve docs --open publishing
  pensieve docs --site ./public")]
pub(super) struct Docs {
    /// The page to print, or with --open to show.
    #[arg(value_name = "PAGE")]
    page: Option<String>,
    /// Show it in a browser, wherever standard output goes.
    #[arg(long)]
    open: bool,
    /// List the pages, and open nothing.
    #[arg(long, conflicts_with_all = ["page", "open", "words", "folder"])]
    list: bool,
    /// List the lines that have all of these words.
    #[arg(long = "search", value_name = "WORD", num_args = 1.., conflicts_with_all = ["page", "open"])]
    words: Vec<String>,
    /// Write all pages to this folder, for a web server or a browser.
    #[arg(long = "site", value_name = "DIR", conflicts_with_all = ["page", "open", "words"])]
    folder: Option<PathBuf>,
}

impl Docs {
    pub(super) fn run(self) -> CliResult {
        if let Some(folder) = &self.folder {
            let start = site::write(folder)?;
            return say(&Outside::path(&start).to_string());
        }
        if !self.words.is_empty() {
            let found = search(&self.words);
            if found.is_empty() {
                return Err(CliError::new(Exit::Absent, "no line of the documentation has these words"));
            }
            return print(&found);
        }
        let page = self.page.as_deref().map(find).transpose()?;
        let is_asked = page.is_none() && !self.list && std::io::stdout().is_terminal();
        match page {
            _ if self.open => show(page),
            Some(page) => print(page.text),
            None if is_asked && browser::command().is_some() => show(None),
            None => {
                print(&list())?;
                if is_asked {
                    tell("'pensieve docs PAGE' prints one, 'pensieve docs --open' serves them to a browser");
                }
                Ok(())
            }
        }
    }
}

/// Serves the pages to a browser until the user ends it.
fn show(page: Option<&Page>) -> CliResult {
    let failed = |error| CliError::system("a port on this machine", &error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let file = page.map_or_else(|| pensieve_docs::START.to_owned(), |page| format!("{}.html", page.name));
    let url = format!("http://{address}/{file}");
    say(&url)?;
    tell("the pages are served on this machine until Ctrl-C");
    if !browser::open(&url) {
        tell("no browser could be opened: open the address in one, or set BROWSER");
    }
    site::serve(&listener)
}

fn find(page: &str) -> Result<&'static Page, CliError> {
    let name = page.strip_prefix("docs/").unwrap_or(page);
    let name = name.strip_suffix(".md").unwrap_or(name);
    let name = if name == "README" { "readme" } else { name };
    PAGES.iter().find(|known| known.name == name).ok_or_else(|| {
        let known: Vec<&str> = listed().map(|page| page.name).collect();
        let page = Outside::new(page).at_most(100);
        CliError::new(Exit::Absent, format!("there is no page '{page}'; there are {}", known.join(", ")))
    })
}

/// The pages for users: decisions have names that follow from their numbers, and are found by links.
fn listed() -> impl Iterator<Item = &'static Page> {
    PAGES.iter().filter(|page| !page.name.contains('/'))
}

fn list() -> String {
    listed().map(|page| format!("{:<20} {}\n", page.name, title(page.text))).collect()
}

fn title(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
}

fn search(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let mut found = String::new();
    for page in PAGES {
        for (number, line) in page.text.lines().enumerate() {
            let lower = line.to_lowercase();
            if words.iter().all(|word| lower.contains(word)) {
                found.push_str(&format!("{}:{}: {}\n", page.name, number + 1, line.trim()));
            }
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_by_its_name_or_its_file_and_words_by_their_line() {
        assert_eq!(find("cli").unwrap(), find("docs/cli.md").unwrap());
        assert_eq!(find("README.md").unwrap().name, "readme");
        assert!(find("adr/0001-abi-stable").unwrap().text.starts_with("# 1."));
        assert!(find("nothing").unwrap_err().lines[0].contains("there are readme, a-teams-server, "));
        assert!(list().lines().all(|line| line.len() > 20 && !line.starts_with("adr/")), "{}", list());
        let found = search(&["KV_BUDGET".into()]);
        assert!(found.lines().all(|line| line.contains("kv_budget")) && found.contains("living-with-it:"), "{found}");
    }
}
