//! The scripts and their machines. A boot takes some 4 s, so scripts share one if they can.
//!
//! Timeouts are some ten times the time on an idle computer: they are for hangs.

use std::time::Duration;

use super::Boot;

pub(super) const BOOTS: &[Boot] = &[
    Boot {
        name: "one node",
        nodes: 1,
        power_cut: None,
        power_back: None,
        timeout: Duration::from_secs(840),
        script: include_str!("one_node.sh"),
    },
    Boot {
        name: "two nodes",
        nodes: 2,
        power_cut: None,
        power_back: None,
        timeout: Duration::from_secs(480),
        script: include_str!("two_nodes.sh"),
    },
    Boot {
        name: "a power cut",
        nodes: 2,
        power_cut: Some(Duration::from_secs(8)),
        power_back: Some(Duration::from_secs(1)),
        timeout: Duration::from_secs(180),
        script: include_str!("power_cut.sh"),
    },
];
