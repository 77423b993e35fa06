//! The YCSB core workloads, with every answer checked.
//!
//! The mixes and request distributions are the original's (Cooper et al., SoCC 2010, and its
//! `CoreWorkload`). Three things differ, and are said here: a record is one value, so an update
//! writes all its fields (`writeallfields=true`); a client keeps a window of operations in flight
//! instead of one; and half of the keys have a single writer each, so that what they hold can be
//! checked exactly (see [`check`]).

pub mod check;
pub mod client;
pub mod keys;
pub mod latency;
pub mod records;
pub mod stamp;
pub mod workload;
