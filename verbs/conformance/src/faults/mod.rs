//! The errors of an RDMA device that cannot work: no permission, no address, a port that goes down. For a
//! machine of its own (`cargo xtask rdma-vm`), where this program is root: permissions, addresses and
//! the network interface are changed, and put back.

mod link;
mod opening;
mod site;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::case::{Outcome, Tally};
use crate::verdict::{CaseResult, Verdict};
use site::Site;

pub use opening::open_as_child;

/// One fault, and the check of how the device reports it.
struct Fault {
    name: &'static str,
    check: fn(&Site) -> CaseResult,
}

const FAULTS: &[Fault] = &[
    Fault { name: "a_port_that_is_not_there_is_named", check: opening::no_port },
    Fault {
        name: "a_gid_index_that_is_empty_is_named_with_those_that_are_not",
        check: opening::no_gid,
    },
    Fault { name: "a_port_without_an_address_says_what_to_do", check: opening::no_address },
    Fault { name: "a_device_that_may_not_be_used_says_so", check: opening::no_permission },
    Fault {
        name: "memory_that_may_not_be_locked_says_how_much_may",
        check: opening::little_memlock,
    },
    Fault { name: "ports_of_unequal_mtu_agree_on_the_smaller", check: link::unequal_mtus },
    Fault { name: "an_address_that_no_way_leads_to_is_named", check: link::no_route },
    Fault { name: "a_peer_that_is_not_there_is_given_up_in_time", check: link::missing_peer },
    Fault { name: "a_port_that_goes_down_ends_what_is_under_way", check: link::port_down },
];

/// Injects the faults whose names contain `filter` into `device`, whose network interface is `netdev`.
pub fn faults(
    device: &str,
    netdev: &str,
    filter: &str,
    mut report: impl FnMut(&str, &Outcome),
) -> Tally {
    let site = Site::new(device, netdev);
    let mut tally = Tally::default();
    for fault in FAULTS.iter().filter(|fault| fault.name.contains(filter)) {
        let verdict = catch_unwind(AssertUnwindSafe(|| (fault.check)(&site)))
            .map_or_else(|_| Verdict::Failed("panicked".into()), Verdict::from);
        let outcome = Outcome::from(verdict);
        report(fault.name, &outcome);
        tally.add(&outcome);
    }
    tally
}
