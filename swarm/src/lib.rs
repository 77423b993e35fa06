//! Tests farcall under random faults on a simulated rack, one seed at a time.
//!
//! A seed determines a rack, a backend, the faults, and the clients' calls. `farcall-kv`'s service and store run
//! on one node, with a write-ahead log in persistent memory. Clients on other nodes call it, both polled clients
//! and clients whose calls are futures, with deadlines, cancellations and windows, over connections that break.
//! Nodes are paused, killed and restarted, and lose their power. Connections between nodes are cut in one or both
//! directions. Messages are lost and delayed, and WRITEs land late and in any order. Up to a fifth of the
//! datagrams are lost; others are duplicated, or delayed by up to a second. Meanwhile these properties must hold:
//!
//! - every call ends by its deadline, with a response or an allowed error;
//! - a call runs at most once, and not at all if its error promises that;
//! - what it returns is what a client has put, byte for byte;
//! - each key is a linearizable register: acknowledged writes survive every power failure;
//!
//! After the faults, every client can connect, every call is answered promptly, even a whole window of them, and
//! once the clients are gone the server holds none of their resources (safety, then liveness, as in TigerBeetle's
//! simulator). The same seed gives the same run, so a failing one can be [run](run_seed) again with a trace.
//!
//! Each seed also runs clients whose connections have several lanes, each over another backend, and several services: lanes are
//! opened, dropped and broken while others go on, and a stranger never gets one. Quotas and limits count connections.
//!
//! Each seed also runs an owner of lent memory and its readers: see what they check in `memory`. On all racks peers' atomics are not atomic
//! with the owner's CPU.
//!
//! If the backend is `hybrid`, it also runs clients that call all the time, so that their connections move: no call is lost, repeated, mistaken
//! for another or held up. One more client has a hostile server, which advises what harms it: that costs the client a bounded part of its calls.
//!
//! It also runs a case of the backends' conformance suite. Its cases expect that every connection
//! survives, so their rack only has faults that a reliable connection repairs.
//!
//! [`Mutation`]s plant bugs, to show that the swarm can find them.
#![forbid(unsafe_code)]
#![cfg(feature = "sim")]

mod advice;
mod caller;
mod client;
mod dice;
mod kv;
mod lanes;
mod log;
mod memory;
mod moves;
mod mutation;
mod outcome;
mod plan;
mod records;
mod register;
mod service;
mod suite;
mod sweep;
mod trace;
mod transport;
mod value;
mod watch;

pub use mutation::Mutation;
pub use outcome::{Outcome, quiet_panics};
pub use records::Counts;
pub use suite::case;
pub use sweep::{Setting, Sweep, run_seed, sweep};
pub use trace::{Trace, TraceFile};
