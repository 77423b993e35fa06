//! What several tests need: a transport inside the process, and a service written by hand.
#![allow(dead_code, reason = "each test uses its own part")]
#![allow(missing_docs, unreachable_pub, reason = "for tests")]

pub mod bounds;
pub mod corpus;
pub mod intercepted;
pub mod loopback;
pub mod service;
