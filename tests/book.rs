//! What README and book tell their readers to type.

use std::fs;
use std::path::{Path, PathBuf};

/// README and all pages of the book.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let book = fs::read_dir(root.join("book/src")).unwrap();
    let mut pages: Vec<_> = book.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(root.join("README.md"));
    pages
}

/// A fence of Rust code that runs, or is only compiled. Pages that have one are in `src/lib.rs`.
#[test]
fn the_code_of_all_pages_is_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let mut pages = pages();
    pages.retain(|page| {
        let text = fs::read_to_string(page).unwrap();
        text.lines().any(|line| line == "```rust" || line == "```rust,no_run")
    });
    assert!(pages.len() > 10, "{}", pages.len());
    for page in pages {
        let included = format!("\"../{}\"", page.strip_prefix(root).unwrap().display());
        assert!(library.contains(&included), "{included} is not compiled: see `documents`");
    }
}

#[test]
fn no_page_names_a_version_on_a_registry_where_farcall_is_not() {
    let pages = pages();
    assert!(pages.len() > 20, "{}", pages.len());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for line in text.lines().filter(|line| line.trim_start().starts_with("farcall")) {
            let named = line.contains("version = \"0") || line.contains("= \"0");
            assert!(!named, "{}: {line}", page.display());
        }
    }
}

/// The anchor that mdbook gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " _-".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The lines of a page that are no code.
fn prose(page: &Path) -> Vec<String> {
    let mut is_code = false;
    let text = fs::read_to_string(page).unwrap();
    let mut lines = Vec::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if !is_code && !is_fence {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// `cargo xtask book` looks at the built pages, pictures included. This finds a wrong link without building them.
#[test]
fn links_lead_to_pages_and_to_headings_in_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = pages();
    pages.extend(
        ["CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"].map(|name| root.join(name)),
    );
    let mut links = 0;
    for page in pages {
        for line in prose(&page) {
            for link in line.split("](").skip(1).filter_map(|part| Some(part.split_once(')')?.0)) {
                if link.is_empty() || link.contains("://") {
                    continue;
                }
                links += 1;
                let (path, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => page.clone(),
                    _ => page.parent().unwrap().join(path),
                };
                assert!(target.exists(), "{}: {link}: there is no such file", page.display());
                let is_there = heading.is_empty()
                    || prose(&target).iter().any(|line| {
                        line.starts_with('#') && anchor(line.trim_start_matches('#')) == heading
                    });
                assert!(is_there, "{}: {link}: there is no such heading", page.display());
            }
        }
    }
    assert!(links > 300, "{links}");
}

#[test]
fn every_example_is_listed_and_runs_as_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("examples/README.md")).unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let mut programs = 0;
    for entry in fs::read_dir(root.join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        programs += 1;
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(list.contains(&format!("[{name}.rs]({name}.rs)")), "{name}: examples/README.md");
        let target = format!("[[example]]\nname = \"{name}\"\ntest = true\n");
        assert!(manifest.contains(&target), "{name}: Cargo.toml");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("#[test]\nfn "), "{name}: no test runs it");
    }
    assert!(programs > 5, "{programs}");
}
