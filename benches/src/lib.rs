//! Benchmarks of farcall, as ratios against the limit measured in the same run.
#![forbid(unsafe_code)]

pub mod clock;
pub mod cores;
pub mod latency;
pub mod limit;
pub mod report;
