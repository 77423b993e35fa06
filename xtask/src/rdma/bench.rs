//! Measurements over rxe: each alternates with a tool of perftest in the same boot, and is reported as a
//! ratio. Then all backends, compared with each other.
//!
//! Absolute times of an emulated machine mean little, and depend on the load of the computer. Times measured
//! within the same second can be compared.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::PRELUDE;
use super::output::Tee;
use crate::rdma_vm::{self, Options};

/// Runs of each program in one boot.
const ROUNDS: usize = 15;

/// Some 5 s per round, two minutes of comparison, and the boot, with a margin for a busy computer.
const TIMEOUT: Duration = Duration::from_secs(900);

const SCRIPT: &str = include_str!("bench.sh");

/// The prefix of a script's line with a measurement: its name and microseconds follow.
const MARK: &str = "figure ";

/// A measurement, and its upper bound as a multiple of the sum of references.
struct Goal {
    name: &'static str,
    what: &'static str,
    yardsticks: &'static [&'static str],
    at_most: f64,
}

/// References: one-way times of 32 B by RC WRITE, UD SEND and RC SEND, and the whole time of an RC READ.
const WRITE: &str = "ib_write_lat";
const SEND: &str = "ib_send_lat";
const RC_SEND: &str = "ib_send_lat_rc";
const READ: &str = "ib_read_lat";

const GOALS: &[Goal] = &[
    Goal {
        name: "write_latency",
        what: "32 B WRITE through verbs",
        yardsticks: &[WRITE],
        at_most: 1.03,
    },
    Goal {
        name: "echo",
        what: "32 B echo by write_imm, p50",
        yardsticks: &[WRITE, WRITE],
        at_most: 1.25,
    },
    Goal {
        name: "datagrams",
        what: "32 B echo by datagram, p50",
        yardsticks: &[SEND, SEND],
        at_most: 1.25,
    },
    Goal {
        name: "send_recv",
        what: "32 B echo by send_recv, p50",
        yardsticks: &[RC_SEND, RC_SEND],
        at_most: 1.25,
    },
    Goal { name: "rfp", what: "32 B echo by rfp, p50", yardsticks: &[WRITE, READ], at_most: 1.25 },
];

/// Measures and prints a table.
pub(crate) fn bench() -> Result<()> {
    let script = format!("{PRELUDE}\nrounds={ROUNDS}\n{SCRIPT}");
    let options = Options { release: true, ..Options::script(1, TIMEOUT, script) };
    let mut output = Tee::new();
    let status = rdma_vm::rdma_vm_to(&options, &mut output)?;
    if status != 0 {
        bail!("ended with status {status}");
    }
    let text = output.text();
    for yardstick in [WRITE, SEND, RC_SEND, READ] {
        println!("{yardstick}: median {:.2} us", median(figures(&text, yardstick))?);
    }
    println!(
        "{:<30} {:>10} {:>8} {:>8} {:>8} {:>8}",
        "", "median", "ratio", "least", "most", "goal"
    );
    for goal in GOALS {
        let measured = figures(&text, goal.name);
        let references: Vec<Vec<f64>> =
            goal.yardsticks.iter().map(|yardstick| figures(&text, yardstick)).collect();
        if references.iter().any(|reference| reference.len() != measured.len()) {
            bail!("{} and {:?} were not measured as often", goal.name, goal.yardsticks);
        }
        let ratios: Vec<f64> = measured
            .iter()
            .enumerate()
            .map(|(round, micros)| {
                micros / references.iter().map(|times| times[round]).sum::<f64>()
            })
            .collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        println!(
            "{:<30} {:>7.2} us {:>8.3} {least:>8.3} {most:>8.3} {:>8.2}",
            goal.what,
            median(measured)?,
            median(ratios)?,
            goal.at_most
        );
    }
    Ok(())
}

/// The microseconds in the lines of `name`.
fn figures(text: &str, name: &str) -> Vec<f64> {
    text.lines()
        .filter_map(|line| {
            line.strip_prefix(MARK)?.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok()
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_found_by_name() -> Result<()> {
        let text =
            "figure echo 60.5\nnoise\nfigure ib_write_lat 20\nfigure echo 61\nfigure echo x\n";
        assert_eq!(figures(text, "echo"), [60.5, 61.0]);
        assert_eq!(figures(text, "ib_write_lat"), [20.0]);
        assert_eq!(median(vec![3.0, 1.0, 2.0])?, 2.0);
        Ok(())
    }

    #[test]
    fn no_measurement_is_an_error() {
        assert!(median(figures("", "echo")).is_err());
    }
}
