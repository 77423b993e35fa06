//! The counters in the format of Prometheus.

use super::moves::MoveEvent;
use super::snapshot::{MethodSnapshot, Metrics};
use core::fmt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of the exported buckets in seconds, from below one cache-line transfer to the usual deadline.
const BUCKETS_SECONDS: [f64; 14] =
    [250e-9, 500e-9, 1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 1e-3, 10e-3, 100e-3, 1.0, 10.0];

/// Adds the counters of a server or a channel to a registry of the program.
pub fn register(registry: &mut Registry, metrics: Metrics) {
    registry.register_collector(Box::new(metrics));
}

pub(super) fn text(metrics: &Metrics) -> String {
    let mut registry = Registry::default();
    register(&mut registry, metrics.clone());
    let mut text = String::new();
    // Writing into a String does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

fn labels(method: &MethodSnapshot) -> [(&'static str, &'static str); 2] {
    [("service", method.service), ("method", method.method)]
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.snapshot();
        let side = self.side();

        let mut counter = |name: &str, help, value: fn(&MethodSnapshot) -> u64| {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            snapshot.methods.iter().try_for_each(|method| {
                let labels = labels(method);
                let mut family = metric.encode_family(&labels)?;
                family.encode_counter::<NoLabelSet, _, u64>(&value(method), None)
            })
        };
        counter(&format!("farcall_{side}_calls"), "Calls started", MethodSnapshot::calls)?;
        if side == "server" {
            let help = "Calls that an idle thread ran for one that was behind";
            counter("farcall_server_calls_stolen", help, MethodSnapshot::stolen)?;
        }

        if side == "server" {
            let (name, help) = ("farcall_server_refusals", "Peers and messages refused, by reason");
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (reason, count) in self.refusals() {
                let labels = [("reason", reason.name())];
                let mut family = metric.encode_family(&labels)?;
                family.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }

        if side == "server" {
            encode_connections(self, &mut encoder)?;
        } else {
            let (name, help) = ("farcall_client_moves", "What the connection did among backends");
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for event in MoveEvent::ALL {
                let labels = [("event", event.name())];
                let mut family = metric.encode_family(&labels)?;
                family.encode_counter::<NoLabelSet, _, u64>(&self.moves(event), None)?;
            }
        }

        let name = format!("farcall_{side}_calls_ended");
        let mut metric = encoder.encode_descriptor(
            &name,
            "Calls ended, by outcome",
            None,
            MetricType::Counter,
        )?;
        for method in &snapshot.methods {
            for (outcome, n) in method.outcomes() {
                let labels =
                    [("service", method.service), ("method", method.method), ("outcome", outcome)];
                let mut family = metric.encode_family(&labels)?;
                family.encode_counter::<NoLabelSet, _, u64>(&n, None)?;
            }
        }

        let name = format!("farcall_{side}_calls_in_flight");
        let mut metric = encoder.encode_descriptor(
            &name,
            "Calls started and not ended",
            None,
            MetricType::Gauge,
        )?;
        for method in &snapshot.methods {
            let labels = labels(method);
            let in_flight = i64::try_from(method.in_flight()).unwrap_or(i64::MAX);
            metric.encode_family(&labels)?.encode_gauge(&in_flight)?;
        }

        let name = format!("farcall_{side}_latency");
        let help = match side {
            "server" => "From when a request is noticed until its answer leaves",
            _ => "From when a request leaves until its answer is noticed",
        };
        let mut metric =
            encoder.encode_descriptor(&name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for method in &snapshot.methods {
            let labels = labels(method);
            let (sum, count, buckets) = buckets(method);
            let mut family = metric.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// How many connections there are on which backend, and why lanes were opened.
fn encode_connections(
    metrics: &Metrics,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let name = "farcall_server_connections";
    let help = "Open connections, by the backend of the lane that was opened last";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (backend, count) in metrics.connections_by_backend() {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        metric.encode_family(&[("backend", backend)])?.encode_gauge(&count)?;
    }
    let (name, help) = ("farcall_server_lanes_opened", "Lanes opened, by backend and reason");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for ((backend, why), count) in metrics.lanes_opened() {
        let labels = [("backend", backend), ("why", why.name())];
        let mut family = metric.encode_family(&labels)?;
        family.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    Ok(())
}

/// Sum, count, and the count of each exported bucket (not cumulative: the encoder adds them up).
fn buckets(method: &MethodSnapshot) -> (f64, u64, Vec<(f64, u64)>) {
    let merged = method.merged();
    let bounds = BUCKETS_SECONDS.into_iter().chain([f64::MAX]);
    let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
    for (nanos, n) in merged.values() {
        let seconds = nanos as f64 * 1e-9;
        if let Some(bucket) = buckets.iter_mut().find(|(bound, _)| seconds <= *bound) {
            bucket.1 += n;
        }
    }
    if let Some(last) = buckets.last_mut() {
        last.0 = f64::INFINITY;
    }
    (merged.sum as f64 * 1e-9, merged.count, buckets)
}

#[cfg(test)]
mod tests {
    use super::super::{Connections, MethodTable, RefusalReason, Refusals, ThreadCounters};
    use super::*;
    use crate::service::{MethodDescription, ServiceDescription};
    use crate::site::Site;
    use crate::transport::{ClientId, LaneInfo, LaneReason};
    use crate::wire::Status;
    use std::sync::Arc;

    static METHODS: [MethodDescription; 1] = [MethodDescription::new("get", 7, 0)];
    static KV: ServiceDescription =
        ServiceDescription { name: "Kv", fingerprint: 1, methods: &METHODS };

    #[test]
    fn counters_of_all_threads_appear_in_the_text() {
        let methods = Arc::new(MethodTable::new(&[&KV]));
        let threads: Vec<_> = (0..2).map(|_| Arc::new(ThreadCounters::new(&methods))).collect();
        for thread in &threads {
            let row = methods.row(7);
            thread.started(row);
            thread.ended(row, Status::Value);
            thread.latency(row, 700, 1);
        }
        threads[0].started(0);
        let refusals: Vec<_> = (0..2).map(|_| Arc::new(Refusals::default())).collect();
        refusals.iter().for_each(|thread| thread.count(RefusalReason::Idle));
        let connections = Arc::new(Connections::new(&Site::new()));
        let lane = LaneInfo { backend: "rfp", why: LaneReason::Fallback };
        connections.add_lane(None, ((0, ClientId { number: 0, generation: 1 }), lane), None);
        let metrics = Metrics::new("server", methods, threads).with_refusals(refusals);
        let metrics = metrics.with_connections(vec![connections]);
        let text = metrics.prometheus();
        for line in [
            r#"farcall_server_calls_total{service="Kv",method="get"} 3"#,
            r#"farcall_server_calls_ended_total{service="Kv",method="get",outcome="ok"} 2"#,
            r#"farcall_server_calls_in_flight{service="Kv",method="get"} 1"#,
            r#"farcall_server_refusals_total{reason="idle"} 2"#,
            r#"farcall_server_connections{backend="rfp"} 1"#,
            r#"farcall_server_lanes_opened_total{backend="rfp",why="fallback"} 1"#,
            r#"farcall_server_refusals_total{reason="wrong_source"} 0"#,
            r#"farcall_server_latency_seconds_count{service="Kv",method="get"} 2"#,
            r#"farcall_server_latency_seconds_bucket{le="+Inf",service="Kv",method="get"} 2"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
        let snapshot = metrics.snapshot();
        let get = snapshot.method("Kv", "get").expect("counted");
        assert_eq!((get.calls(), get.ok(), get.in_flight()), (3, 2, 1));
        assert_eq!(snapshot.refused(RefusalReason::Idle), 2);
        assert_eq!(get.histogram().len(), 2);
    }
}
