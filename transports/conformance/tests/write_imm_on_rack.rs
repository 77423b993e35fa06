//! The backend `write_imm` on a simulated rack, in virtual time: as it lands, and on what kind of wire.

use std::sync::Arc;

use farcall_transports_conformance::{Fixture, rack::RackFixture};
use farcall_verbs::sim::SimConfig;

fn fixture(seed: u64, config: SimConfig) -> Arc<dyn Fixture> {
    let fixture = RackFixture::new("sim://suite?backend=write_imm", seed).expect("an address");
    Arc::new(fixture.config(config))
}

mod at_once {
    use super::{SimConfig, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(1, SimConfig::default()));
}

/// Pieces of messages in any order, acknowledged before they have landed.
mod in_any_order {
    use std::time::Duration;

    use farcall_verbs::sim::Landing;

    use super::{SimConfig, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(
        2,
        SimConfig::default().landing(Landing::AnyOrder).delivered_late(Duration::from_micros(2)),
    ));
}

/// Messages that are lost and sent again, or held up.
mod on_a_bad_wire {
    use std::time::Duration;

    use farcall_verbs::sim::FaultRates;

    use super::{SimConfig, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(
        3,
        SimConfig::default().faults(
            FaultRates::default()
                .reliable_loss(0.001)
                .connected_delay(0.01)
                .delay(Duration::from_micros(50)),
        ),
    ));
}
