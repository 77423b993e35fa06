//! The simulated racks for backends on reliable connections.

use std::time::Duration;

use farcall_verbs::sim::{FaultRates, Landing, SimConfig};

use crate::backends::RackVariant;

pub(crate) const NO_FAULTS: RackVariant =
    RackVariant { name: "no_faults", options: "", config: SimConfig::default, shared: false };

/// Messages are lost and sent again, or delayed.
pub(crate) const LOSS_AND_DELAY: RackVariant = RackVariant {
    name: "loss_and_delay",
    options: "",
    config: || {
        SimConfig::default().faults(
            FaultRates::default()
                .reliable_loss(0.001)
                .connected_delay(0.01)
                .delay(Duration::from_micros(50)),
        )
    },
    shared: false,
};

/// Pieces of messages land in any order, and are acknowledged before they have landed.
pub(crate) const LANDING_IN_ANY_ORDER: RackVariant = RackVariant {
    name: "landing_in_any_order",
    options: "",
    config: || {
        SimConfig::default().landing(Landing::AnyOrder).delivered_late(Duration::from_micros(2))
    },
    shared: false,
};

pub(crate) const ALL: &[RackVariant] = &[NO_FAULTS, LANDING_IN_ANY_ORDER, LOSS_AND_DELAY];
