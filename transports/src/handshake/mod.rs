//! What two ends agree on before any data flows, as a state machine of bytes.
//!
//! ```text
//! client                               server
//!   Hello (backend, service, terms) ->   check credentials, version, backend, service, fingerprint
//!                                        make a queue pair and regions, connect it
//!   connect the queue pair          <-   Welcome (terms), or Reject
//!   Ready                           ->   a server thread takes the client over
//! ```
//!
//! Over TCP both ends then keep the socket, silently, as long as the connection: when it closes, the
//! other end is gone.

#[cfg(test)]
mod fuzz;
mod message;
mod reception;

pub use message::{
    Frame, FrameError, Hello, MAX_BODY_BYTES, PREFIX_BYTES, PROTOCOL_VERSION, Reject, Terms,
    Welcome,
};
pub use reception::Reception;
pub(crate) use reception::within;
