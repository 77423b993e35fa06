//! Every block of Rust in the book is compiled: its page is among the documentation tests of `src/lib.rs`.

use std::fs;

use anyhow::{Result, bail};

use crate::run;

/// What is behind the word `rust` of a block that the documentation tests compile.
const COMPILED: [&str; 4] = ["", ",no_run", ",should_panic", ",compile_fail"];

pub(super) fn check() -> Result<()> {
    let library = fs::read_to_string(run::root().join("src/lib.rs"))?;
    let (mut compiled, mut ignored) = (0, 0);
    for page in super::sources()? {
        let text = fs::read_to_string(&page)?;
        let name = page.strip_prefix(run::root())?.display().to_string();
        for (kind, line) in blocks(&text) {
            match kind {
                Kind::Ignored => ignored += 1,
                Kind::Compiled if library.contains(&format!("\"../{name}\"")) => compiled += 1,
                Kind::Compiled => {
                    bail!("{name}:{line}: not compiled; add the page to `documents` in src/lib.rs")
                }
                Kind::Unknown => bail!("{name}:{line}: a block of Rust that is of no known kind"),
            }
        }
    }
    println!("  {compiled} blocks of Rust are compiled, {ignored} are not (`rust,ignore`)");
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Kind {
    Compiled,
    Ignored,
    Unknown,
}

/// The blocks of Rust of a page, and their lines.
fn blocks(text: &str) -> impl Iterator<Item = (Kind, usize)> {
    let fences = text
        .lines()
        .zip(1..)
        .filter_map(|(line, number)| Some((line.trim_start().strip_prefix("```rust")?, number)));
    fences.map(|(rest, number)| {
        let kind = match rest {
            ",ignore" => Kind::Ignored,
            _ if COMPILED.contains(&rest) => Kind::Compiled,
            _ => Kind::Unknown,
        };
        (kind, number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_rust_are_found_with_their_kinds() {
        let page = "# Page\n```rust\n```\n```sh\n```\n- item\n  ```rust,no_run\n```rust,ignore\n```rust,edition2018\n";
        let found: Vec<_> = blocks(page).collect();
        let expected =
            [(Kind::Compiled, 2), (Kind::Compiled, 7), (Kind::Ignored, 8), (Kind::Unknown, 9)];
        assert_eq!(found, expected);
    }
}
