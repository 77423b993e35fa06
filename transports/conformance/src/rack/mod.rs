//! The suite on a simulated rack.

mod fixture;
mod raw_stream;

pub use fixture::{LastRun, Nodes, RackFixture, last_run};
