//! A key-value store over farcall: the store, the service, and a YCSB that checks every answer.
#![forbid(unsafe_code)]

pub mod limits;
pub mod link;
pub mod service;
pub mod store;
pub mod tsv;
pub mod ycsb;
