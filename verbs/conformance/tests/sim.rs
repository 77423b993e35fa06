//! The suite on the simulated rack: with WRITEs that land at once, and with WRITEs that land piece by piece
//! in any order.
#![cfg(feature = "sim")]

use farcall_verbs::sim::{Landing, SimConfig};

mod at_once {
    use farcall_verbs_conformance::{Simulated, device_conformance};

    device_conformance!(Simulated::new(1));
}

mod in_any_order {
    use farcall_verbs_conformance::{Simulated, device_conformance};

    device_conformance!(Simulated::new(2).config(super::any_order()));
}

fn any_order() -> SimConfig {
    SimConfig::default().landing(Landing::AnyOrder)
}
