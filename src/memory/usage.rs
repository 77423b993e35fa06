//! What an owner has lent, for those who operate it: over the wire, and as gauges of Prometheus.

use core::fmt;
use std::time::Duration;

use farcall_transports::remote_memory::{Borrower, Memory, MemorySnapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::Grow;

/// What an owner has and lends, as it tells its clients: see [`RemoteMemory::usage`](super::RemoteMemory::usage).
#[derive(Clone, Debug, Default, PartialEq, Eq, Grow)]
#[rpc(crate = crate)]
pub struct MemoryUsage {
    /// The number of regions.
    pub regions: u64,
    /// The bytes of all regions, which are registered with the device.
    pub bytes: u64,
    /// The number of lends that have not ended.
    pub lends: u64,
    /// The number of lanes of clients that use one-sided operations.
    pub lanes: u64,
    /// For how long the oldest of the lends has lasted, in microseconds.
    pub oldest_for_micros: Option<u64>,
    /// The name of who may use that one, if it is not for everyone.
    pub oldest_is_lent_to: Option<String>,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl From<MemorySnapshot> for MemoryUsage {
    fn from(snapshot: MemorySnapshot) -> MemoryUsage {
        let MemorySnapshot { regions, bytes, lends, lanes, oldest, .. } = snapshot;
        let name = |borrower: &Borrower| match borrower {
            Borrower::Identity(identity) => Some(identity.name().to_owned()),
            _ => None,
        };
        MemoryUsage {
            regions: regions as u64,
            bytes,
            lends: lends as u64,
            lanes: lanes as u64,
            oldest_for_micros: oldest.as_ref().map(|lend| micros(lend.age)),
            oldest_is_lent_to: oldest.as_ref().and_then(|lend| name(&lend.borrower)),
        }
    }
}

/// Adds the gauges of a server's memory to a registry of the program: `farcall_memory_regions`, `farcall_memory_registered_bytes`,
/// `farcall_memory_lends`, `farcall_memory_lanes`, `farcall_memory_oldest_lend_seconds`.
pub fn register(registry: &mut Registry, memory: Memory) {
    registry.register_collector(Box::new(Gauges(memory)));
}

struct Gauges(Memory);

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let MemorySnapshot { regions, bytes, lends, lanes, oldest, .. } = self.0.snapshot();
        let mut gauge = |name, help, unit: Option<&Unit>, value: f64| {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
        };
        gauge("farcall_memory_regions", "Regions of memory", None, regions as f64)?;
        let help = "Bytes of all regions";
        gauge("farcall_memory_registered", help, Some(&Unit::Bytes), bytes as f64)?;
        gauge("farcall_memory_lends", "Lends that have not ended", None, lends as f64)?;
        gauge("farcall_memory_lanes", "Lanes of one-sided clients", None, lanes as f64)?;
        let age = oldest.map_or(0.0, |lend| lend.age.as_secs_f64());
        let help = "For how long the oldest lend has lasted";
        gauge("farcall_memory_oldest_lend", help, Some(&Unit::Seconds), age)
    }
}
