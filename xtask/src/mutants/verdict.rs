//! What became of one command of `cargo test`: cargo exits with the same status for a test that failed, code that does not
//! compile and options that it refuses, so its words decide.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// What the tests said of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All tests passed.
    Missed,
    /// A test ran and failed.
    Caught,
    /// The tests did not end in time: they may hang, or the machine may be slow.
    TimedOut,
    /// It does not compile, so there is nothing to test.
    DoesNotBuild,
    /// No test decided: cargo refused its command, or something else failed.
    Undecided,
}

impl Verdict {
    /// Of a mutant that cargo-mutants has put into this class, with what cargo and the tests wrote.
    pub(super) fn of(summary: &str, log: &str) -> Verdict {
        match summary {
            "MissedMutant" if ran_tests(log) => Verdict::Missed,
            "CaughtMutant" if has_failed_test(log) => Verdict::Caught,
            "Timeout" => Verdict::TimedOut,
            "Unviable" if does_not_compile(log) => Verdict::DoesNotBuild,
            _ => Verdict::Undecided,
        }
    }
}

/// A mutant and what became of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) mutant: String,
    pub(super) verdict: Verdict,
}

/// Reads what cargo-mutants has left in its folder of results.
pub(super) fn read(results: &Path) -> Result<Vec<Tried>> {
    let path = results.join("outcomes.json");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}; has a mutant been tried?", path.display()))?;
    let all: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let outcomes = all["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    // The unmutated tree has no name.
    let named =
        outcomes.iter().filter_map(|it| Some((it, it["scenario"]["Mutant"]["name"].as_str()?)));
    let tried = named.map(|(outcome, mutant)| {
        let log = results.join(outcome["log_path"].as_str().unwrap_or_default());
        let log = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
        let summary = outcome["summary"].as_str().unwrap_or_default();
        let verdict = Verdict::of(summary, &String::from_utf8_lossy(&log));
        Ok(Tried { mutant: mutant.to_owned(), verdict })
    });
    tried.collect()
}

/// A test binary ran and failed, or died of a signal.
fn has_failed_test(log: &str) -> bool {
    log.lines().any(|line| line.starts_with("error: test failed, to rerun pass"))
}

/// At least one test ran and passed.
pub(super) fn ran_tests(log: &str) -> bool {
    log.lines().any(|line| {
        let passed = line.strip_prefix("test result: ok. ");
        passed.is_some_and(|rest| !rest.starts_with("0 passed"))
    })
}

/// The compiler found errors in the code. It also says that it could not compile when the linker fails, or when it is killed for
/// lack of memory.
fn does_not_compile(log: &str) -> bool {
    let has = |is: fn(&str) -> bool| log.lines().any(is);
    has(|line| line.starts_with("error: could not compile") && line.contains(" due to "))
        && !has(|line| line.starts_with("error: linking with"))
}

