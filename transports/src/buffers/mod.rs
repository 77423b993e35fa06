//! Registered memory that a program owns: it fills a [`Buffer`], sends it in calls without a copy, and gives it back by dropping it.
//!
//! [`Buffers`] is a bounded pool of the memory of one device. A buffer that is [frozen](Buffer::freeze) is a `Bytes` like any other. An end
//! that sends large bytes looks up whether they are memory of such a pool. If so, it tells the peer where they
//! are, and the peer READs them into memory of its own; any other bytes are copied on their way.

mod buffer;
pub(crate) mod export;
mod pool;
mod slab;
mod view;

pub use crate::kit::counts::LargeMessageCounts;
pub use buffer::Buffer;
pub(crate) use buffer::OfPool;
pub use pool::{BufferError, Buffers, BuffersSnapshot};
pub use view::{NotValues, View};
