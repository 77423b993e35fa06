//! Benchmarks of farcall, as ratios against the limit measured in the same run.
#![forbid(unsafe_code)]

use std::time::Duration;

#[cfg(feature = "ablation")]
pub mod ablate;
mod address;
mod chart;
pub mod clock;
pub mod compare;
pub mod cores;
pub mod echo;
#[cfg(feature = "sim")]
pub mod hybrid;
pub mod idle;
pub mod instructions;
pub mod latency;
pub mod limit;
pub mod memory;
#[cfg(feature = "peers")]
pub mod peers;
pub mod process;
mod progress;
#[cfg(feature = "sim")]
pub mod rack_calls;
#[cfg(feature = "sim")]
mod rack_failure;
#[cfg(feature = "sim")]
pub mod rack_peers;
pub mod report;
pub mod scaling;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stealing;

/// The length of a slice, after which calls and limit alternate.
pub const SLICE: Duration = Duration::from_millis(20);
