//! One interface to RDMA devices: shared memory, libibverbs, and a simulated rack.
//!
//! The terms are those of the InfiniBand specification and libibverbs. A [`Device`] has
//! [`ProtectionDomain`]s and [`CompletionQueue`]s. Memory is registered in a protection domain. A
//! [`QueuePair`] takes lists of [`WorkRequest`]s, one doorbell per call, and reports [`WorkCompletion`]s.
//! All public types are concrete; the name given to [`Device::open`] decides which device is behind them.
//!
//! Two rules hold on every device:
//!
//! - *Private* memory ([`Buffer`]) cannot be written by a peer, so it is accessed by reference. *Shared*
//!   memory ([`SharedRegion`]) may be written by a peer at any time, so there are no references to it.
//! - Posting moves a buffer into the queue pair. It is only given back after a completion has been polled.

mod caps;
mod completion_queue;
mod device;
#[cfg(any(feature = "faults", feature = "sim"))]
#[cfg_attr(not(feature = "sim"), allow(dead_code))] // A rack draws more kinds of numbers.
mod dice;
mod dispatch;
mod endpoint;
mod error;
mod event_fd;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(feature = "ibverbs")]
mod ibv;
mod memory;
pub mod numa;
mod open_options;
mod peer_credentials;
mod peer_refusal;
mod port;
mod process;
mod queue_pair;
mod random;
mod route_header;
mod shm;
#[cfg(feature = "sim")]
pub mod sim;
mod work_completion;
mod work_request;

pub use caps::{Capabilities, Operation, Visibility, WriteOrder};
pub use completion_queue::{CompletionChannel, CompletionQueue, CompletionQueueHandle};
pub use device::{Device, DeviceInfo, DeviceKind, ProtectionDomain};
pub use endpoint::{AddressHandle, Endpoint};
pub use error::{
    ConnectError, CqError, EndpointError, OpenError, OutOfRange, PostError, VerbsError,
};
pub use memory::{
    Access, Buffer, BufferPool, Drafts, MemoryWindow, PartRegistration, PersistentRegion,
    PrivateRegion, Publication, ReadAhead, RemoteRegion, RemoteSlice, SharedRegion, SharedSlice,
    Wake, WindowError,
};
pub use open_options::OpenOptions;
pub use peer_credentials::PeerCredentials;
pub use peer_refusal::PeerRefusal;
pub use port::{GidInfo, GidType, PortInfo, PortState};
pub use process::{PerProcess, process_word};
pub use queue_pair::{
    ConnectOptions, Doorbell, QpNumber, QpState, QpType, QueuePair, QueuePairConfig,
    SharedReceiveQueue, SharedReceiveQueueHandle,
};
pub use work_completion::{
    COMPLETION_PAYLOAD_BYTES, CompletionOpcode, DatagramSource, GRH_BYTES, Status, WorkCompletion,
};
pub use work_request::{Local, LocalMut, SendRequest, WorkRequest, WriteRequest};
