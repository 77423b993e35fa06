//! The measured configurations.

use anyhow::{Context, Result, bail};
use farcall_verbs::sim::Costs;

/// Raw measurements by FaSST's authors (Kalia, Kaminsky, Andersen, OSDI 2016).
const FASST: &str = include_str!("fasst.tsv");

/// The NIC of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredNic {
    /// ConnectX-3 at 56 Gbit/s.
    ConnectX3,
    /// Connect-IB with two ports.
    ConnectIb,
}

impl MeasuredNic {
    /// Its constants.
    pub(in crate::sim) fn costs(self) -> Costs {
        match self {
            MeasuredNic::ConnectX3 => Costs::connectx3(),
            MeasuredNic::ConnectIb => Costs::connect_ib(),
        }
    }

    /// The cores of one socket of its machines.
    pub(in crate::sim) fn cores(self) -> usize {
        match self {
            MeasuredNic::ConnectX3 => 8,
            MeasuredNic::ConnectIb => 14,
        }
    }
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A READ.
    Read,
    /// An inline WRITE on a reliable connection.
    Write,
    /// An inline WRITE on an unreliable connection.
    WriteUnreliable,
}

/// A configuration, and what was measured.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The NIC of all machines.
    pub nic: MeasuredNic,
    /// What all threads post.
    pub operation: Operation,
    /// Bytes of each operation.
    pub bytes: usize,
    /// Machines.
    pub machines: usize,
    /// Nodes that they emulate, with more queue pairs.
    pub emulated_nodes: usize,
    /// Threads of each machine.
    pub threads: usize,
    /// Outstanding operations of each thread.
    pub window: usize,
    /// Of the operations of a queue pair, one in this many is signaled.
    pub signal_every: u64,
    /// Million operations per second of one machine.
    pub measured: f64,
    /// Whether constants were fitted to it.
    pub fitted: bool,
}

/// All configurations, in the order of the file.
pub fn configurations() -> Result<Vec<Configuration>> {
    FASST.lines().skip(1).map(|line| parse(line).with_context(|| line.to_owned())).collect()
}

fn parse(line: &str) -> Result<Configuration> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [nic, verb, bytes, machines, nodes, threads, _pairs, window, signaled, measured] =
        columns[..]
    else {
        bail!("{} columns instead of 10", columns.len());
    };
    Ok(Configuration {
        nic: match nic {
            "ConnectX-3" => MeasuredNic::ConnectX3,
            "Connect-IB" => MeasuredNic::ConnectIb,
            _ => bail!("an unknown NIC"),
        },
        operation: match verb {
            "READ" => Operation::Read,
            "WRITE RC" => Operation::Write,
            "WRITE UC" => Operation::WriteUnreliable,
            _ => bail!("an unknown verb"),
        },
        bytes: bytes.parse()?,
        machines: machines.parse()?,
        emulated_nodes: nodes.parse()?,
        threads: threads.parse()?,
        window: window.parse()?,
        signal_every: match signaled.strip_prefix("1 in ") {
            Some(count) => count.parse()?,
            None => 1,
        },
        measured: measured.parse()?,
        fitted: hash(line).is_multiple_of(2),
    })
}

/// FNV-1a with a final mix (SplitMix64): half of all configurations have an even hash.
fn hash(line: &str) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut word = line.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_configurations_are_read_and_about_half_of_them_are_fitted() {
        let all = configurations().unwrap();
        assert_eq!(all.len(), 225);
        let fitted = all.iter().filter(|configuration| configuration.fitted).count();
        assert!((95..=130).contains(&fitted), "{fitted}");
    }
}
