//! What every farcall backend must do, as a suite generic over the backend.
//!
//! A [`Fixture`] says how to make addresses, servers and processes for one backend on one device. The suite's
//! [cases](mod@cases) then run as tests, one `#[test]` each:
//!
//! ```ignore
//! farcall_transports_conformance::conformance_tests!(AddressFixture::new(..));
//! ```
//!
//! or, where there is no test harness, from a list: [`run_all`].
//!
//! Nearly every case is driven by one thread, whose waits go through its [`World`]: where time is virtual, the same
//! case runs. The others say what they need, and are skipped where that is missing.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod cases;
pub mod dice;
pub mod fixture;
mod gates;
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
pub mod world;

pub use fixture::{Capabilities, Fixture, Served};
pub use list::CASES;
pub use patience::{PATIENCE_VARIABLE, patient};
pub use runner::{Case, Need, Outcome, Tally, assert_passes, run, run_all};
pub use setup::Setup;
pub use world::World;
