//! Every link of the book and of the READMEs leads somewhere: to a file, and in it to an anchor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};

use crate::run;

/// Pages that mdbook makes of the others, with the same links.
const MADE_OF_OTHERS: [&str; 2] = ["404.html", "print.html"];

/// Texts outside of the book whose links are checked too.
const TEXTS: [&str; 5] =
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "examples/kv/README.md"];

pub(super) fn check(book: &Path) -> Result<()> {
    let mut pages = BTreeMap::new();
    for file in super::files(book, "html")? {
        let text = fs::read_to_string(&file)?;
        pages.insert(file, text);
    }
    let anchors: BTreeMap<_, _> =
        pages.iter().map(|(file, text)| (file.clone(), values(text, &["id", "name"]))).collect();
    let mut broken = Vec::new();
    let mut count = 0;
    for (file, text) in &pages {
        if MADE_OF_OTHERS.iter().any(|name| file.ends_with(name)) {
            continue;
        }
        for link in values(text, &["href", "src"]) {
            count += 1;
            if let Some(why) = problem(file, &link, &anchors) {
                broken.push(format!("{}: {link}: {why}", shown(file)));
            }
        }
    }
    for name in TEXTS {
        let file = run::root().join(name);
        for link in links_of_markdown(&fs::read_to_string(&file)?) {
            count += 1;
            if let Some(why) = problem(&file, &in_html(&link, book), &anchors) {
                broken.push(format!("{name}: {link}: {why}"));
            }
        }
    }
    if !broken.is_empty() {
        bail!("{} links lead nowhere:\n  {}", broken.len(), broken.join("\n  "));
    }
    println!("  {count} links lead somewhere");
    Ok(())
}

/// Why a link in this file leads nowhere. What is elsewhere on the network is not asked for.
fn problem(
    file: &Path,
    link: &str,
    anchors: &BTreeMap<PathBuf, BTreeSet<String>>,
) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => file.to_owned(),
        _ => normal(&file.parent()?.join(path)),
    };
    if !target.exists() {
        return Some("there is no such file");
    }
    // Anchors of other files, such as texts of the repository, are not known.
    let known = anchors.get(&target)?;
    let is_there = anchor.is_empty() || known.contains(anchor);
    (!is_there).then_some("the page has no such anchor")
}

/// A link to a page of the book as Markdown, as one to the page that was built of it, whose anchors are known.
fn in_html(link: &str, book: &Path) -> String {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let page = path.split_once("book/src/").and_then(|(_, page)| page.strip_suffix(".md"));
    match page {
        Some(page) if page != "SUMMARY" => {
            format!("{}#{anchor}", book.join(page).with_extension("html").display())
        }
        _ => link.to_owned(),
    }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The values of these attributes of HTML, each once.
fn values(html: &str, attributes: &[&str]) -> BTreeSet<String> {
    let mut values = BTreeSet::new();
    for attribute in attributes {
        let begin = format!(" {attribute}=\"");
        for part in html.split(&begin).skip(1) {
            let value = part.split('"').next().unwrap_or_default();
            values.insert(value.replace("&amp;", "&").replace("%20", " "));
        }
    }
    values
}

/// What links of Markdown lead to: what is between `](` and `)`, outside of code.
fn links_of_markdown(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut links = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let ends = line.split("](").skip(1).filter_map(|part| part.split_once(')'));
        links.extend(ends.map(|(link, _)| link.to_owned()));
    }
    links
}

fn shown(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_a_file_and_to_an_anchor_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one.html", "two.html"].map(|name| folder.path().join(name));
        fs::write(&one, "<h1 id=\"top\">").unwrap();
        fs::write(&two, "<h1 id=\"what\">").unwrap();
        let anchors_of = |file: &Path| values(&fs::read_to_string(file).unwrap(), &["id"]);
        let anchors = [&one, &two].map(|file| (file.clone(), anchors_of(file))).into();
        for right in ["two.html", "two.html#what", "#top", "https://example.org/#x", "./one.html"] {
            assert_eq!(problem(&one, right, &anchors), None, "{right}");
        }
        for wrong in ["three.html", "two.html#top", "#what", "../one.html"] {
            assert!(problem(&one, wrong, &anchors).is_some(), "{wrong}");
        }
    }

    #[test]
    fn links_of_markdown_are_found_outside_of_code() {
        let text = "See [a](b.md#c) and [d](e).\n```rust\nlet [f](g);\n```\n[h](i)";
        assert_eq!(links_of_markdown(text), ["b.md#c", "e", "i"]);
    }

    #[test]
    fn links_to_pages_of_the_book_are_checked_in_the_built_book() {
        let link = in_html("book/src/errors.md#deadlines", Path::new("/out"));
        assert_eq!(link, "/out/errors.html#deadlines");
        assert_eq!(in_html("LICENSE-MIT", Path::new("/out")), "LICENSE-MIT");
    }
}
