//! Counters and latencies of calls, by method, and counters of refusals: cheap to update, merged when read.
//!
//! Each thread has counters of its own in its own cache lines. It is their only writer, so it needs no lock and no atomic
//! read-modify-write. A reader adds up the threads.

mod counters;
mod histogram;
mod prometheus;
mod refusals;
mod snapshot;

pub(crate) use counters::{MethodTable, ThreadCounters};
pub use prometheus::register;
pub use refusals::{RefusalReason, Refusals};
pub use snapshot::{MethodSnapshot, Metrics, MetricsSnapshot};
