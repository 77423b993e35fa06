//! Gauges of buffers, for Prometheus.

use std::fmt;

use farcall_transports::buffers::{Buffers, BuffersSnapshot, LargeMessageCounts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// Adds the numbers of a pool, and those of the process's [large messages](LargeMessageCounts), to a registry of the program:
/// `farcall_buffers_limit_bytes`, `farcall_buffers_registered_bytes`, `farcall_buffers_used_bytes`, `farcall_buffers_taken_total`,
/// `farcall_messages_sent_in_place_total`, `farcall_messages_copied_for_keepers_total`, `farcall_copied_for_keepers_bytes_total`.
pub fn register(registry: &mut Registry, buffers: Buffers) {
    registry.register_collector(Box::new(Gauges(buffers)));
}

struct Gauges(Buffers);

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let BuffersSnapshot { limit, bytes, used, taken, .. } = self.0.snapshot();
        for (name, help, value) in [
            ("farcall_buffers_limit", "Bytes that the pool may allocate", limit),
            ("farcall_buffers_registered", "Bytes that the pool has allocated", bytes),
            ("farcall_buffers_used", "Bytes of buffers in use", used),
        ] {
            let gauge = ConstGauge::new(value as f64);
            let unit = Some(&Unit::Bytes);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)?;
        }
        let LargeMessageCounts { sent_in_place, copied_for_keepers, copied_bytes, .. } =
            LargeMessageCounts::now();
        let sent = "Large messages that peers read in buffers of the program";
        let copied = "Large messages that were copied because the program keeps many";
        for (name, help, unit, value) in [
            ("farcall_buffers_taken", "Buffers that were taken", None, taken),
            ("farcall_messages_sent_in_place", sent, None, sent_in_place),
            ("farcall_messages_copied_for_keepers", copied, None, copied_for_keepers),
            ("farcall_copied_for_keepers", copied, Some(&Unit::Bytes), copied_bytes),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                unit,
                counter.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_pool_are_shown() {
        let buffers = Buffers::with_limit(1 << 20).expect("shared memory");
        let _held = buffers.buffer(5000).expect("a buffer");
        let mut registry = Registry::default();
        register(&mut registry, buffers);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        for line in [
            "farcall_buffers_limit_bytes 1048576.0",
            "farcall_buffers_registered_bytes 1048576.0",
            "farcall_buffers_used_bytes 8192.0",
            "farcall_buffers_taken_total 1",
            "farcall_messages_copied_for_keepers_total 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
