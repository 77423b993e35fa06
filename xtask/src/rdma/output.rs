//! What the scripts print: shown at once, and kept.

use std::io::{self, Write};

/// The most lines of a failed check that are shown again.
const LINES: usize = 60;

/// Shows the output and keeps a copy.
pub(super) struct Tee {
    kept: Vec<u8>,
}

impl Tee {
    pub(super) fn new() -> Self {
        Self { kept: Vec::new() }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes)?;
        self.kept.extend_from_slice(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

/// The last lines of each check of `text` that failed or did not end, without its cases that passed. Hundreds
/// of lines may follow a failure, and a log may keep only its end.
pub(super) fn failed_checks(text: &str) -> String {
    let mut checks: Vec<Check<'_>> = Vec::new();
    for line in text.lines() {
        let (node, said) = line.split_once(" | ").unwrap_or(("", line));
        let running = checks.iter_mut().rfind(|check| check.node == node && !check.ended);
        match (said.strip_prefix("-- "), running) {
            (Some(result), Some(check)) => {
                check.ended = true;
                check.passed = result.starts_with(&format!("{}: ok", check.name));
                check.lines.push(line);
            }
            (Some(name), None) => checks.push(Check::begin(node, name)),
            (None, Some(check)) if !reports_a_success(said) => check.lines.push(line),
            _ => {}
        }
    }
    checks.iter().filter(|check| !check.passed).map(Check::end).collect()
}

/// A check of a script.
struct Check<'a> {
    /// The machine, where there are several.
    node: &'a str,
    name: &'a str,
    lines: Vec<&'a str>,
    ended: bool,
    passed: bool,
}

impl<'a> Check<'a> {
    fn begin(node: &'a str, name: &'a str) -> Self {
        Self { node, name, lines: Vec::new(), ended: false, passed: false }
    }

    fn end(&self) -> String {
        let last = &self.lines[self.lines.len().saturating_sub(LINES)..];
        let lines: String = last.iter().map(|line| format!("{line}\n")).collect();
        format!("-- {}\n{lines}", self.name)
    }
}

/// Whether it is the line of a case that passed, or that cannot run there.
fn reports_a_success(line: &str) -> bool {
    line.ends_with(" passed") || line.contains(": ok (") || line.contains(" ignored: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_shown_with_what_it_said() {
        let text = "-- first\nall is well\n-- first: ok, 1.0 s\n-- second: part\na::case passed\n\
            b::case FAILED\n-- second: part: FAILED with status 1, 2.0 s\n-- third\n-- third: ok, 0.1 s\n";
        assert_eq!(
            failed_checks(text),
            "-- second: part\nb::case FAILED\n-- second: part: FAILED with status 1, 2.0 s\n"
        );
    }

    #[test]
    fn a_check_that_did_not_end_is_shown() {
        assert_eq!(failed_checks("-- first\nit waits\n"), "-- first\nit waits\n");
    }

    #[test]
    fn the_lines_of_each_machine_are_told_apart() {
        let text = "node 2 | -- a\nnode 1 | -- b\nnode 1 | of b\nnode 2 | of a\nnode 1 | -- b: ok, 1 s\n\
            node 2 | -- a: FAILED, killed after 1 s\n";
        assert_eq!(
            failed_checks(text),
            "-- a\nnode 2 | of a\nnode 2 | -- a: FAILED, killed after 1 s\n"
        );
    }
}
