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
//! A server with keys asks after the hello, before it makes anything, and a client with a key takes no other answer:
//!
//! ```text
//!   Hello                           ->
//!                                   <-   Challenge (nonce)
//!   Identify (names of key, server) ->
//!   Proof                           ->   check it, ask what the client may use, go on as above
//!                                   <-   Methods, Welcome, or Reject
//!   check it, connect               <-   Proof
//!   Ready                           ->
//! ```
//!
//! Each [proof](Frame::Proof) covers all bytes of both directions before it: so what connects afterwards are the queue
//! pairs of the two ends that have proven themselves, and nobody between them has changed a byte. Within TLS it covers the
//! session, too: both ends of the session have the key.
//!
//! A server that shares the time slices of another asks it for its time instead of saying hello: `AskTime`, and the answer is `Time`, or
//! `Reject`.
//!
//! The machines take bytes and give bytes. They know no socket, no clock and no backend: sockets and the simulated rack
//! drive the same ones. Afterwards both ends keep the socket open as the liveness socket: when it closes, the other end
//! is gone.

#[cfg(test)]
mod authentication;
mod client;
mod disclosure;
mod frame;
#[cfg(test)]
mod fuzz;
mod methods;
mod offer;
mod proof;
#[cfg(test)]
mod samples;
mod server;
mod time;
mod versions;

pub use client::{Agreement, ClientHandshake, ClientStep, Refusal};
pub(crate) use frame::begins_as_frame;
pub use frame::{
    Frame, FrameError, FrameReader, Hello, Identify, MAX_BODY_BYTES, MAX_FRAME_BYTES, MAX_SERVICES,
    NamedService, Reject, TimeTold, Welcome,
};
pub use methods::{MAX_METHODS, MethodEntry, MethodsError};
pub use offer::{Offer, Offered};
pub use proof::{ChannelBinding, Nonce, Proof};
pub use server::{Greeting, ServerHandshake, ServerStep};
pub use time::{NoTime, TimeQuestions};
pub use versions::{SPOKEN, Versions};
