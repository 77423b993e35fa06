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
