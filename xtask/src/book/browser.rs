//! Looks at each page of the book in a browser without a screen.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::server;
use crate::machine;
use crate::run::command;

/// Programs that can do it, the smallest first. The first one is installed if there is none.
const BROWSERS: [&str; 3] = ["chromium-headless-shell", "chromium", "google-chrome"];

/// What the browser does: it loads each page in frames of several widths, measures, and posts what it has found.
const LOOK: &str = include_str!("look.html");

/// The most that looking at all pages may take.
const LONGEST: Duration = Duration::from_secs(240);

/// Ends the browser.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        // Debian's programs are scripts, which do not become the browser: its whole group ends. It may have ended by itself.
        let group = format!("-{}", self.0.id());
        let _ = command("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

pub(super) fn look(book: &Path) -> Result<()> {
    let sources = super::sources()?;
    let pages: Vec<_> = sources
        .iter()
        .filter_map(|page| page.file_stem()?.to_str())
        .filter(|name| *name != "SUMMARY")
        .map(|name| format!("{name}.html"))
        .collect();
    let script = LOOK.replace("PAGES", &serde_json::to_string(&pages)?);
    let server = server::serve(book, script)?;
    let profile = book.with_file_name("book-browser");
    let mut browser = start(&profile, &format!("http://{}/look", server.address))?;
    let problems = match server.reports.recv_timeout(LONGEST) {
        Ok(report) => serde_json::from_str::<Vec<String>>(&report)
            .with_context(|| format!("the browser's report: {report}"))?,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let ended = browser.0.try_wait()?;
            bail!("the browser has not looked at all pages in {LONGEST:?}; it ended: {ended:?}")
        }
    };
    if !problems.is_empty() {
        bail!("the browser finds {} problems:\n  {}", problems.len(), problems.join("\n  "));
    }
    println!("  {} pages fit screens of 1280 and of 400 pixels, and are readable", pages.len());
    Ok(())
}

fn start(profile: &Path, url: &str) -> Result<Browser> {
    if !BROWSERS.iter().any(|name| machine::on_path(name)) {
        machine::require(BROWSERS[0])?;
    }
    let program = BROWSERS.iter().find_map(|name| machine::program(name).ok());
    let program = program.context("this machine has no browser")?;
    let mut browser = command(program);
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
    browser.arg("--window-size=1400,1000").arg(format!("--user-data-dir={}", profile.display()));
    // Without this it ends when the page is loaded.
    browser.arg("--remote-debugging-port=0").arg(url);
    browser.process_group(0);
    let child = browser.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Browser(child.context("starting the browser")?))
}
