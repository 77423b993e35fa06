//! Virtual time, as the clock of a site. A node's clock may differ from the rack's, so what a node's server threads and connections are
//! told, and what they ask for, is by its clock.

use std::sync::Arc;

use farcall_core::site::{Clock, Site};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_verbs::sim::Node;

struct NodeClock(Node);

impl Clock for NodeClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.clock_ns())
    }
}

/// What the clock of that node shows at this time of the rack.
pub(super) fn now(node: &Node, rack_ns: u64) -> Instant {
    Instant::from_nanos(node.clock_at(rack_ns))
}

/// The same progress, whose moment is by the node's clock, by the rack's.
pub(super) fn by_rack(node: &Node, progress: Progress) -> Progress {
    let next = match progress.next {
        PollAt::At(at) => PollAt::At(Instant::from_nanos(node.rack_ns_when(at.as_nanos()))),
        other => other,
    };
    Progress { next, ..progress }
}

/// A site for an actor of that node: its clock is the node's, and a wake gives the actor a turn.
pub fn site_of(node: &Node) -> Site {
    Site::driven(Arc::new(NodeClock(node.clone())))
}
