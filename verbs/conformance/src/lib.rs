//! What every farcall verbs device must do, as a suite generic over the device.
//!
//! Each [`Case`] is one rule of the InfiniBand specification, or one promise of `farcall-verbs`, written
//! against its public API only. A case has two ends, an initiator and a target, which run the same
//! `async` function by their [`Role`]; besides the device they have a [`Link`], over which they
//! synchronize. A [`Fixture`] decides where the ends run: in two threads, in two processes,
//! on two machines, or in turn in one thread (as a device in virtual time needs it). Every wait is bounded, by the
//! device's own clock.
//!
//! A device runs the suite in a test file of its own, without the usual harness (`harness = false`):
//!
//! ```no_run
//! use farcall_verbs_conformance::{Harness, Threads};
//!
//! fn main() -> std::process::ExitCode {
//!     Harness::new().suite("threads", Threads::on("shm")).run()
//! }
//! ```
//!
//! or one case after the other: [`run_all`], as the program `device-conformance` does from a command line. A case that
//! [needs](Need) what the device or the fixture does not [offer](Offer) is ignored, with the reason.
//!
//! Ends call into the device while they wait for what the device must bring; a device need not make
//! progress on work of an end that does not poll.
#![forbid(unsafe_code)]

mod case;
mod cases;
pub mod drive;
mod end;
mod faults;
mod fixture;
mod harness;
#[cfg(feature = "faults")]
mod layers;
mod link;
mod list;
mod need;
mod rig;
mod usage;
mod verdict;

pub use case::{Applicability, Body, Case, Outcome, Tally, find, run_all};
pub use end::{CountUsage, End, PATIENCE_NS, Powers, Role, turn};
pub use faults::{faults, open_as_child};
#[cfg(feature = "sim")]
pub use fixture::Simulated;
pub use fixture::{Except, Fixture, Machines, OneThread, Processes, Threads, play_as_child, serve};
pub use harness::Harness;
#[cfg(feature = "faults")]
pub use layers::in_layers;
pub use link::{ChannelLink, Link, LinkClosed, StreamLink, WRITE_TIMEOUT};
pub use list::cases;
pub use need::{Need, Offer};
pub use usage::Usage;
pub use verdict::{CaseResult, Halt, Verdict};
