//! Mutants with the same tests for each, after the unmutated code has passed them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::verdict::{self, Tried};
use crate::run::{self, cargo, command};

/// How much longer than the unmutated code's a test run may take.
const SLOWER: u32 = 5;

/// How long a test run may take at least: a mutant that makes a test wait ends at the test's own bound.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Mutants and the same tests for each.
pub(super) struct Round {
    pub(super) output: PathBuf,
}

impl Round {
    pub(super) fn new(name: &str) -> Round {
        Round { output: run::target().join("mutants").join(name) }
    }

    /// Runs `cargo test` with these arguments on the unmutated code, which must pass: otherwise its failure would be taken for a
    /// mutant's. Answers how long a mutant may take.
    pub(super) fn pass_unmutated(&self, arguments: &[&str]) -> Result<Duration> {
        println!("  unmutated: cargo test {}", arguments.join(" "));
        self.test(&[arguments, &["--no-run"]].concat())?;
        let begun = Instant::now();
        let log = self.test(arguments)?;
        if !verdict::ran_tests(&log) {
            bail!("`cargo test {}` runs no test", arguments.join(" "));
        }
        Ok((begun.elapsed() * SLOWER).max(SHORTEST_TIMEOUT))
    }

    /// What `cargo test` wrote, if it succeeded.
    fn test(&self, arguments: &[&str]) -> Result<String> {
        fs::create_dir_all(&self.output)
            .with_context(|| format!("cannot make {}", self.output.display()))?;
        let path = self.output.join("unmutated.log");
        let log = File::create(&path)
            .and_then(|file| Ok((file.try_clone()?, file)))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut test = cargo();
        test.args(["test", "--profile=mutants"]).args(arguments).stdout(log.0).stderr(log.1);
        let status = as_for_mutants(&mut test).status().context("cannot start cargo")?;
        let log = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let log = String::from_utf8_lossy(&log).into_owned();
        if !status.success() {
            bail!(
                "the code as it is does not pass `cargo test {}`: {}; see {}",
                arguments.join(" "),
                verdict::reason(&log),
                path.display(),
            );
        }
        Ok(log)
    }

    /// Tries all mutants but these, until so many minutes are over.
    pub(super) fn run(
        &self,
        left_out: &[&str],
        minutes: u32,
        longest: Duration,
        arguments: &[&str],
    ) -> Result<Vec<Tried>> {
        self.leave_out(left_out)?;
        let mut timeout = command("timeout");
        timeout.arg("--signal=INT").arg(format!("{minutes}m")).arg(cargo().get_program());
        timeout.args(["mutants", "--workspace", "--iterate", "--shuffle", "--no-times"]);
        // Its own run of the unmutated code is not with the tests of this round.
        timeout.arg("--baseline=skip").arg(format!("--timeout={}", longest.as_secs()));
        timeout.arg("--output").arg(&self.output).args(arguments);
        let status = as_for_mutants(&mut timeout).status().context("cannot start `timeout`")?;
        if !has_tried(status.code()) {
            bail!("cargo-mutants failed: {status}; see {}", self.results().display());
        }
        verdict::read(&self.results())
    }

    /// Makes cargo-mutants leave these out: it is told that it has caught them before. (Its filters by a regular expression let all
    /// mutants of some kinds pass.)
    fn leave_out(&self, mutants: &[&str]) -> Result<()> {
        let results = self.results();
        // Of an earlier run.
        let _ = fs::remove_dir_all(&results);
        fs::create_dir_all(&results)
            .and_then(|()| fs::write(results.join("previously_caught.txt"), mutants.join("\n")))
            .with_context(|| format!("cannot write to {}", results.display()))
    }

    pub(super) fn results(&self) -> PathBuf {
        self.output.join("mutants.out")
    }
}

/// The environment in which cargo builds and tests with and without a mutant.
fn as_for_mutants(command: &mut Command) -> &mut Command {
    // The tree is copied; what is built in the copy is kept for the next run.
    command.env("CARGO_TARGET_DIR", run::target().join("mutants/target"));
    // Verdicts are read from what cargo writes.
    command.env("CARGO_TERM_COLOR", "never")
}

/// Whether cargo-mutants ended because it had tried all mutants, of which it caught all, missed some, or saw some time out; or
/// because `timeout` ended it. Other statuses are failures of its own.
fn has_tried(status: Option<i32>) -> bool {
    matches!(status, Some(0 | 2 | 3 | 124))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_that_are_not_chosen_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let round = Round { output: directory.path().to_owned() };
        let left_out = |mutants: &[&str]| {
            round.leave_out(mutants).unwrap();
            fs::read_to_string(round.results().join("previously_caught.txt")).unwrap()
        };
        assert_eq!(left_out(&["a", "b"]), "a\nb");
        assert_eq!(left_out(&["c"]), "c", "those of an earlier run are gone");
    }

    #[test]
    fn a_failure_of_cargo_mutants_is_no_result() {
        for (status, has) in
            [(0, true), (2, true), (3, true), (124, true), (1, false), (4, false), (70, false)]
        {
            assert_eq!(has_tried(Some(status)), has, "{status}");
        }
        assert!(!has_tried(None), "killed");
    }
}
