//! How two ends meet before any data flows: one dials, the other listens, and both shake hands over a socket.
//!
//! What does not need a socket is public, so that a simulated network can do the same: [`Admission`], [`Attempt`],
//! [`ServerHalves`], [`end_with_peer`], [`Follower`].

mod accept;
mod admission;
mod attempt;
mod deadline_stream;
mod descriptors;
mod device;
mod dial;
mod dialers;
mod follow_time;
mod handshakes;
mod listen;
mod liveness;
mod liveness_layer;
mod moving;
mod nonce;
mod renewal;
mod server_halves;
mod shared_time;
mod socket;
#[cfg(test)]
mod tests;
mod waiting;
mod workers;

pub use admission::{Admission, Admitted, NewIds};
pub use attempt::Attempt;
pub use device::DeviceError;
pub use liveness::OnPeerGone;
pub use liveness_layer::end_with_peer;
pub use moving::{adviser, can_go_elsewhere, seed_of, ways_among};
pub use server_halves::{Intakes, MostClients, ServerHalves, check_services, places};
pub use shared_time::{ASK_EVERY, ClockSample, Follower};
