//! What two ends agree on before any data flows: frames, and a state machine for each end.
//!
//! ```text
//! client                               server
//!   Hello (backend, service, terms) ->   check credentials, version, backend, service
//!                                        make a queue pair and regions, connect it
//!   compare the methods             <-   Methods, in pages, if the fingerprints differ
//!   connect the queue pair          <-   Welcome (terms), or Reject
//!   Ready                           ->   a server thread takes the client over
//! ```
//!
//! The machines take bytes and give bytes. They know no socket, no clock and no backend: sockets and the simulated rack
//! drive the same ones. Afterwards both ends keep the socket open as the liveness socket: when it closes, the other end
//! is gone.

mod client;
mod frame;
#[cfg(test)]
mod fuzz;
mod methods;
mod offer;
mod server;
mod versions;

pub use client::{Agreement, ClientHandshake, Refusal};
pub use frame::{Frame, FrameError, FrameReader, Hello, MAX_BODY_BYTES, Reject, Welcome};
pub use methods::{MAX_METHODS, MethodEntry, MethodsError};
pub use offer::Offer;
pub use server::{Greeting, ServerHandshake, ServerStep};
pub use versions::{SPOKEN, Versions};
