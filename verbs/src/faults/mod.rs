//! Faults and traces as layers around any device.
//!
//! [`Device::with_faults`](crate::Device::with_faults) puts an injector around a device. The injector sees each
//! work request of its queue pairs before the device does, and each datagram that arrives before its poller
//! does, and decides what becomes of it. The device below is any device; it knows nothing of this. Layers
//! stack: the one added last is asked first, and the others only about what it passes.
//!
//! An injector is often a closure that names kinds of messages by what is in them:
//!
//! ```
//! use std::sync::Arc;
//! use farcall_verbs::faults::{DropWhen, Recorder};
//! use farcall_verbs::{Device, Operation, QpType};
//!
//! # fn main() -> Result<(), farcall_verbs::OpenError> {
//! let passed = Arc::new(Recorder::default());
//! let device = Device::open("shm")?
//!     .with_faults(passed.clone())
//!     .with_faults(Arc::new(DropWhen::new(|request| {
//!         request.ty == QpType::Ud && request.payload.first() == Some(&7)
//!     })));
//! // ... what is sent on queue pairs of this device and does not begin with 7 is counted:
//! assert_eq!(passed.posted(Operation::Send), 0);
//! # Ok(()) }
//! ```
//!
//! Loss, delay and order of a network in virtual time belong to the simulated rack (`farcall_verbs::sim`), which models
//! the network; a layer is what any device can have.
//!
//! Ownership is as without a layer: buffers come back through [`reclaim`](crate::QueuePair::reclaim) in the order of
//! posting, and signaled work requests complete in order. A work request that is dropped or delayed is posted
//! all the same, in a form that no receiver takes, so that the device itself retires it in its turn.

mod completion_queue;
mod copies;
mod injector;
mod layer;
mod pair;
mod queue_pair;
mod random;
mod ready;
mod recorder;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use injector::{FaultInjector, Incoming, Outgoing, PAYLOAD_VIEW_BYTES, Reception, Verdict};
pub use random::RandomFaults;
pub use ready::{DropEvery, DropWhen};
pub use recorder::Recorder;

pub(crate) use completion_queue::CompletionQueue;
pub(crate) use layer::Layer;
pub(crate) use queue_pair::QueuePair;

/// Locks; what a panicking injector leaves behind is whole, as it is asked outside of critical sections.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
