//! Reading the threads' counters.

use super::connections::{Connections, OpenConnection};
use super::counters::{MethodTable, ThreadCounters};
use super::histogram::Merged;
use super::moves::{MoveCounts, MoveEvent};
use super::prometheus;
use super::refusals::{RefusalReason, Refusals};
use crate::transport::LaneReason;
use crate::wire::Status;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A handle to the counters of a server or a channel. Reading them does not delay the threads that count.
#[derive(Clone)]
pub struct Metrics {
    side: &'static str,
    methods: Arc<MethodTable>,
    threads: Vec<Arc<ThreadCounters>>,
    refusals: Vec<Arc<Refusals>>,
    connections: Vec<Arc<Connections>>,
    moves: Arc<MoveCounts>,
}

impl Metrics {
    pub(crate) fn new(
        side: &'static str,
        methods: Arc<MethodTable>,
        threads: Vec<Arc<ThreadCounters>>,
    ) -> Self {
        let (refusals, connections, moves) = (Vec::new(), Vec::new(), Arc::default());
        Metrics { side, methods, threads, refusals, connections, moves }
    }

    /// Adds up what these threads refuse, too.
    pub(crate) fn with_refusals(self, refusals: Vec<Arc<Refusals>>) -> Self {
        Metrics { refusals, ..self }
    }

    /// Shows the connections of these threads, too.
    pub(crate) fn with_connections(self, connections: Vec<Arc<Connections>>) -> Self {
        Metrics { connections, ..self }
    }

    /// Shows these moves, too.
    pub(crate) fn with_moves(self, moves: Arc<MoveCounts>) -> Self {
        Metrics { moves, ..self }
    }

    /// `"server"` or `"client"`.
    pub fn side(&self) -> &'static str {
        self.side
    }

    /// All counters at present, added up over the threads.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let rows = self.methods.names.iter().enumerate();
        let methods = rows.map(|(row, names)| self.method(row, *names)).collect();
        MetricsSnapshot { methods, refusals: self.refusals().collect() }
    }

    /// All counters at present, in the text format of Prometheus (OpenMetrics).
    pub fn prometheus(&self) -> String {
        prometheus::text(self)
    }

    /// How often peers and messages were refused so far, for each reason. Always 0 at a client.
    pub fn refusals(&self) -> impl Iterator<Item = (RefusalReason, u64)> + '_ {
        RefusalReason::ALL
            .iter()
            .map(|&reason| (reason, self.refusals.iter().map(|thread| thread.of(reason)).sum()))
    }

    /// The open connections of a server, `most` at most; those of the first thread come first. None at a client.
    ///
    /// A server that runs as always has noted what comes and goes within a turn of its thread.
    pub fn connections(&self, most: usize) -> Vec<OpenConnection> {
        let mut listed = Vec::new();
        for (thread, connections) in self.connections.iter().enumerate() {
            listed.extend(connections.list(thread, most - listed.len()));
        }
        listed
    }

    /// How many connections a server has open, by the backend of the lane that was opened last. A backend that had one before is named,
    /// too.
    pub fn connections_by_backend(&self) -> BTreeMap<&'static str, u64> {
        let mut open = BTreeMap::new();
        self.connections.iter().for_each(|thread| thread.count_open(&mut open));
        open
    }

    /// How many lanes clients have opened so far, by backend and by the reason that they gave.
    pub fn lanes_opened(&self) -> BTreeMap<(&'static str, LaneReason), u64> {
        let mut lanes = BTreeMap::new();
        self.connections.iter().for_each(|thread| thread.count_lanes(&mut lanes));
        lanes
    }

    /// How often the connection of a client has done that so far, reconnections included. Always 0 at a server, and for a connection
    /// that does not move among backends.
    pub fn moves(&self, event: MoveEvent) -> u64 {
        self.moves.of(event)
    }

    fn method(
        &self,
        row: usize,
        (service, method): (&'static str, &'static str),
    ) -> MethodSnapshot {
        let mut snapshot = MethodSnapshot {
            service,
            method,
            started: 0,
            stolen: 0,
            ended: [0; Status::COUNT],
            latency: Merged::new(),
        };
        let rows = || self.threads.iter().map(|thread| &thread.rows[row]);
        // Ended calls are read before started ones, so that the number in flight is never negative.
        for counters in rows() {
            for (into, from) in snapshot.ended.iter_mut().zip(&counters.ended) {
                *into += from.load(Relaxed);
            }
            snapshot.latency.add(&counters.latency);
        }
        snapshot.stolen = rows().map(|counters| counters.stolen.load(Relaxed)).sum();
        snapshot.started = rows().map(|counters| counters.started.load(Relaxed)).sum();
        snapshot
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("side", &self.side).finish_non_exhaustive()
    }
}

