//! Ways to make a write durable in memory that another machine lends, and where each is.
//!
//! The bytes of a WRITE pass through the server's NIC, PCIe, with DDIO the last-level cache, and the memory controller, before they are in
//! the medium. The client's completion says only that the NIC has them. How far a way brings them before it ends, and what survives a power
//! cut there ([`Domain`]), decides whether an acknowledged write is durable:
//!
//! | | ADR, DDIO on | ADR, DDIO off | eADR | battery incl. NIC | file |
//! |---|---|---|---|---|---|
//! | [`Way::Write`] | no | no | no | yes | no |
//! | [`Way::WriteThenRead`], [`Way::WriteAndRead`] | no | yes | yes | yes | no |
//! | [`Way::WriteAndCall`], [`Way::Call`] | yes | yes | yes | yes | yes |
//! | [`Way::Flush`] | if [declared](NativeFlush::ThroughCaches) | yes | yes | yes | no |
//!
//! [`Way::durability`] is this table as code, after Kashyap et al. ("Correct, Fast Remote Persistence", arXiv 1909.02092). A test cuts the power of
//! simulated servers in each cell: where it says yes nothing is lost, and where it says no something is.
//!
//! ```
//! use farcall_persist::ways::{Domain, Machine, NativeFlush, Way, auto};
//!
//! // DDIO puts what the NIC writes into a cache that loses its lines: a READ behind the WRITE proves nothing.
//! let server = Machine { domain: Domain::AdrDdioOn, flush: NativeFlush::None };
//! assert_eq!(auto(server, 64).way, Way::Call);
//! let refused = Way::WriteAndRead.durability(server).unwrap_err();
//! assert!(refused.to_string().contains("last-level cache"));
//! ```

mod call;
mod detect;
mod flush;
mod machine;
mod matrix;
mod write;
mod write_and_call;
mod write_and_read;
mod write_then_read;
mod writer;

pub use self::detect::{Found, detect};
pub use self::machine::{Domain, Machine, NativeFlush};
pub use self::matrix::{Choice, Refused, Way, auto};
pub use self::writer::Writer;
