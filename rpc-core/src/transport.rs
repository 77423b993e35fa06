//! What a backend is to core: it moves whole messages between one client and one server thread.
//!
//! Everything here is poll-mode: a poll does what can be done now and returns. Nothing blocks except the two `park`
//! methods, and nothing reads a clock except `now`, which only the driver of a thread calls, once per turn.

mod client;
mod layer;
mod message;
mod server;
mod setup;
mod thread;

pub use client::{ClientTransport, Limits, ReplySink, SlotId};
pub use layer::ClientLayer;
pub use message::Message;
pub use server::{CallToken, MIN_REPLY_BYTES, Replies, RequestSink, ServerTransport};
pub use setup::{Acceptor, BindOptions, Binding, Bound, Dial, DialOptions};
pub use thread::{ClientThread, ThreadShare};

/// Wakes a parked driver, from any thread.
pub trait Unpark: Send + Sync {
    /// Makes the current `park` of the transport return, or the next one if none is running. Cheap when repeated.
    fn unpark(&self);
}
