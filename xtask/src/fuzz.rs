//! The fuzz targets for longer than `cargo test` runs them, with bolero's random engine on stable Rust.

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::{self, cargo};

/// Where the targets are: in modules `fuzz` beside what they test, and in a test binary `fuzz` where they need the process for
/// themselves.
const WHERE: [&str; 9] = [
    "--package",
    "farcall-core",
    "--package",
    "farcall-persist",
    "--package",
    "farcall-transports",
    "--lib",
    "--test",
    "fuzz",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Write the well-formed inputs of the targets' corpora, which are kept in the tree, and run nothing: a wire format has
    /// changed
    #[arg(long)]
    write_corpus: bool,
    /// How long each target runs
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Only the targets whose name contains this, such as `handshake` or `any_frame`
    #[arg(default_value = "")]
    target: String,
}

/// What tells the tests of the corpora to write them.
const WRITE_CORPUS: &str = "FARCALL_WRITE_CORPUS";

/// Runs the targets, as many at a time as there are cores, each first on the corpus that the tree has of it.
pub(crate) fn fuzz(options: &Options) -> Result<()> {
    if options.write_corpus {
        return run::run(test().env(WRITE_CORPUS, "1").args(["--", "::fuzz::the_corp"]));
    }
    let list = run::output(test().args(["--quiet", "--", "--list", "--format", "terse"]))?;
    let (chosen, others): (Vec<&str>, Vec<&str>) =
        targets(&list).partition(|name| name.contains(&options.target));
    if chosen.is_empty() {
        let wanted = &options.target;
        bail!("no fuzz target has `{wanted}` in its name; there are:\n  {}", others.join("\n  "));
    }
    println!("  {} targets, {} s each", chosen.len(), options.seconds);
    let outcome = run::run(
        test()
            .env("BOLERO_RANDOM_TEST_TIME_MS", options.seconds.saturating_mul(1000).to_string())
            .args(["--no-fail-fast", "--", "--nocapture", "--exact"])
            .args(chosen),
    );
    outcome.context(
        "keep the input that a target printed: as a file in `__fuzz__/NAME/crashes/` next to the target it runs each time, \
         before the corpus in `__fuzz__/NAME/corpus/`",
    )
}

fn test() -> std::process::Command {
    let mut test = cargo();
    test.args(["test", "--locked"]).args(WHERE);
    test
}

/// The fuzz targets among the tests that test binaries list: those of a library are in a module `fuzz`, and those of a binary
/// `fuzz` are not in a module.
fn targets(list: &str) -> impl Iterator<Item = &str> {
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    // Tests of the corpora run no random inputs.
    names
        .filter(|name| !name.contains("::fuzz::the_corp"))
        .filter(|name| name.contains("::fuzz::") || !name.contains("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_in_a_module_or_a_binary_of_that_name() {
        let list = "codec::fuzz::any_bytes: test\ncodec::tests::any: test\nlone: test\n\n3 tests\n";
        assert_eq!(targets(list).collect::<Vec<_>>(), ["codec::fuzz::any_bytes", "lone"]);
    }
}
