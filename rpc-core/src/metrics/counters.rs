//! Counters of one thread.

use super::histogram::{Histogram, add};
use crate::service::ServiceDescription;
use crate::wire::Status;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use crossbeam_utils::CachePadded;

/// One row per method, and a last one for calls of unknown methods.
pub(crate) struct MethodTable {
    pub(super) names: Vec<(&'static str, &'static str)>,
    pub(super) ids: Vec<u32>,
}

impl MethodTable {
    /// Rows in the order of the services, and of the methods in them.
    pub(crate) fn new(services: &[&'static ServiceDescription]) -> Self {
        let methods = || services.iter().flat_map(|s| s.methods.iter().map(move |m| (*s, m)));
        let mut names: Vec<_> = methods().map(|(s, m)| (s.name, m.name)).collect();
        names.push(("unknown", "unknown"));
        MethodTable { names, ids: methods().map(|(_, m)| m.id).collect() }
    }

    /// The row of calls of unknown methods.
    pub(crate) fn unknown(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.names.len()
    }

    /// The row of a method, found by a scan: services have few methods. Servers have a table for this.
    pub(crate) fn row(&self, id: u32) -> u32 {
        self.ids.iter().position(|i| *i == id).unwrap_or(self.ids.len()) as u32
    }
}

/// Counters of one thread; only that thread writes them.
pub(crate) struct ThreadCounters {
    pub(super) rows: Box<[CachePadded<Row>]>,
}

pub(super) struct Row {
    pub(super) started: AtomicU64,
    pub(super) stolen: AtomicU64,
    pub(super) ended: [AtomicU64; Status::COUNT],
    pub(super) latency: Histogram,
}

impl ThreadCounters {
    pub(crate) fn new(methods: &MethodTable) -> Self {
        let row = |_| {
            CachePadded::new(Row {
                started: AtomicU64::new(0),
                stolen: AtomicU64::new(0),
                ended: Default::default(),
                latency: Histogram::new(),
            })
        };
        ThreadCounters { rows: methods.names.iter().map(row).collect() }
    }

    /// With the memory of all latencies: a server thread measures some of its calls, and may come to the first one of a method at any time.
    pub(crate) fn of_server_thread(methods: &MethodTable) -> Self {
        let counters = ThreadCounters::new(methods);
        counters.rows.iter().for_each(|row| row.latency.prepare());
        counters
    }

    #[inline]
    pub(crate) fn started(&self, row: u32) {
        add(&self.rows[row as usize].started, 1);
    }

    /// A call was given to another thread.
    #[inline]
    pub(crate) fn stolen(&self, row: u32) {
        add(&self.rows[row as usize].stolen, 1);
    }

    #[inline]
    pub(crate) fn ended(&self, row: u32, status: Status) {
        add(&self.rows[row as usize].ended[status as usize], 1);
    }

    /// All calls that have started and not ended have ended like this.
    #[cold]
    pub(crate) fn end_all(&self, status: Status) {
        for row in &self.rows {
            let ended: u64 = row.ended.iter().map(|count| count.load(Relaxed)).sum();
            let left = row.started.load(Relaxed).saturating_sub(ended);
            add(&row.ended[status as usize], left);
        }
    }

    #[inline]
    pub(crate) fn latency(&self, row: u32, nanos: u64, times: u64) {
        self.rows[row as usize].latency.record(nanos, times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_thread_has_memory_for_latencies_before_it_measures_one() {
        let methods = MethodTable::new(&[]);
        let is_prepared =
            |counters: ThreadCounters| counters.rows.iter().all(|row| row.latency.is_prepared());
        assert!(is_prepared(ThreadCounters::of_server_thread(&methods)));
        assert!(!is_prepared(ThreadCounters::new(&methods)));
    }
}
