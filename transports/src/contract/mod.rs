//! What a backend is: the contract between the backends and everything that uses them.
//!
//! A backend moves whole messages between one client and one server thread. Setting up a connection is split at the
//! bytes that the two ends exchange, so that the same backend works behind a socket, on a simulated rack, or driven by
//! hand:
//!
//! 1. [`Backend::dial`] begins at the client; [`PendingClient::setup`] gives the bytes for the server.
//! 2. [`Intake::accept`] makes the server's end and gives the bytes for the client.
//! 3. [`PendingClient::finish`] makes the client's transport.
//!
//! This module imports no backend. The list of them is the [registry](crate::registry).

mod backend;
mod config;
mod deadline;
mod fabric;
mod on_disconnect;
mod options;
mod places;
mod setup_error;
mod shared_slices;
mod source;
mod stream;
mod terms;

pub use backend::{
    Accepted, Answer, Backend, DeathNotice, Intake, NewClient, NoticedBy, PendingClient,
    ServerHalf, TakeStream,
};
pub use config::{
    Config, MAX_IDLE_TIMEOUT, MAX_MESSAGE_BYTES, MAX_SILENCE, MAX_SLOT_BYTES, MAX_WINDOW,
    MIN_IDLE_TIMEOUT, MIN_MESSAGE_BYTES, MIN_SILENCE,
};
pub(crate) use config::{LEAST_MEMORY_BYTES, default_memory};
pub(crate) use deadline::{bounded, deadline_in};
pub use fabric::{Fabric, Placement, ThreadOf};
pub(crate) use on_disconnect::DropGuard;
pub use on_disconnect::OnDisconnect;
pub use options::{OptionSpec, OptionValues};
pub(crate) use places::{AskForRoom, Calls, Candidate, HalfPlaces, RoomRequest};
pub use places::{ClientLimits, ThreadPlaces};
pub use setup_error::SetupError;
pub use shared_slices::{SharedClock, SharedSlices, SlicePlan, TimeFit};
pub(crate) use source::CountsBySource;
pub use source::Source;
pub use stream::{ByteStream, Stream};
pub use terms::{MIN_SLOT_BYTES, Terms};
