//! Memory that a server lends: clients read, write, swap and count in it, and no handler of yours runs.
//!
//! The server has [`Memory`], serves it, and lends parts of its regions. A lend is a [`Remote`], plain data, which a service of your own
//! tells its clients in an answer. A client does with it what the lend permits, through a [`RemoteMemory`] of its connection.
//!
//! ```
//! use farcall::Server;
//! use farcall::memory::{Memory, MemoryServer, Region, Remote, RemoteMemory, Rights, Until};
//!
//! #[farcall::service]
//! trait Table {
//!     /// Where the rows are.
//!     fn rows(&self) -> Remote;
//! }
//!
//! #[derive(Clone)]
//! struct Rows(Region);
//!
//! impl Table for Rows {
//!     fn rows(&self) -> Remote {
//!         self.0.lend(.., Rights::READ | Rights::ATOMIC, Until::REVOKED).expect("there are few lends")
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = format!("shm://memory-doc-{}", std::process::id());
//! let memory = Memory::new()?;
//! let rows = memory.region(4096)?;
//! rows.write(64, b"a row");
//! let server = Server::builder()
//!     .service(TableServer::new(Rows(rows)))
//!     .service(MemoryServer::new(memory))
//!     .listen(&address)?;
//!
//! let table = TableClient::connect(&address).also::<RemoteMemory>().wait()?;
//! let memory = RemoteMemory::on(table.channel())?;
//! let rows = table.rows().wait()?;
//! assert_eq!(&memory.read(&rows.slice(64..69)?).wait()?[..], b"a row");
//! assert_eq!(memory.fetch_add(&rows.word(0)?, 1).wait()?, 0);
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! [`Memory::revoke`] ends a lend for certain: when it returns, nothing lands any more, and later operations get an error.
//! [`Memory::start_revoke`] is for those who await.
//!
//! # How operations travel
//!
//! As [calls](Carrier::Calls) of a built-in service, over every backend and every device: the server's thread does them. Or
//! [one-sided](Carrier::OneSided), if the client asks for that by [`RemoteMemory::one_sided`]: by a queue pair of the client's, without the
//! server's CPU, on shared memory, on RDMA devices ([`Memory::open`]) and on simulated racks ([`Memory::on`]). [`RemoteMemory::caps`] tells
//! which. Threads that own their connection have [`PollMemory`]. What an operation refuses, and in which words, does not depend on it.

mod client;
mod lane;
mod operation;
mod poll;
mod service;
mod usage;

pub use farcall_transports::remote_memory::{
    AllocError, BatchError, Borrower, Counted, Denied, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS,
    MAX_OPERATION_BYTES, Memory, MemoryError, MemorySnapshot, OldestLend, Outcome, Region, Remote,
    Rights, Until,
};

pub use self::client::{Batch, Capabilities, Carrier, Completion, Flusher, RemoteMemory};
pub use self::operation::{BatchCall, MemoryCall};
pub use self::poll::{Outcomes, PendingBatch, PollBatch, PollMemory};
/// The service by which a server lends its [`Memory`]. For [`Authentication::permit`](crate::Authentication::permit) its name is
/// `farcall.memory`.
pub use self::service::LentMemoryServer as MemoryServer;
pub use self::usage::{MemoryUsage, register};
