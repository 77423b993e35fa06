//! How many small bugs the tests catch: cargo-mutants changes the code in one place at a time, and runs the tests.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::{self, cargo, command};

/// The suites of devices and backends, which run again for a mutant that the tests of its own package miss.
const SUITES: [&str; 19] = [
    "--test-workspace=true",
    "--baseline=skip",
    "--timeout=1800",
    "--features=farcall/sim,farcall/tls,farcall/tokio,farcall-transports-conformance/sim",
    "--features=farcall-transports-conformance/tls,farcall-verbs-conformance/sim",
    "--",
    "--test=*rack",
    "--test=sim",
    "--test=handshake",
    "--test=strangers",
    "--test=authentication",
    "--test=tls",
    "--test=quotas",
    "--test=dropping",
    "--test=tear_down",
    "--test=no_*",
    "--test=tcp",
    "--test=tokio*",
    "--test=shm",
];

#[derive(Args)]
pub(crate) struct Options {
    /// How long mutants are made and run with the tests of their own package; and then, how long those that were missed are run
    /// with the suites
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Only mutants with this in their line of `cargo mutants --workspace --list`, such as `src/datagram/`
    #[arg(long, default_value = "")]
    matching: String,
}

/// Takes mutants at random, as many as there is time for, and says which ones no test noticed. `.cargo/mutants.toml` says which files
/// they are made in.
pub(crate) fn mutants(options: &Options) -> Result<()> {
    install()?;
    let list = run::output(cargo().args(["mutants", "--workspace", "--list"]))?;
    let all: Vec<&str> = list.lines().collect();
    let (chosen, others): (Vec<&str>, Vec<&str>) =
        all.iter().partition(|mutant| mutant.contains(&options.matching));
    if chosen.is_empty() {
        bail!("no mutant has `{}` in its line", options.matching);
    }
    println!("  {} of {} mutants, in random order", chosen.len(), all.len());
    let own = Round::new("own");
    own.run(&others, options.minutes, &["--", "--tests"])?;
    let missed = own.mutants("missed")?;
    if missed.is_empty() {
        return own.report(&[]);
    }
    println!("  {} are left for the suites", missed.len());
    let others: Vec<&str> =
        all.into_iter().filter(|mutant| !missed.iter().any(|it| it == mutant)).collect();
    let suites = Round::new("suites");
    suites.run(&others, options.minutes, &SUITES)?;
    own.report(&[suites.mutants("caught")?, suites.mutants("timeout")?].concat())
}

fn install() -> Result<()> {
    let there = cargo().args(["mutants", "--version"]).output().is_ok_and(|o| o.status.success());
    if !there {
        println!("  cargo-mutants is missing; building it once");
        run::run(cargo().args(["install", "cargo-mutants", "--locked", "--debug"]))?;
    }
    Ok(())
}

/// Mutants and the same tests for each.
struct Round {
    output: PathBuf,
}

impl Round {
    fn new(name: &str) -> Round {
        Round { output: run::target().join("mutants").join(name) }
    }

    /// Tries all mutants but these, until so many minutes are over.
    fn run(&self, left_out: &[&str], minutes: u32, rest: &[&str]) -> Result<()> {
        self.leave_out(left_out)?;
        let mut timeout = command("timeout");
        timeout.arg("--signal=INT").arg(format!("{minutes}m")).arg(cargo().get_program());
        timeout.args([
            "mutants",
            "--workspace",
            "--iterate",
            "--shuffle",
            "--no-times",
            "--output",
        ]);
        timeout.arg(&self.output).args(rest);
        // The tree is copied; what is built in the copy is kept for the next run.
        timeout.env("CARGO_TARGET_DIR", run::target().join("mutants/target"));
        // Its status says whether a mutant was missed, or the time was over; its files say which.
        timeout.status().context("cannot start `timeout`")?;
        let results = self.results();
        if !results.join("missed.txt").exists() {
            bail!("cargo-mutants has tried nothing; see {}", results.join("log").display());
        }
        Ok(())
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

    fn results(&self) -> PathBuf {
        self.output.join("mutants.out")
    }

    /// The mutants with this outcome.
    fn mutants(&self, outcome: &str) -> Result<Vec<String>> {
        let path = self.results().join(outcome).with_extension("txt");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Prints what became of the mutants of this round, of which `later` were caught by another.
    fn report(&self, later: &[String]) -> Result<()> {
        let caught = self.mutants("caught")?.len() + self.mutants("timeout")?.len();
        let missed = self.mutants("missed")?;
        let survivors: Vec<_> = missed.iter().filter(|mutant| !later.contains(mutant)).collect();
        let tried = caught + missed.len();
        println!(
            "  {tried} mutants: {caught} caught by the tests of their package, {} by the suites, {} by none ({:.1} %)",
            missed.len() - survivors.len(),
            survivors.len(),
            100.0 * survivors.len() as f64 / tried.max(1) as f64,
        );
        survivors.iter().for_each(|mutant| println!("  {mutant}"));
        Ok(())
    }
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
            round.mutants("previously_caught").unwrap()
        };
        assert_eq!(left_out(&["a", "b"]), ["a", "b"]);
        assert_eq!(left_out(&["c"]), ["c"], "those of an earlier run are gone");
    }

    #[test]
    fn mutants_that_the_suites_caught_are_no_survivors() {
        let directory = tempfile::tempdir().unwrap();
        let round = Round { output: directory.path().to_owned() };
        fs::create_dir(round.results()).unwrap();
        for (outcome, text) in [("caught", "a\n"), ("missed", "b\nc\n"), ("timeout", "")] {
            fs::write(round.results().join(format!("{outcome}.txt")), text).unwrap();
        }
        assert_eq!(round.mutants("missed").unwrap(), ["b", "c"]);
        assert!(round.report(&["b".to_owned()]).is_ok());
        assert!(round.mutants("unviable").is_err(), "there is no such file");
    }
}
