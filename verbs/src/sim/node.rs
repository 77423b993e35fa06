//! A node: its NIC's state, and its cores.

use super::clock::NodeClock;
use super::event::QpId;
use super::media::Media;
use super::memory::Regions;
use super::nic::{Doorbells, Nic};
use super::pair::Pair;
use super::queue::Queue;
use super::receives::Receives;
use super::slots::Slots;
use super::windows::MAX_WINDOWS;
use super::world::World;
use crate::Capabilities;
use crate::caps::OperationSet;
use crate::{Operation, WriteOrder};

use super::config::{Landing, SimConfig};

/// Payload bytes of a datagram.
pub(super) const MTU_BYTES: usize = 4096;
/// The most inline bytes of a work request.
pub(super) const MAX_INLINE_BYTES: usize = 256;
/// The longest message of a connection.
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 31;
/// READs and atomics in flight on one queue pair, as in current NICs.
pub(super) const MAX_RD_ATOMIC: usize = 16;

/// The state of the NIC and the cores of one node.
#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) alive: bool,
    /// The number of its starts. Devices opened before the current start are unusable.
    pub(super) incarnation: u32,
    pub(super) clock: NodeClock,
    pub(super) nic: Nic,
    pub(super) doorbells: Doorbells,
    pub(super) regions: Regions,
    pub(super) media: Media,
    pub(super) pairs: Slots<Pair>,
    pub(super) queues: Slots<Queue>,
    pub(super) srqs: Slots<SharedQueue>,
    /// Until when each core is busy.
    pub(super) cores: Vec<u64>,
    /// Until when none of its actors runs.
    pub(super) paused_until_ns: u64,
    pub(super) actors: Vec<u32>,
}

/// What the programs of a node hold of its NIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NicResources {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Shared receive queues.
    pub shared_receive_queues: usize,
    /// Registered regions that peers can reach.
    pub regions: usize,
    /// Memory windows.
    pub memory_windows: usize,
    /// Responders of [dynamic connections](crate::QueuePair::accept_dynamically), which the NIC makes for its programs' targets: one for each
    /// initiator that is connected to one of them.
    pub dynamic_responders: usize,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) pd: u32,
    pub(super) receives: Receives,
}

impl SharedQueue {
    pub(super) fn polled(&mut self) {
        self.receives.polled();
    }
}

impl NodeState {
    pub(super) fn resources(&self) -> NicResources {
        let is_responder = |number: &u32| {
            let dynamic = self.pairs.get(*number).and_then(|pair| pair.dynamic.as_deref());
            dynamic.is_some_and(|it| it.target_number().is_some())
        };
        let dynamic_responders = self.pairs.numbers().iter().filter(|it| is_responder(it)).count();
        NicResources {
            dynamic_responders,
            queue_pairs: self.pairs.len() - dynamic_responders,
            completion_queues: self.queues.len(),
            shared_receive_queues: self.srqs.len(),
            regions: self.regions.owned(),
            memory_windows: self.regions.windows.owned(),
        }
    }

    pub(super) fn new(cores: usize, seed: u64) -> NodeState {
        NodeState {
            alive: true,
            incarnation: 0,
            clock: NodeClock::default(),
            nic: Nic::new(seed),
            doorbells: Doorbells::default(),
            regions: Regions::default(),
            media: Media::default(),
            pairs: Slots::default(),
            queues: Slots::default(),
            srqs: Slots::default(),
            cores: vec![0; cores],
            paused_until_ns: 0,
            actors: Vec::new(),
        }
    }
}

/// A node's GID: an IPv6 unique local address that contains its number.
pub(super) fn gid(node: u16) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[0] = 0xfd;
    gid[14..].copy_from_slice(&node.to_be_bytes());
    gid
}

/// The number of the node with this GID, if the GID is valid.
pub(super) fn node_of(wanted: [u8; 16]) -> Option<u16> {
    let node = u16::from_be_bytes([wanted[14], wanted[15]]);
    (gid(node) == wanted).then_some(node)
}

pub(super) fn capabilities(config: &SimConfig) -> Capabilities {
    use Operation::{Send, SendWithImm, Write, WriteWithImm};
    Capabilities {
        max_inline: MAX_INLINE_BYTES,
        max_sge: 1,
        max_send_wr: 1 << 15,
        max_recv_wr: 1 << 15,
        max_cqe: 1 << 22,
        max_rd_atomic: MAX_RD_ATOMIC,
        mtu: MTU_BYTES,
        max_message: MAX_MESSAGE_BYTES,
        completion_payload: 0,
        atomics: true,
        atomics_include_cpu: config.atomic_gap.is_zero(),
        srq: true,
        srq_of_other_domain: true,
        flush: true,
        max_mw: MAX_WINDOWS,
        window_bounds: true,
        reads_first_word_first: !config.reads_words_in_any_order,
        invalidation_waits: true,
        persistent_memory: true,
        wait: true,
        write_events: true,
        dynamic_connections: true,
        network: true,
        write_order: match config.landing {
            Landing::AtOnce | Landing::LeftToRight => WriteOrder::LeftToRight,
            Landing::AnyOrder => WriteOrder::Unordered,
        },
        visibility: config.visibility,
        rc: OperationSet::of(&Operation::ALL),
        uc: OperationSet::of(&[Send, SendWithImm, Write, WriteWithImm]),
        ud: OperationSet::of(&[Send, SendWithImm]),
    }
}

impl World {
    #[inline]
    pub(super) fn node(&mut self, node: u16) -> &mut NodeState {
        &mut self.nodes[usize::from(node)]
    }

    #[inline]
    pub(super) fn pair(&mut self, qp: QpId) -> Option<&mut Pair> {
        self.nodes.get_mut(usize::from(qp.node))?.pairs.get_mut(qp.number)
    }

    /// Whether this start of the node still runs.
    pub(super) fn runs(&self, node: u16, incarnation: u32) -> bool {
        let node = &self.nodes[usize::from(node)];
        node.alive && node.incarnation == incarnation
    }
}
