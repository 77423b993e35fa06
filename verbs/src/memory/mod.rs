//! Memory of a device: private memory, which only its owner touches, and shared memory, which peers may
//! access.

pub(crate) mod bytes;
mod drafts;
pub(crate) mod growing_queue;
pub(crate) mod mapping;
mod part;
mod persistent;
pub(crate) mod prefetch;
mod private;
mod publication;
pub(crate) mod region;
mod remote;
mod shared;
pub(crate) mod stores;
mod thresholds;
pub(crate) mod window;

pub use drafts::Drafts;
pub use part::PartRegistration;
pub use persistent::PersistentRegion;
pub use prefetch::ReadAhead;
pub use private::{Buffer, BufferPool, PrivateRegion};
pub use publication::Publication;
pub use remote::{RemoteRegion, RemoteSlice};
pub(crate) use shared::WATCHED_ELSEWHERE;
pub use shared::{Access, SharedRegion, SharedSlice, Wake};
pub use window::{MemoryWindow, WindowError};
