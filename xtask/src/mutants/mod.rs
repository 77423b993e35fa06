//! How many small bugs the tests catch: cargo-mutants changes the code in one place at a time, and runs the tests.

mod round;
mod verdict;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use round::Round;
use serde_json::Value;
use verdict::{Tried, Verdict};

use crate::run::{self, cargo};

/// The packages whose tests are the suites of devices and backends, and of the public API. They run again for a mutant that the
/// tests of its own package miss.
const SUITES: [&str; 3] =
    ["farcall", "farcall-transports-conformance", "farcall-verbs-conformance"];

/// The features that the tests of these packages need.
const FEATURES: &str = "--features=farcall/sim,farcall/tls,farcall/tokio,farcall-transports-conformance/sim,\
    farcall-transports-conformance/tls,farcall-verbs-conformance/sim,farcall-verbs-conformance/faults";

#[derive(Args)]
pub(crate) struct Options {
    /// How long mutants are made and run with the tests of their own package; and then, how long those that were missed are run
    /// with the suites
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Only mutants with this in their line of `cargo mutants --workspace --list`, such as `src/datagram/`
    #[arg(long, default_value = "")]
    matching: String,
    /// No more mutants than this
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    sample: usize,
    /// Another number chooses another sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Takes mutants at random, as many as there is time for, and says which ones no test noticed. `.cargo/mutants.toml` says which files
/// they are made in.
pub(crate) fn mutants(options: &Options) -> Result<()> {
    install()?;
    let all = list()?;
    let chosen = choose(&all, options);
    if chosen.is_empty() {
        bail!("no mutant has `{}` in its line", options.matching);
    }
    println!("  {} of {} mutants, in random order", chosen.len(), all.len());
    let own = Round::new("own");
    let mut longest = Duration::ZERO;
    for package in chosen.iter().map(|it| it.package.as_str()).collect::<BTreeSet<_>>() {
        let arguments = [&format!("--package={package}"), "--tests"];
        longest = longest.max(own.pass_unmutated(&arguments)?);
    }
    let lines = |mutants: &[&Mutant]| mutants.iter().map(|it| it.line.clone()).collect();
    let first =
        own.run(&others(&all, lines(&chosen)), options.minutes, longest, &["--", "--tests"])?;
    let missed: BTreeSet<String> = named(&first, Verdict::Missed).map(str::to_owned).collect();
    let mut second = Vec::new();
    if !missed.is_empty() {
        println!("  {} are left for the suites", missed.len());
        let suites = Round::new("suites");
        let packages = SUITES.map(|package| format!("--package={package}"));
        let arguments = [&packages.each_ref().map(String::as_str)[..], &[FEATURES, "--tests"]];
        let longest = suites.pass_unmutated(&arguments.concat())?;
        let packages = SUITES.map(|package| format!("--test-package={package}"));
        let arguments =
            [&packages.each_ref().map(String::as_str)[..], &[FEATURES, "--", "--tests"]];
        second =
            suites.run(&others(&all, missed), options.minutes, longest, &arguments.concat())?;
    }
    report(&first, &second)
}

fn install() -> Result<()> {
    let there = cargo().args(["mutants", "--version"]).output().is_ok_and(|o| o.status.success());
    if !there {
        println!("  cargo-mutants is missing; building it once");
        run::run(cargo().args(["install", "cargo-mutants", "--locked", "--debug"]))?;
    }
    Ok(())
}

/// A change that cargo-mutants can make.
#[derive(Debug)]
struct Mutant {
    /// Its line in `cargo mutants --list`.
    line: String,
    /// The package that it is in.
    package: String,
}

/// All that `.cargo/mutants.toml` allows.
fn list() -> Result<Vec<Mutant>> {
    let json = run::output(cargo().args(["mutants", "--workspace", "--list", "--json"]))?;
    let all: Vec<Value> =
        serde_json::from_str(&json).context("a list of mutants that is not JSON")?;
    let mutants = all.iter().map(|it| {
        let field = |name: &str| it[name].as_str().map(str::to_owned);
        let (line, package) =
            field("name").zip(field("package")).context("a mutant without a name")?;
        Ok(Mutant { line, package })
    });
    mutants.collect()
}

/// Those that match, or a sample of them. The order depends on the seed.
fn choose<'a>(all: &'a [Mutant], options: &Options) -> Vec<&'a Mutant> {
    let mut chosen: Vec<_> = all.iter().filter(|it| it.line.contains(&options.matching)).collect();
    chosen.sort_by_cached_key(|mutant| {
        let mut hasher = DefaultHasher::new();
        (options.seed, &mutant.line).hash(&mut hasher);
        hasher.finish()
    });
    chosen.truncate(options.sample);
    chosen
}

