//! Large messages over reliable queue pairs, by one-sided operations that the client drives (Octopus, ATC 2017, section
//! 3.3: client-active I/O).
//!
//! A request larger than a slot is *announced*; the server *grants* a landing ring; the client WRITEs the request there
//! in chunks, and the server copies each chunk out while the next one is written. A larger response is *lent*: the client
//! READs it, and releases it. What is in a [buffer](crate::buffers) of the program's is not copied into such memory, and has no landing ring: a
//! response is lent there, and a request is READ by the server. The memory for both is bounded, and clients that must wait for it take turns.
//!
//! A backend carries the control messages of [`wire`] and the immediates that announce chunks; everything else is here.

mod chunks;
pub(crate) mod client;
mod reads;
pub(crate) mod server;
pub(crate) mod source;
pub(crate) mod wire;

pub(crate) use chunks::{LONGEST_CHUNK_BYTES, MOST_OPERATIONS, RING_CHUNKS};
pub(crate) use reads::Read;
