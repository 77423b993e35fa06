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
//! A server that shares the time slices of another asks it for its time instead of saying hello: `AskTime`, and the answer is `Time`, or
//! `Reject`.
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
mod time;
mod versions;

pub use client::{Agreement, ClientHandshake, Refusal};
pub use frame::{Frame, FrameError, FrameReader, Hello, MAX_BODY_BYTES, Reject, TimeTold, Welcome};
pub use methods::{MAX_METHODS, MethodEntry, MethodsError};
pub use offer::Offer;
pub use server::{Greeting, ServerHandshake, ServerStep};
pub use time::{NoTime, TimeQuestions};
pub use versions::{SPOKEN, Versions};
