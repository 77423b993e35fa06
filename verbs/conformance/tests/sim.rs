//! The suite on the simulated rack: with WRITEs that land at once, with WRITEs that land piece by piece in any
//! order, and on a wire that loses and delays.

use std::time::Duration;

use farcall_verbs::sim::{FaultRates, Landing, SimConfig};

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

mod on_a_bad_wire {
    use farcall_verbs_conformance::{Except, Simulated, device_conformance};

    device_conformance!(Except::new(
        Simulated::new(3).config(super::bad_wire()),
        &[(
            "model::random_work_agrees_with_the_model",
            "a READ whose answer was lost reads again, as on hardware, and sees later WRITEs",
        )],
    ));
}

/// Some messages of reliable connections are lost, and many late. It would not do for the seed to lose a refusal:
/// then its sender hears nothing, and reports that, as on hardware.
fn bad_wire() -> SimConfig {
    let rates = FaultRates::default()
        .reliable_loss(0.002)
        .connected_delay(0.02)
        .delay(Duration::from_micros(10));
    SimConfig::default().landing(Landing::LeftToRight).faults(rates)
}
