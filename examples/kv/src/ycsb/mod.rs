//! The YCSB core workloads, with a check of every answer.
//!
//! The mixes and request distributions are those of the original (Cooper et al., SoCC 2010, and its
//! `CoreWorkload`), with three differences. A record is one value, so an update writes all its fields
//! (`writeallfields=true`). A client keeps a window of operations in flight instead of one. Half of the
//! keys have a single writer each, so that their content can be checked exactly (see [`check`]).

pub mod check;
pub mod client;
pub mod keys;
pub mod latency;
pub mod records;
pub mod stamp;
pub mod workload;
