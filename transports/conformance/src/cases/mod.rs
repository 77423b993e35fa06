//! The cases, each a function with one idea.

pub mod any_executor;
pub mod cancellation;
pub mod counting;
pub mod crowds;
pub mod deadlines;
pub mod deaths;
pub mod endings;
pub mod failures;
pub mod hostile_handshakes;
pub mod idle;
pub mod lanes;
pub mod quotas;
pub mod refusals;
pub mod sizes;
pub mod slow;
pub mod swarm;
pub mod versions;
pub mod windows;
