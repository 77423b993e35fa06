//! The traits of a backend: it moves whole messages between one client and one server thread.
//!
//! Everything here is poll-mode: a poll does what can be done now and returns. A transport never blocks, never reads a clock
//! and never sleeps; the driver of its thread reads the clock and sleeps, at the thread's [`Site`](crate::site::Site).

mod address;
mod advice;
mod client;
mod connection;
mod layer;
mod message;
mod request_layer;
mod server;
mod server_layer;
mod setup;
mod tls;

pub use address::{ParseAddress, ServerAddress, ToAddress};
pub(crate) use advice::with_advice;
pub use advice::{Adviser, ThreadLoad, advice_in};
pub use client::{
    Armed, Body, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId, Usage,
    post_copied_request,
};
pub use connection::{ClientEvent, ClientId, ClientInfo, ConnectionId, Lane, LaneInfo, LaneReason};
pub use layer::ClientLayer;
pub use message::{MESSAGE_HEADER_BYTES, Message};
pub use request_layer::RequestLayer;
pub use server::{
    CallToken, MIN_REPLY_BYTES, Replies, RequestSink, ServerTransport, WindDown, post_copied_reply,
};
pub use server_layer::ServerLayer;
pub use setup::{
    Acceptor, BindOptions, Binding, Bound, BoundHalf, Dial, DialOptions, NewConnection, Renewal,
};
pub use tls::{BindTls, DialTls};
