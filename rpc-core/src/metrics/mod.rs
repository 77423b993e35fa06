//! Counters and latencies of calls, by method, counters of refusals and moves, and the open connections: cheap to update, merged when read.
//!
//! Each thread has counters of its own in its own cache lines. It is their only writer, so it needs no lock and no atomic
//! read-modify-write. A reader adds up the threads.

mod connections;
mod counters;
mod histogram;
mod moves;
mod prometheus;
mod refusals;
mod snapshot;

pub(crate) use connections::{Connections, LaneKey};
pub use connections::{OpenConnection, OpenLane};
pub(crate) use counters::{MethodTable, ThreadCounters};
pub use moves::{MoveCounts, MoveEvent};
pub use prometheus::register;
pub use refusals::{RefusalReason, Refusals};
pub use snapshot::{MethodSnapshot, Metrics, MetricsSnapshot};
