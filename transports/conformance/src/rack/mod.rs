//! The suite on a simulated rack.

mod fixture;
mod intruder;

pub use fixture::{LastRun, Nodes, RackFixture, last_run};
