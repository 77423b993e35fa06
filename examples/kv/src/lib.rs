//! A key-value store over farcall.

pub mod limits;
pub mod store;
pub mod tsv;
pub mod ycsb;
