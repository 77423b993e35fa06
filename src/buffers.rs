//! Registered memory that a program owns: large arguments and results that are not copied on their way.
//!
//! A [`Buffer`] of a pool of [`Buffers`] is filled like any other `[u8]`, and becomes `Bytes`. Where a method takes `Bytes` as its only
//! argument, or returns them as its whole result, the peer reads them where they are, into registered memory of its own, which its caller or
//! handler gets as `Bytes`, again without a copy. So there is one copy on shared memory, and none by a CPU where a NIC moves the bytes.
//!
//! ```
//! use farcall::{Bytes, Server};
//! use farcall::buffers::Buffers;
//!
//! #[farcall::service]
//! trait Invert {
//!     fn invert(&self, image: Bytes) -> Bytes;
//! }
//!
//! struct Inverter(Buffers);
//!
//! impl Invert for Inverter {
//!     fn invert(&self, image: Bytes) -> Bytes {
//!         let Ok(mut inverted) = self.0.copy_of(&image) else { return Bytes::new() };
//!         inverted.iter_mut().for_each(|byte| *byte = !*byte);
//!         inverted.freeze()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = format!("shm://buffers-doc-{}", std::process::id());
//! let buffers = Buffers::new()?;
//! let server = Server::builder().service(InvertServer::new(Inverter(buffers.clone()))).listen(&address)?;
//! let client = InvertClient::connect(&address).wait()?;
//! let mut image = buffers.buffer(1 << 20)?;
//! image.fill(0x0f);
//! let inverted = client.invert(image.freeze()).wait()?;
//! assert!(inverted.iter().all(|byte| *byte == 0xf0));
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! # What is copied all the same
//!
//! Buffers of another device than the connection's, arguments and results of several parts, and everything over backends that cannot read
//! a peer's memory: `tcp` and `datagram`. Nothing changes then but the time that it takes.
//!
//! # Bounds
//!
//! A pool has a limit, and [`Buffers::buffer`] fails beyond it. A buffer that was sent is in use until the peer has read it: a request until
//! it is answered, a result until its caller has it. `Bytes` that were received hold memory of the connection. A program may keep
//! them: what it keeps beyond half of the connection's [`memory`](crate::Address) is copied for it, so that others never wait for it, and
//! [`LargeMessageCounts`] tells how often that was.

mod gauges;

pub use farcall_transports::buffers::{
    Buffer, BufferError, Buffers, BuffersSnapshot, LargeMessageCounts, NotValues, View,
};

pub use self::gauges::register;