fn others(all: &[Mutant], chosen: BTreeSet<String>) -> Vec<&str> {
    all.iter().map(|it| it.line.as_str()).filter(|line| !chosen.contains(*line)).collect()
}

/// The mutants with this verdict.
fn named(tried: &[Tried], verdict: Verdict) -> impl Iterator<Item = &str> {
    tried.iter().filter(move |it| it.verdict == verdict).map(|it| it.mutant.as_str())
}

/// Prints what became of the mutants with the tests of their package, and of those that these missed with the suites. Fails if
/// something else than a test has decided of one.
fn report(own: &[Tried], suites: &[Tried]) -> Result<()> {
    let summary = summary(own, suites);
    print!("{summary}");
    let undecided =
        [own, suites].map(|it| named(it, Verdict::Undecided).count()).iter().sum::<usize>();
    if undecided > 0 {
        bail!("no test decided of {undecided} mutants; see the logs below target/mutants");
    }
    Ok(())
}

fn summary(own: &[Tried], suites: &[Tried]) -> String {
    let count = |tried, verdict| named(tried, verdict).count();
    let survivors = count(suites, Verdict::Missed);
    let caught = [own, suites].map(|tried| count(tried, Verdict::Caught));
    // Those whose tests came to an end.
    let decided = caught[0] + caught[1] + survivors;
    let mut text = format!(
        "  {decided} mutants: {} caught by the tests of their package, {} by the suites, {survivors} by none ({:.1} %)\n",
        caught[0],
        caught[1],
        100.0 * survivors as f64 / decided.max(1) as f64,
    );
    let mut list = |what: &str, mutants: Vec<&str>| {
        if !mutants.is_empty() {
            text += &format!("  {}: {what}\n", mutants.len());
            text.extend(mutants.iter().map(|mutant| format!("    {mutant}\n")));
        }
    };
    list("survived", named(suites, Verdict::Missed).collect());
    let both = |verdict| [own, suites].into_iter().flat_map(move |it| named(it, verdict)).collect();
    list("did not end in time, and may be caught", both(Verdict::TimedOut));
    let is_tried = |mutant: &&str| suites.iter().any(|it| it.mutant == *mutant);
    let untried = named(own, Verdict::Missed).filter(|mutant| !is_tried(mutant)).collect();
    list("missed by the tests of their package, no time for the suites", untried);
    list("no test decided", both(Verdict::Undecided));
    let unbuilt = both(Verdict::DoesNotBuild).len();
    if unbuilt > 0 {
        text += &format!("  {unbuilt}: do not compile\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(all: &[(&str, Verdict)]) -> Vec<Tried> {
        let tried = |(mutant, verdict): &(&str, Verdict)| Tried {
            mutant: (*mutant).to_owned(),
            verdict: *verdict,
        };
        all.iter().map(tried).collect()
    }

    #[test]
    fn only_what_all_tests_miss_is_a_survivor() {
        use Verdict::*;
        let own = [
            ("a", Caught),
            ("b", Missed),
            ("c", Missed),
            ("d", Missed),
            ("e", TimedOut),
            ("f", DoesNotBuild),
            ("g", Missed),
        ];
        let suites = [("b", Caught), ("c", Missed), ("g", TimedOut)];
        assert_eq!(
            summary(&tried(&own), &tried(&suites)),
            "  3 mutants: 1 caught by the tests of their package, 1 by the suites, 1 by none (33.3 %)\n  \
             1: survived\n    c\n  \
             2: did not end in time, and may be caught\n    e\n    g\n  \
             1: missed by the tests of their package, no time for the suites\n    d\n  \
             1: do not compile\n"
        );
        assert!(report(&tried(&own), &tried(&suites)).is_ok());
    }

    #[test]
    fn a_mutant_that_no_test_decided_of_is_a_failure() {
        let undecided = tried(&[("a", Verdict::Undecided)]);
        for (own, suites) in [(&undecided[..], &[][..]), (&[], &undecided)] {
            let why = report(own, suites).unwrap_err().to_string();
            assert!(why.contains("no test decided of 1 mutants"), "{why}");
        }
    }

    #[test]
    fn a_sample_depends_on_its_seed_alone() {
        let all: Vec<_> = (0..100)
            .map(|n| Mutant { line: format!("file.rs:{n}"), package: "one".to_owned() })
            .collect();
        let sample = |seed, sample| {
            let options = Options { minutes: 1, matching: "file".to_owned(), sample, seed };
            choose(&all, &options).iter().map(|it| it.line.clone()).collect::<BTreeSet<_>>()
        };
        assert_eq!(sample(1, 10), sample(1, 10));
        assert_eq!(sample(1, 10).len(), 10);
        assert_ne!(sample(1, 10), sample(2, 10));
        assert_eq!(sample(1, usize::MAX).len(), 100);
        assert_eq!(others(&all, sample(1, 10)).len(), 90);
    }
}
