//! The options of `cargo xtask rdma-vm`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

/// The options of `cargo xtask rdma-vm`.
#[derive(Args, Debug, Clone)]
pub(crate) struct Options {
    /// Virtual machines, joined by a virtual Ethernet; COMMAND runs on each, with FARCALL_NODE
    /// (1 or 2) and FARCALL_PEER (the other's IP address) in its environment
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) nodes: u8,

    /// Cuts the power of node 1 this many seconds after both have booted; from then on only the
    /// status of node 2 counts
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) power_cut: Option<Duration>,

    /// Restores the power this many seconds after the cut: node 1 boots again and runs COMMAND again,
    /// with FARCALL_BOOT=2 in its environment
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "power_cut")]
    pub(crate) power_back: Option<Duration>,

    /// Everything from power-on to the last status takes at most this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    pub(crate) timeout: Duration,

    /// Carries programs built by the profile `release`, for figures; by default by the profile `vm`,
    /// which builds in less time
    #[arg(long)]
    pub(crate) release: bool,

    /// One word is run by `/bin/sh -c`, several are a program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

impl Options {
    /// Options that run `script`, with defaults for the rest.
    pub(crate) fn script(nodes: u8, timeout: Duration, script: String) -> Options {
        Options {
            nodes,
            power_cut: None,
            power_back: None,
            timeout,
            release: false,
            command: vec![script],
        }
    }

    /// Checks combinations of options that clap cannot.
    pub(crate) fn check(&self) -> Result<()> {
        if self.power_cut.is_some() && self.nodes != 2 {
            bail!("--power-cut takes the power from node 1 of two: add --nodes 2");
        }
        Ok(())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= LONGEST_SECONDS => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("a number of seconds, above 0 and up to {LONGEST_SECONDS}")),
    }
}

/// The longest accepted time: a day.
const LONGEST_SECONDS: f64 = 86_400.0;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &str) -> Result<Options, String> {
        let words = std::iter::once("rdma-vm").chain(words.split_whitespace());
        Line::try_parse_from(words).map(|line| line.options).map_err(|error| error.to_string())
    }

    #[test]
    fn everything_after_the_dashes_is_the_command() {
        let options = parse("--nodes 2 --timeout 1.5 -- ls --nodes -- x").expect("well formed");
        assert_eq!(options.command, ["ls", "--nodes", "--", "x"]);
        assert_eq!((options.nodes, options.timeout), (2, Duration::from_millis(1500)));
    }

    #[test]
    fn a_command_is_required_and_only_after_the_dashes() {
        assert!(parse("").expect_err("no command").contains("COMMAND"));
        assert!(parse("ibv_devinfo").is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_their_range() {
        assert!(parse("--nodes 3 -- x").expect_err("three nodes").contains("1..=2"));
        for seconds in ["0", "-1", "nan", "inf", "1e9", "soon"] {
            let error = parse(&format!("--timeout={seconds} -- x")).expect_err("no time");
            assert!(error.contains("86400"), "{error}");
        }
    }

    #[test]
    fn a_power_cut_needs_two_nodes_and_power_back_needs_a_power_cut() {
        let cut = parse("--power-cut 3 -- x").expect("well formed");
        assert!(cut.check().expect_err("one node").to_string().contains("--nodes 2"));
        assert!(parse("--nodes 2 --power-cut 3 -- x").expect("well formed").check().is_ok());
        assert!(parse("--nodes 2 --power-back 3 -- x").is_err());
    }
}
