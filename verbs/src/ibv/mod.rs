//! The devices of libibverbs: RDMA NICs, and the kernel's Soft-RoCE.
//!
//! A work request's buffer stays in the queue pair's [in-flight ring](in_flight) until a polled
//! completion retires it, so that nothing that the NIC may still touch is freed or changed. What a
//! completion belongs to is in its `wr_id`: an [attachment](attachment) (the send side of a queue pair,
//! or its receives, or a shared receive queue) and a place there. Whoever polls a completion queue keeps
//! a table of attachments; others change it through a list that is looked at only when a flag says so.
//!
//! The kernel's own events (a port that goes down, a queue pair or completion queue that breaks) come to a
//! thread of the context, which breaks the queue pairs that they concern: what was posted there is flushed.

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
mod pending;
mod port;
mod post_send;
mod queue_pair;
mod receive;
mod shared_receive;
mod status;
mod sys;
mod timers;

pub(crate) use address_handle::AddressHandle;
pub(crate) use channel::Channel;
pub(crate) use completion_queue::{CompletionQueue, CqShared};
pub(crate) use context::Context;
pub(crate) use devices::{list, support};
pub(crate) use domain::ProtectionDomain;
pub(crate) use endpoint::IbvEndpoint;
pub(crate) use memory::Registration;
pub(crate) use queue_pair::{Parts as QueuePairParts, QueuePair};
pub(crate) use shared_receive::SharedReceiveQueue;
