//! Calls in the numbered slots of a window, over one reliable connection: both halves of the protocol, whatever carries
//! its messages.
//!
//! A client has a window of slots. A request belongs to a slot, and the response frees it: also that of a call that
//! was given up. Each message names its slot in an immediate, and the use of the slot by a generation. A request
//! larger than a slot is announced, granted room and written there in chunks; a larger response is lent, read by the client
//! and released. What is in a [buffer](crate::buffers) of the program's is read by the peer where it is. The [rendezvous](crate::rendezvous) moves both.
//!
//! A backend says with a [`Carrier`](carrier::Carrier) how a message of a slot travels, where it is found when it has
//! arrived, and which receives it takes.

pub(crate) mod accept;
pub(crate) mod carrier;
pub(crate) mod cells;
pub(crate) mod client;
mod connection;
pub(crate) mod features;
mod fetching;
mod free_slots;
mod large;
pub(crate) mod link;
pub(crate) mod operations;
mod replies;
pub(crate) mod requests;
mod server;
mod window;
pub(crate) mod wire;
pub(crate) mod writes;

#[cfg(test)]
pub(crate) mod tests;
