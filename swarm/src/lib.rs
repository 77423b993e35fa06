//! farcall under random faults on a simulated rack, a seed at a time.
//!
//! A seed draws a rack, a backend, what goes wrong, and what its clients ask. `farcall-kv`'s own service and store run on
//! one node, with a write-ahead log in persistent memory under them; clients on other nodes call it, poll-mode ones and
//! those whose calls are futures, with deadlines, cancellations and windows, over connections that break. Nodes are paused, killed, restarted, and lose their power;
//! ways are cut, one way too; messages are lost and late, WRITEs land late and in any order; datagrams are lost by the
//! fifth, come twice, and after all that was sent within a second. Meanwhile must hold:
//!
//! - every call ends by its deadline, in an answer or in an error that may happen;
//! - it runs at most once, and not at all if its error promises that;
//! - what it brings is what somebody has put, byte for byte;
//! - each key is a register: what was acknowledged stays, through every loss of power;
//!
//! and when nothing goes wrong any more: everybody connects, every call is answered at once, a whole window of
//! them as well, and when the clients have gone the server holds nothing of theirs (safety, then liveness, as
//! TigerBeetle's simulator has them). The same seed is the same run: a failing one is [run](run_seed) again with a trace.
//!
//! Beside that, each seed plays a case of the backends' own conformance suite. Its cases expect that all goes well in
//! the end, so on their rack goes wrong only what a connection makes up for.
//!
//! That the swarm can find anything is seen by [`Mutation`]s, which plant a bug.
#![forbid(unsafe_code)]
#![cfg(feature = "sim")]

mod caller;
mod client;
mod dice;
mod kv;
mod log;
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

pub use mutation::Mutation;
pub use outcome::{Outcome, quiet_panics};
pub use records::Counts;
pub use sweep::{Setting, Sweep, run_seed, sweep};
pub use trace::{Trace, TraceFile};
