//! A simulated rack: a deterministic device in virtual time, for one thread, from one seed.
//!
//! ```
//! use farcall_verbs::sim::Sim;
//! use farcall_verbs::{ConnectOptions, QpType, QueuePairConfig, WorkCompletion, WorkRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut sim = Sim::new(42);
//! let (a, b) = (sim.add_node(), sim.add_node());
//! let (a, b) = (sim.node(a).device(), sim.node(b).device());
//! let (a_cq, mut b_cq) = (a.create_cq(16, None)?, b.create_cq(16, None)?);
//! let mut sender = a.alloc_pd()?.create_qp(QueuePairConfig::new(QpType::Rc, &a_cq, &a_cq))?;
//! let mut receiver = b.alloc_pd()?.create_qp(QueuePairConfig::new(QpType::Rc, &b_cq, &b_cq))?;
//! sender.connect(&receiver.endpoint(), &ConnectOptions::default())?;
//! receiver.connect(&sender.endpoint(), &ConnectOptions::default())?;
//! receiver.post_recv(1, None)?;
//! sender.post_send_one(WorkRequest::send(b"").imm(7)).map_err(|(error, _)| error)?;
//! let mut arrived: [WorkCompletion; 1] = Default::default();
//! assert_eq!(b_cq.poll(&mut arrived)?, 0, "a post takes no virtual time");
//! sim.run_for(10_000);
//! assert_eq!(b_cq.poll(&mut arrived)?, 1);
//! assert_eq!(arrived[0].imm, Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! # The life of a work request
//! Posting checks it and creates a message. The doorbell's event lets the NIC fetch it and its bytes, at the
//! rate of its outbound unit. Then it takes its turn on the link. At the other NIC it waits for the inbound
//! unit, is delivered in its queue pair's order, lands in memory, and is acknowledged; a READ or an atomic is
//! answered by a message of its own. The acknowledgement completes it. A model of the NIC, whose constants
//! are [`Costs`], determines how long each step takes.
//!
//! # Reliable connections
//! Messages are numbered. A missing message is reported by a NAK and sent again with all that follow. So is a
//! message without an answer, up to eight times in all within
//! [`retry_timeout_ns`](crate::ConnectOptions::retry_timeout_ns). A duplicate is executed only once, except
//! that a READ reads again. A refusal breaks both queue pairs; if it is lost, the sender gets no more answers.
//! So loss, partitions and deaths look as on hardware: first a delay, and then
//! [`RetryExceeded`](crate::Status::RetryExceeded).
//!
//! # One-sided operations that fail, and that meet others
//! A WRITE that fails leaves a prefix of whole packets of the path MTU, and nothing else: if some of its packets are lost for good, if its
//! sender dies, if its range ends behind its region, or if the target's queue pair is destroyed or breaks meanwhile. The sender cannot know
//! how many. A queue pair that is destroyed first gives the peer a [`RetryExceeded`](crate::Status::RetryExceeded) after the retry timeout, a
//! region that is deregistered first an access error at once. A destroyed queue pair makes no completions for its posted work; one in error
//! flushes it. A [paused](Fault::PauseNode) node's NIC goes on.
//!
//! With [`Landing::AnyOrder`], WRITEs and READs of several cache lines meet memory line by line in any order. With
//! [`reads_words_in_any_order`](SimConfig::reads_words_in_any_order), READs meet it word by word. With an
//! [`atomic_gap`](SimConfig::atomic_gap), peers' atomics are atomic with each other only, and not with the owner's CPU.
//!
//! # Dynamic connections
//! An initiator ([`connect_dynamically`](crate::QueuePair::connect_dynamically)) is connected to one target at a time. If its next work
//! request is for another one, its NIC asks that one's for a connection once the work before has left, and sends the request when it
//! has the reply and the answers of the work before. A target has a responder for each initiator that is connected to it, whose context takes
//! room in its NIC's cache. A lost disconnect leaves one behind, until its initiator connects again or the target is destroyed.
//!
//! # Power failures
//! Bytes that a NIC writes to [persistent memory](crate::PersistentRegion) wait in the NIC until they are
//! visible, then in the queue of the PCIe root complex, and then, with DDIO, in dirty lines of the last-level
//! cache. A CPU's stores are dirty in its cache. [`Durability`] configures how long and how many, and which
//! of these survive. [`Fault::PowerLoss`] loses the bytes in the NIC, the back part of the queue, and random
//! dirty lines or parts of them. A WRITE's completion therefore does not mean durable, and neither does a
//! READ behind it if DDIO is on; a flush and a `persist` of the server do. With a [battery](Durability::battery) the node's NIC and caches are
//! emptied first, so that nothing acknowledged is lost. Where a flush does not go [through
//! caches](Durability::flush_through_caches), it means no more than a READ.
//!
//! # Differences from hardware
//! Connecting takes no time. A WRITE never overtakes a READ that was posted before it, as if each had a fence. The bytes of a READ land at its
//! requester all at once, with its completion. A completion channel's wait never sleeps: it says whether there was an event. A
//! killed node's program can still read the memory that it holds. If bytes were overwritten before they were
//! durable, a power failure does not restore an earlier state, unless a cache had written it back.

mod actor;
mod agenda;
mod answers;
mod atomic;
mod channel;
mod clock;
mod completion_queue;
mod config;
mod context;
mod cpu;
mod delivery;
mod durability;
mod dynamic;
mod event;
mod failure;
mod faults;
mod media;
mod memory;
mod message;
mod nic;
mod node;
mod packets;
mod pair;
mod persistent;
mod pieces;
mod post;
mod power;
mod queue;
mod queue_pair;
mod rack;
mod read;
mod receives;
mod send;
mod shared_receive;
mod slots;
mod trace;
mod windows;
mod world;
mod write;

pub use actor::{Actor, Next, Turn};
pub use clock::NodeClock;
pub use config::{FaultRates, Landing, SimConfig};
pub use durability::Durability;
pub use faults::Fault;
pub use nic::{Costs, NicCounters};
pub use node::NicResources;
pub use rack::{ActorId, Node, NodeId, Sim};

pub(crate) use channel::Channel;
pub(crate) use completion_queue::{CompletionQueue, CqHandle};
pub(crate) use context::{AddressHandle, Context, Domain};
pub(crate) use memory::Registration;
pub(crate) use persistent::Persistent;
pub(crate) use queue_pair::{Config as QueuePairParts, QueuePair, SimEndpoint};
pub(crate) use shared_receive::SharedReceiveQueue;
pub(crate) use windows::Window;