/// Why a command that should have succeeded did not, in a few words.
pub(super) fn reason(log: &str) -> &str {
    if has_failed_test(log) {
        return log.lines().find(|line| line.ends_with("FAILED")).unwrap_or("a test failed");
    }
    log.lines().find(|line| line.starts_with("error")).unwrap_or("see its log")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const PASSED: &str =
        "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";

    #[test]
    fn a_mutant_is_caught_only_by_a_test_that_failed() {
        let refused =
            "error: target `rack` in package `farcall-bench` requires the features: `sim`\n";
        let failed = "error: test failed, to rerun pass `-p farcall-core --lib`\n";
        let broken = "error: could not compile `farcall-core` (lib) due to 2 previous errors\n";
        let unlinked = format!("error: linking with `cc` failed: exit status: 1\n{broken}");
        let killed = "error: could not compile `farcall-core` (lib)\n\nCaused by:\n  signal: 9\n";
        for (summary, log, verdict) in [
            ("CaughtMutant", failed, Verdict::Caught),
            ("CaughtMutant", refused, Verdict::Undecided),
            ("CaughtMutant", broken, Verdict::Undecided),
            ("CaughtMutant", "", Verdict::Undecided),
            ("MissedMutant", PASSED, Verdict::Missed),
            ("MissedMutant", "test result: ok. 0 passed; 0 failed\n", Verdict::Undecided),
            ("MissedMutant", "", Verdict::Undecided),
            ("Unviable", broken, Verdict::DoesNotBuild),
            ("Unviable", refused, Verdict::Undecided),
            ("Unviable", &unlinked, Verdict::Undecided),
            ("Unviable", killed, Verdict::Undecided),
            ("Timeout", PASSED, Verdict::TimedOut),
            ("Failure", failed, Verdict::Undecided),
        ] {
            assert_eq!(Verdict::of(summary, log), verdict, "{summary}: {log}");
        }
    }

    /// What cargo writes for a package with this code, and whether it succeeded.
    fn cargo_test(code: &str, arguments: &[&str]) -> (bool, String) {
        let directory = tempfile::tempdir().unwrap();
        let manifest = "[package]\nname = \"sample\"\nedition = \"2024\"\n[workspace]\n\
            [features]\nsim = []\n[[test]]\nname = \"rack\"\nrequired-features = [\"sim\"]\n";
        for folder in ["src", "tests"] {
            fs::create_dir(directory.path().join(folder)).unwrap();
        }
        for (name, text) in [("Cargo.toml", manifest), ("src/lib.rs", code), ("tests/rack.rs", "")]
        {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let mut test = Command::new(env!("CARGO"));
        test.args(["test", "--offline"]).args(arguments).current_dir(directory.path());
        test.env("CARGO_TARGET_DIR", directory.path().join("target"))
            .env("CARGO_TERM_COLOR", "never");
        let output = test.output().unwrap();
        let log = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(log).unwrap())
    }

    #[test]
    fn cargo_still_uses_the_words_that_decide() {
        let passes = "#[test] fn passes() {}";
        let (is_success, log) = cargo_test(passes, &["--lib"]);
        assert!(is_success && ran_tests(&log), "{log}");

        let (is_success, log) = cargo_test("#[test] fn fails() { panic!() }", &["--lib"]);
        assert!(!is_success, "{log}");
        assert_eq!(Verdict::of("CaughtMutant", &log), Verdict::Caught, "{log}");
        assert_eq!(reason(&log), "test fails ... FAILED");

        let (is_success, log) =
            cargo_test("#[test] fn ends() { std::process::abort() }", &["--lib"]);
        assert!(!is_success, "{log}");
        assert_eq!(Verdict::of("CaughtMutant", &log), Verdict::Caught, "{log}");

        let (is_success, log) = cargo_test("fn unfinished() -> u8 { }", &["--lib"]);
        assert!(!is_success, "{log}");
        assert_eq!(Verdict::of("Unviable", &log), Verdict::DoesNotBuild, "{log}");
        assert_eq!(Verdict::of("CaughtMutant", &log), Verdict::Undecided, "{log}");

        let (is_success, log) = cargo_test(passes, &["--lib", "--test=rack"]);
        assert!(!is_success, "{log}");
        assert_eq!(Verdict::of("CaughtMutant", &log), Verdict::Undecided, "{log}");
        assert!(reason(&log).contains("requires the features"), "{log}");
    }

    #[test]
    fn the_results_of_cargo_mutants_are_read_with_their_logs() {
        let results = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(results.path().join(name), text).unwrap();
        write("0.log", PASSED);
        write("1.log", "error: no test target named `rack`\n");
        write(
            "outcomes.json",
            r#"{"outcomes": [
                {"scenario": "Baseline", "summary": "Success", "log_path": "none.log"},
                {"scenario": {"Mutant": {"name": "a"}}, "summary": "MissedMutant", "log_path": "0.log"},
                {"scenario": {"Mutant": {"name": "b"}}, "summary": "CaughtMutant", "log_path": "1.log"}
            ]}"#,
        );
        let expected = [("a", Verdict::Missed), ("b", Verdict::Undecided)]
            .map(|(mutant, verdict)| Tried { mutant: mutant.to_owned(), verdict });
        assert_eq!(read(results.path()).unwrap(), expected);
    }
}
