//! The devices of libibverbs: RDMA NICs, and the kernel's Soft-RoCE.
//!
//! A work request's buffer stays in the queue pair's [in-flight ring](in_flight) until a polled completion
//! retires it, so that memory that the NIC may still touch is neither freed nor changed. The `wr_id` of a
//! completion identifies its [attachment](attachment) (the send side of a queue pair, its receives, or a
//! shared receive queue) and an index there. The poller of a completion queue owns a table of attachments.
//! Others change it through a list, which the poller reads only when a flag is set.
//!
//! A thread of the context receives the kernel's asynchronous events (a port goes down, a queue pair or
//! completion queue breaks). It moves the affected queue pairs to the error state, which flushes their
//! posted work.

mod address_handle;
mod attachment;
mod channel;
mod completion_queue;
mod connect;
mod context;
mod devices;
mod domain;
mod endpoint;
mod events;
mod in_flight;
mod memory;
mod part;
mod pending;
mod port;
mod post_send;
mod queue_pair;
mod receive;
mod shared_receive;
mod status;
mod sys;
mod timers;
mod window;

pub(crate) use address_handle::AddressHandle;
pub(crate) use channel::Channel;
pub(crate) use completion_queue::{CompletionQueue, CqShared};
pub(crate) use context::Context;
pub(crate) use devices::{list, support};
pub(crate) use domain::ProtectionDomain;
pub(crate) use endpoint::IbvEndpoint;
pub(crate) use memory::Registration;
pub(crate) use part::Part;
pub(crate) use queue_pair::{Parts as QueuePairParts, QueuePair};
pub(crate) use shared_receive::SharedReceiveQueue;
pub(crate) use window::Window;
