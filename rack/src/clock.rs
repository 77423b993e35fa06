//! Virtual time, as the clock of a site.

use std::sync::Arc;

use farcall_core::site::{Clock, Site};
use farcall_core::time::Instant;
use farcall_verbs::sim::Node;

struct NodeClock(Node);

impl Clock for NodeClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.clock_ns())
    }
}

/// A site for an actor of that node: its clock is the rack's, and a wake gives the actor a turn.
pub fn site_of(node: &Node) -> Site {
    Site::driven(Arc::new(NodeClock(node.clone())))
}
