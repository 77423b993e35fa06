//! Bulk calls: a handler says where data lie or may be put, the client moves them, and says so.
//!
//! The handler answers with a [`Download`] or an [`Upload`], and the server's threads do not touch the data: the client reads or writes
//! [lent memory](crate::memory) itself. What the call is about is in that value, and only the transfer gives it out. So a transfer cannot be
//! forgotten.
//!
//! ```
//! use std::time::Duration;
//!
//! use farcall::Server;
//! use farcall::bulk::{Bulk, BulkClient, BulkError, BulkServer, Download, Upload};
//! use farcall::memory::{Memory, MemoryServer, Region, RemoteMemory};
//!
//! #[farcall::service]
//! trait Images {
//!     /// The width of the image, and its pixels.
//!     fn load(&self) -> Result<Download<u32>, BulkError>;
//!     /// Gives the sum of the pixels that are put.
//!     fn store(&self, len: u64) -> Result<Upload<u64>, BulkError>;
//! }
//!
//! struct Store {
//!     bulk: Bulk,
//!     pixels: Region,
//! }
//!
//! const LEASE: Duration = Duration::from_secs(10);
//!
//! impl Images for Store {
//!     fn load(&self) -> Result<Download<u32>, BulkError> {
//!         self.bulk.offer(640, [(&self.pixels, 0..4096)], LEASE)
//!     }
//!
//!     fn store(&self, len: u64) -> Result<Upload<u64>, BulkError> {
//!         let pixels = self.pixels.clone();
//!         self.bulk.accept([(&self.pixels, 0..len)], LEASE, move || {
//!             let mut bytes = vec![0; len as usize];
//!             pixels.read(0, &mut bytes);
//!             bytes.iter().map(|byte| u64::from(*byte)).sum()
//!         })
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = format!("shm://bulk-doc-{}", std::process::id());
//! let memory = Memory::new()?;
//! let (bulk, pixels) = (Bulk::new(&memory), memory.region(4096)?);
//! let server = Server::builder()
//!     .service(ImagesServer::new(Store { bulk: bulk.clone(), pixels }))
//!     .service(MemoryServer::new(memory))
//!     .service(BulkServer::new(bulk))
//!     .listen(&address)?;
//!
//! let images = ImagesClient::connect(&address).also::<RemoteMemory>().also::<BulkClient>().wait()?;
//! let bulk = BulkClient::of(images.channel())?;
//! assert_eq!(images.store(100).wait()?.write(&bulk, [vec![3; 100]]).wait()?, 300);
//! let (width, pixels) = images.load().wait()?.read(&bulk).wait()?;
//! assert_eq!((width, &pixels[0][..100]), (640, &[3; 100][..]));
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! # When memory is lent
//!
//! From the handler's answer until the client has said that the transfer is over, or until the lease ends, if the client is gone. Then nothing
//! lands any more, and the memory may be used for something else. As long as it is lent, the owner changes nothing that is read, and uses
//! nothing that is written: what a client reads otherwise is a mixture.

mod error;
mod owner;
mod service;
mod transfer;
mod values;

pub use self::error::BulkError;
pub use self::owner::{Bulk, BulkSnapshot, MAX_PARTS, MAX_TRANSFERS};
/// The service by which clients tell a [`Bulk`] that a transfer is over. For [`Authentication::permit`](crate::Authentication::permit) its name
/// is `farcall.bulk`.
pub use self::service::BulkTransfersServer as BulkServer;
pub use self::transfer::{BulkClient, Transfer};
pub use self::values::{Download, Upload};
