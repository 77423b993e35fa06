//! The book as HTML: builds it, checks its links and its code, and looks at each page in a browser.

mod browser;
mod code;
mod links;
mod server;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::run::{self, cargo, command};

/// The version of mdbook that builds the book. Another one may write other pages.
const MDBOOK: &str = "0.5.4";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Does not look at the pages in a browser
    #[arg(long)]
    no_browser: bool,
}

pub(crate) fn book(options: &Options) -> Result<()> {
    let output = run::target().join("book");
    build(&output)?;
    links::check(&output)?;
    code::check()?;
    if !options.no_browser {
        browser::look(&output)?;
    }
    println!("  {}", output.join("index.html").display());
    Ok(())
}

/// Warnings are errors: a page that is missing, a heading that HTML breaks.
fn build(output: &Path) -> Result<()> {
    let mut mdbook = command(mdbook()?);
    mdbook.args(["build", "book", "--dest-dir"]).arg(output);
    let built = mdbook.output()?;
    let log = [built.stdout, built.stderr].concat();
    let log = String::from_utf8_lossy(&log);
    if !built.status.success() || log.contains("WARN") || log.contains("ERROR") {
        bail!("mdbook: {}\n{log}", built.status);
    }
    Ok(())
}

/// The program, which is built if it is missing: in a folder of its own, so that it replaces no other version.
fn mdbook() -> Result<PathBuf> {
    let tools = run::target().join("tools");
    let mdbook = tools.join("bin/mdbook");
    let is_there = command(&mdbook).arg("--version").output().is_ok_and(|answer| {
        String::from_utf8_lossy(&answer.stdout).trim() == format!("mdbook v{MDBOOK}")
    });
    if !is_there {
        println!("  mdbook {MDBOOK} is missing; building it once");
        // Not optimized: it runs for a second, and would take minutes to build.
        let mut install = cargo();
        install.args(["install", "mdbook", "--version", MDBOOK, "--locked", "--debug", "--force"]);
        install.args(["--no-default-features", "--features", "search", "--root"]).arg(&tools);
        run::run(install.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    }
    Ok(mdbook)
}

/// The pages of the book in Markdown, the contents among them.
fn sources() -> Result<Vec<PathBuf>> {
    files(&run::root().join("book/src"), "md")
}

/// The files in a folder whose names end so, in order.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
