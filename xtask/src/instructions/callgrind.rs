//! Runs the calls under callgrind, and reads what it counted.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::bounds::Case;
use crate::run::{self, command};

/// Counting starts and ends with this function of `farcall-bench`.
const COUNTED: &str = "*count_these*";

/// Lines of a profile.
const TOP: usize = 40;

/// Instructions that `calls` calls take. The details are in `report` then.
pub(super) fn count(program: &Path, case: &Case, calls: u64, report: &Path) -> Result<u64> {
    let Case { client, backend, window } = case;
    let mut valgrind = command("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", &format!("--toggle-collect={COUNTED}")]);
    valgrind.arg(format!("--callgrind-out-file={}", report.display())).arg(program);
    valgrind.args(["instructions", "--client", client, "--backend", backend]);
    valgrind.args(["--window", &window.to_string(), "--calls", &calls.to_string()]);
    run::output(&mut valgrind)?;
    let text = fs::read_to_string(report)
        .with_context(|| format!("cannot read callgrind's {}", report.display()))?;
    let total = total(&text).context("callgrind told no total")?;
    ensure!(total > 0, "no function of {} is called {COUNTED}", program.display());
    Ok(total)
}

fn total(report: &str) -> Option<u64> {
    report.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

/// Prints what most instructions of `calls` calls were spent on. A function is listed once for itself, and once for each file from
/// which code was inlined into it.
pub(super) fn print_profile(report: &Path, calls: u64) -> Result<()> {
    let annotated = run::output(
        command("callgrind_annotate").args(["--auto=no", "--threshold=100"]).arg(report),
    )?;
    for (instructions, place) in annotated.lines().filter_map(row).take(TOP) {
        println!("  {:>8.1}  {place}", instructions as f64 / calls as f64);
    }
    Ok(())
}

/// Instructions, and where: `2,002,123 ( 6.51%)  FILE:FUNCTION [OBJECT]`.
fn row(line: &str) -> Option<(u64, &str)> {
    let (instructions, rest) = line.trim_start().split_once(' ')?;
    let (_, place) = rest.split_once("%)")?;
    let instructions = instructions.replace(',', "").parse().ok()?;
    let place = place.trim().split(" [/").next()?;
    let root = run::root().to_str()?;
    let (_, place) = place.rsplit_once("/library/").unwrap_or(("", place));
    let place = place.strip_prefix(root).map_or(place, |place| place.trim_start_matches('/'));
    (!place.starts_with("PROGRAM TOTALS")).then_some((instructions, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_its_total() {
        assert_eq!(total("events: Ir\nfn=(1) a\n1 5\n\ntotals: 30740259\n"), Some(30_740_259));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn the_rows_of_a_profile_tell_instructions_and_place() {
        let library =
            "  540 ( 1.75%)  /rustc/59807/library/core/src/slice/index.rs:a::b [/target/x]";
        assert_eq!(row(library), Some((540, "core/src/slice/index.rs:a::b")));
        let ours =
            format!("2,002,123 ( 6.51%)  {}/verbs/src/a.rs:<A as B>::c", run::root().display());
        assert_eq!(row(&ours), Some((2_002_123, "verbs/src/a.rs:<A as B>::c")));
        for other in
            ["30,740,259 (100.0%)  PROGRAM TOTALS", "Ir  file:function", "", "Thresholds: 98"]
        {
            assert_eq!(row(other), None, "{other:?}");
        }
    }
}
