//! Measurements over rxe: each alternates with a tool of perftest in the same boot, and is reported as a
//! ratio.
//!
//! Absolute times of an emulated machine mean little, and depend on the load of the computer. Times measured
//! within the same second can be compared.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::PRELUDE;
use crate::rdma_vm::{self, Options};

/// Runs of each program in one boot.
const ROUNDS: usize = 15;

/// Some 5 s per round, and the boot, with a margin for a busy computer.
const TIMEOUT: Duration = Duration::from_secs(400);

const SCRIPT: &str = include_str!("bench.sh");

/// The prefix of a script's line with a measurement: its name and microseconds follow.
const MARK: &str = "figure ";

/// A measurement, and its upper bound as a multiple of a reference's one-way time.
struct Goal {
    name: &'static str,
    what: &'static str,
    yardstick: &'static str,
    one_ways: f64,
    at_most: f64,
}

/// References: one-way times of 32 B by RC WRITE, UD SEND and RC SEND.
const WRITE: &str = "ib_write_lat";
const SEND: &str = "ib_send_lat";
const RC_SEND: &str = "ib_send_lat_rc";

const GOALS: &[Goal] = &[
    Goal {
        name: "write_latency",
        what: "32 B WRITE through verbs",
        yardstick: WRITE,
        one_ways: 1.0,
        at_most: 1.03,
    },
    Goal {
        name: "echo",
        what: "32 B echo by write_imm, p50",
        yardstick: WRITE,
        one_ways: 2.0,
        at_most: 1.25,
    },
    Goal {
        name: "datagrams",
        what: "32 B echo by datagram, p50",
        yardstick: SEND,
        one_ways: 2.0,
        at_most: 1.25,
    },
    Goal {
        name: "send_recv",
        what: "32 B echo by send_recv, p50",
        yardstick: RC_SEND,
        one_ways: 2.0,
        at_most: 1.25,
    },
];

/// Measures and prints a table.
pub(crate) fn bench() -> Result<()> {
    let script = format!("{PRELUDE}\nrounds={ROUNDS}\n{SCRIPT}");
    let options = Options { release: true, ..Options::script(1, TIMEOUT, script) };
    let mut output = Tee { kept: Vec::new() };
    let status = rdma_vm::rdma_vm_to(&options, &mut output)?;
    if status != 0 {
        bail!("ended with status {status}");
    }
    let text = String::from_utf8_lossy(&output.kept);
    for yardstick in [WRITE, SEND, RC_SEND] {
        println!("one way of {yardstick}: median {:.2} us", median(figures(&text, yardstick))?);
    }
    println!(
        "{:<30} {:>10} {:>8} {:>8} {:>8} {:>8}",
        "", "median", "ratio", "least", "most", "goal"
    );
    for goal in GOALS {
        let measured = figures(&text, goal.name);
        let yardstick = figures(&text, goal.yardstick);
        if measured.len() != yardstick.len() {
            let (ours, theirs) = (measured.len(), yardstick.len());
            bail!("{ours} figures of {}, {theirs} of {}", goal.name, goal.yardstick);
        }
        let ratios: Vec<f64> = measured
            .iter()
            .zip(&yardstick)
            .map(|(micros, one_way)| micros / (goal.one_ways * one_way))
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

/// Shows the output and keeps a copy.
struct Tee {
    kept: Vec<u8>,
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
