//! What every farcall backend must do, as a suite generic over the backend.
//!
//! A [`Fixture`] says how to make addresses, servers and processes for one backend on one device. The suite's
//! [cases](mod@cases), and those of the backend's entry in [`backends`], then run as the tests of a binary without the usual
//! harness (`harness = false`):
//!
//! ```no_run
//! # use std::{process::ExitCode, sync::Arc};
//! # use farcall_transports_conformance::{Harness, addresses::AddressFixture};
//! fn main() -> ExitCode {
//!     let fixture = AddressFixture::new("shm://conformance?backend=write_imm").expect("an address");
//!     Harness::new().suite("write_imm", Arc::new(fixture)).run()
//! }
//! ```
//!
//! or one after the other: [`run_all`].
//!
//! Nearly every case is driven by one thread, whose waits go through its [`World`], so it also runs where time is virtual. The
//! others say what they [need](Need); where that is missing they are ignored, with the reason.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod backends;
mod case;
pub mod cases;
pub mod dice;
pub mod evolving;
pub mod fixture;
mod gates;
mod harness;
pub mod hostile;
pub mod inspect;
mod list;
mod patience;
pub mod pattern;
pub mod ports;
pub mod process;
#[cfg(feature = "sim")]
pub mod rack;
mod runner;
pub mod service;
pub mod setup;
pub mod sharing;
#[cfg(feature = "tls")]
pub mod tls;
pub mod world;

pub use case::{Case, Need};
pub use fixture::{Capabilities, Fixture, Served};
pub use harness::Harness;
pub use list::{COMMON, cases_of};
pub use patience::{PATIENCE_VARIABLE, patient};
pub use runner::{Outcome, Tally, ignored, run, run_all};
pub use setup::Setup;
pub use world::World;