/// All methods' counters at one moment.
#[derive(Clone, Debug)]
pub struct MetricsSnapshot {
    /// One for each method, and a last one for calls of unknown methods.
    pub methods: Vec<MethodSnapshot>,
    refusals: Vec<(RefusalReason, u64)>,
}

impl MetricsSnapshot {
    /// The counters of one method.
    pub fn method(&self, service: &str, method: &str) -> Option<&MethodSnapshot> {
        self.methods.iter().find(|m| m.service == service && m.method == method)
    }

    /// How often peers and messages were refused for that reason. Always 0 at a client.
    pub fn refused(&self, reason: RefusalReason) -> u64 {
        self.refusals.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count)
    }

    /// Calls of all methods.
    pub fn calls(&self) -> u64 {
        self.methods.iter().map(MethodSnapshot::calls).sum()
    }
}

/// One method's counters at one moment.
#[derive(Clone, Debug)]
pub struct MethodSnapshot {
    /// The service's name.
    pub service: &'static str,
    /// The method's name.
    pub method: &'static str,
    started: u64,
    stolen: u64,
    ended: [u64; Status::COUNT],
    latency: Merged,
}

impl MethodSnapshot {
    /// Calls so far, those in flight included.
    pub fn calls(&self) -> u64 {
        self.started
    }

    /// Calls that have started and not ended.
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended.iter().sum())
    }

    /// Calls that an idle thread ran for one that was behind. Always 0 at a client, and without
    /// [work stealing](crate::ServerBuilder::work_stealing).
    pub fn stolen(&self) -> u64 {
        self.stolen
    }

    /// Calls that returned a value.
    pub fn ok(&self) -> u64 {
        self.ended[Status::Value as usize]
    }

    /// Calls that failed, by kind: `("service_error", 3)`. Kinds without calls are left out.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.outcomes().skip(1).filter(|(_, n)| *n > 0)
    }

    /// Calls that have ended, by kind, including kinds without calls.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Status::ALL.into_iter().map(|status| (status.name(), self.ended[status as usize]))
    }

    /// The latency below which this fraction (0.5, 0.99, ..) of the calls stayed, within 3 %. Zero before the first call.
    pub fn latency(&self, part: f64) -> Duration {
        Duration::from_nanos(self.latency.quantile(part))
    }

    /// The longest latency of a call.
    pub fn max_latency(&self) -> Duration {
        Duration::from_nanos(self.latency.max)
    }

    /// The histogram of latencies in nanoseconds, to merge with others or to read other quantiles.
    pub fn histogram(&self) -> hdrhistogram::Histogram<u64> {
        const SIGNIFICANT_DIGITS: u8 = 2;
        let highest = self.latency.max.max(2);
        let mut histogram =
            hdrhistogram::Histogram::new_with_bounds(1, highest, SIGNIFICANT_DIGITS)
                .expect("1 to at least 2, with 2 digits, are valid bounds");
        for (value, times) in self.latency.values() {
            histogram.saturating_record_n(value, times);
        }
        histogram
    }

    pub(super) fn merged(&self) -> &Merged {
        &self.latency
    }
}
