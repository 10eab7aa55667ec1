//! Numbers in pages that follow from the code.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::root;

/// The pages name some laws of models, and then how many more there are.
#[test]
fn pages_say_how_many_laws_there_are() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let laws = read("plugin-api/laws/src/lib.rs").matches("\n    Law {").count();
    for (page, named) in [("README.md", 4), ("docs/writing-a-plugin.md", 3)] {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        let more = format!("and {} more", laws - named);
        assert!(text.contains(&more), "{page} should name {named} laws '{more}': there are {laws}");
    }
}

/// Pages for readers: those in the root, in `docs`, and beside the examples and the tests.
fn pages() -> Vec<PathBuf> {
    let (mut pages, mut folders) = (Vec::new(), vec![root().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_ours = !name.starts_with('.') && !["target", "node_modules", "shared"].contains(&name.as_str());
            if path.is_dir() && is_ours {
                folders.push(path);
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The name by which a heading is linked, as GitHub and `pensieve docs` make it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || "-_ ".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Links outside of code, each with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut links, mut is_code) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.extend(targets.map(|target| (number + 1, target.to_owned())));
    }
    links
}

#[test]
fn links_in_pages_lead_to_files_and_headings_that_exist() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (number, link) in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, heading) = link.split_once('#').map_or((&*link, None), |(file, heading)| (file, Some(heading)));
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap_or(Path::new("")).join(file) };
            let has = |heading: &str| {
                let text = fs::read_to_string(&to).unwrap_or_default();
                text.lines().any(|line| line.starts_with('#') && anchor(line) == heading)
            };
            if !to.exists()
                || heading.is_some_and(|heading| to.extension().is_some_and(|kind| kind == "md") && !has(heading))
            {
                wrong.push(format!("{}:{number}: {link}", page.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(checked > 100, "only {checked} links were found");
    assert!(wrong.is_empty(), "these links lead nowhere:\n{}", wrong.join("\n"));
}
