//! What a backend is to core: it moves whole messages between one client and one server thread.
//!
//! Everything here is poll-mode: a poll does what can be done now and returns. Nothing here blocks, reads a clock or sleeps;
//! a transport hangs on the [`Site`](crate::site::Site) of its thread, which does the last two.

mod client;
mod layer;
mod message;
mod server;
mod setup;

pub use client::{ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId};
pub use layer::ClientLayer;
pub use message::Message;
pub use server::{CallToken, MIN_REPLY_BYTES, Replies, RequestSink, ServerTransport, WindDown};
pub use setup::{Acceptor, BindOptions, Binding, Bound, Dial, DialOptions};
