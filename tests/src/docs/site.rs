//! The documentation as a site: in a folder, for a browser, and on a running server. Every link in it leads somewhere, and its
//! search finds what the pages say.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::write_script,
    cli::{Desk, files, interrupt},
    http::{client, server::Options},
};

/// The site in a folder, by the program.
fn site(desk: &Desk) -> BTreeMap<String, String> {
    let said = desk.run(&["docs", "--site", "site"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "site/index.html\n"), "{said:?}");
    let folder = desk.path("site");
    let read = |name: String| {
        let bytes = fs::read(folder.join(&name)).unwrap();
        (name, String::from_utf8_lossy(&bytes).into_owned())
    };
    files(&folder).into_iter().map(read).collect()
}

/// The values of an attribute.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let opening = format!(" {attribute}=\"");
    html.split(opening.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The file of the site that a link in another one leads to.
fn target(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        if part == ".." {
            assert!(parts.pop().is_some(), "{from}: {link} leads out of the site");
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[test]
fn every_link_of_the_site_leads_to_a_page_and_a_heading() {
    let desk = Desk::new();
    let site = site(&desk);
    let mut internal = 0;
    let mut reached = BTreeSet::from(["index.html".to_owned()]);
    for (name, html) in site.iter().filter(|(name, _)| name.ends_with(".html")) {
        let unique: BTreeSet<&str> = values(html, "id").into_iter().collect();
        assert_eq!(unique.len(), values(html, "id").len(), "{name} has an id twice");
        let links = values(html, "href").into_iter().chain(values(html, "src"));
        for link in links.filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let file = if file.is_empty() { name.clone() } else { target(name, file) };
            let Some(text) = site.get(&file) else { panic!("{name}: {link} leads to no file") };
            let has = |anchor: &str| values(text, "id").contains(&anchor);
            assert!(anchor.is_none_or(has), "{name}: {link} leads to no heading");
            reached.insert(file);
            internal += 1;
        }
    }
    assert!(internal > 2000, "only {internal} links were found");
    for name in site.keys().filter(|name| !name.ends_with(".js")) {
        assert!(reached.contains(name), "no page links {name}");
    }
    for page in ["claude-code-on-a-mac", "my-fine-tune", "writing-a-plugin", "a-teams-server", "adr/0001-abi-stable"] {
        assert!(site.contains_key(&format!("{page}.html")), "{page}");
    }
    // What the pages have as code stays as it is written, and what looks like a tag is text.
    assert!(site["cli.html"].contains("<td><code>serve</code></td>"), "a table");
    assert!(site["writing-a-plugin.html"].contains("step: &amp;mut Step&lt;'_&gt;"), "code");
}

#[test]
fn the_search_finds_what_the_pages_say() {
    let desk = Desk::new();
    let site = site(&desk);
    let data = site["sections.js"].strip_prefix("globalThis.SECTIONS = ").and_then(|rest| rest.strip_suffix(";\n"));
    let sections: Vec<[String; 4]> = serde_json::from_str(data.unwrap()).unwrap();
    for [address, ..] in &sections {
        let (file, anchor) = address.split_once('#').unwrap();
        assert!(values(&site[file], "id").contains(&anchor), "{address}");
    }
    let has = |word: &str, file: &str| {
        sections.iter().any(|[address, _, _, text]| address.starts_with(file) && text.contains(word))
    };
    assert!(has("kv_budget", "living-with-it.html#") && has("rank-stabilised", "adapters.html#"));
    // The script itself, where there is a program that runs it.
    let line = "const {find} = require('./site/docs.js'); require('./site/sections.js'); \
                const of = (query) => find(SECTIONS, query).map((found) => [found.address, found.heading, found.text]); \
                console.log(JSON.stringify(['exit codes', 'KV_BUDGET', 'publisher thief', 'xyzzy frobnicate'].map(of)))";
    let ran = Command::new("node").args(["-e", line]).current_dir(desk.root.path()).output();
    let Ok(ran) = ran else {
        assert!(std::env::var_os("PENSIEVE_REQUIRE_CLIENTS").is_none(), "there is no node");
        return println!("skipped: there is no node to run the search with");
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let found: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(found[0][0][0], "cli.html#exit-codes", "the heading comes first: {}", found[0]);
    assert!(found[1].as_array().unwrap().iter().all(|one| one.to_string().to_lowercase().contains("kv_budget")));
    assert_eq!(found[2][0][0], "publishing.html#keep-an-index", "{}", found[2]);
    assert_eq!(found[3].as_array().unwrap().len(), 0);
}

/// A browser that writes down the address and is gone.
fn browser(desk: &Desk) -> String {
    let program = desk.path("browser");
    write_script(&program, "printf '%s' \"$1\" > opened.new && mv opened.new opened");
    program.display().to_string()
}

fn wait_for(path: &Path) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Ok(text) = fs::read_to_string(path) {
            return text;
        }
        assert!(Instant::now() < deadline, "no browser was opened");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn docs_open_in_a_browser_without_a_network() {
    let desk = Desk::new();
    let mut command = desk.command(&["docs", "--open", "publishing"]);
    let mut child = command.env("BROWSER", browser(&desk)).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    let opened = wait_for(&desk.path("opened"));
    assert_eq!(said.trim_end(), opened);
    let (address, page) = opened.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
    assert_eq!(page, "publishing.html");
    let address = address.parse().unwrap();
    let reply = client::get(address, "/publishing.html");
    assert!(reply.text().contains("<h1 id=\"publishing-a-plugin\">"), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(reply.header("content-security-policy").unwrap().contains("script-src 'self'"));
    assert!(client::get(address, "/").text().contains("by task"));
    for path in ["/../../etc/passwd", "/%2e%2e/Cargo.toml", "/nothing.html"] {
        assert_eq!(client::get(address, path).status(), 404, "{path}");
    }
    assert_eq!(client::request(address, "POST", "/index.html", &[], b"").status(), 405);
    interrupt(child.id());
    child.wait().unwrap();

    // Elsewhere than on a terminal nothing is opened, and without a browser the address is all there is.
    fs::remove_file(desk.path("opened")).unwrap();
    let mut command = desk.command(&["docs"]);
    let listed = crate::cli::said(command.env("BROWSER", browser(&desk)).output().unwrap());
    assert!(listed.stdout.contains("my-fine-tune         My fine-tune\n"), "{listed:?}");
    assert!(!desk.path("opened").exists());
    let unknown = desk.run(&["docs", "--open", "nothing"]);
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
}

#[test]
fn a_running_server_has_the_pages_of_its_version() {
    let server = Options { config: "[server]\nkey = \"a-key-of-this-test\"\n".into(), ..Options::default() }.start();
    let first = client::get(server.address, "/docs");
    assert_eq!((first.status(), first.header("location")), (302, Some("/docs/index.html")));
    assert_eq!(client::get(server.address, "/docs/").status(), 302);
    let index = client::get(server.address, "/docs/index.html");
    assert_eq!(index.status(), 200);
    let policy = index.header("content-security-policy").unwrap();
    assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let text = index.text();
    let links: Vec<&str> = values(&text, "href").into_iter().filter(|link| !link.starts_with('#')).collect();
    assert!(links.len() > 60, "{links:?}");
    for link in links.iter().chain(&["docs.js", "sections.js", "page/chat-dark.png"]) {
        let reply = client::get(server.address, &format!("/docs/{link}"));
        assert_eq!(reply.status(), 200, "{link}");
    }
    let tag = index.header("etag").unwrap();
    let again = client::request(server.address, "GET", "/docs/cli.html", &[("if-none-match", tag)], b"");
    assert_eq!((again.status(), again.body.len()), (304, 0));
    for path in ["/docs/nothing.html", "/docs/..%2FCargo.toml"] {
        assert_eq!(client::get(server.address, path).status(), 404, "{path}");
    }
}
