//! What is counted about calls, by method: cheap to count, merged when read.
//!
//! Each thread counts for itself in cache lines of its own, without locks and without atomic read-modify-write: it is
//! the only writer. A reader adds the threads up.

mod counters;
mod histogram;
mod prometheus;
mod snapshot;

pub(crate) use counters::{MethodTable, ThreadCounters};
pub use prometheus::register;
pub use snapshot::{MethodSnapshot, Metrics, MetricsSnapshot};
