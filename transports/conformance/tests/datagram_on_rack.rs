//! The backend `datagram` on a simulated rack, in virtual time: on wires that lose and reorder what they carry.

use std::sync::Arc;

use farcall_transports_conformance::{Fixture, rack::RackFixture, sharing::Sharing};
use farcall_verbs::sim::SimConfig;

fn fixture(seed: u64, config: SimConfig) -> Arc<dyn Fixture> {
    fixture_of("sim://suite?backend=datagram", seed, config)
}

fn fixture_of(template: &str, seed: u64, config: SimConfig) -> Arc<dyn Fixture> {
    let fixture = RackFixture::new(template, seed).expect("an address");
    Arc::new(fixture.config(config))
}

/// Clients of one node share a queue pair.
fn sharing(seed: u64, config: SimConfig) -> Arc<dyn Fixture> {
    Arc::new(Sharing::of(fixture(seed, config)))
}

mod at_once {
    use super::{SimConfig, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(1, SimConfig::default()));
}

/// One datagram in a hundred is lost, and some wait, so that later ones pass them; all clients share a queue pair.
mod on_a_bad_wire {
    use std::time::Duration;

    use farcall_verbs::sim::FaultRates;

    use super::{SimConfig, sharing};

    farcall_transports_conformance::conformance_tests!(sharing(
        2,
        SimConfig::default().faults(
            FaultRates::default()
                .datagram_loss(0.01)
                .datagram_delay(0.05)
                .delay(Duration::from_micros(50)),
        ),
    ));
}

/// One datagram in five is lost, one in five comes twice, and one in five waits long enough for hundreds to pass it.
mod on_a_terrible_wire {
    use std::time::Duration;

    use farcall_verbs::sim::FaultRates;

    use super::{SimConfig, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(
        3,
        SimConfig::default().faults(
            FaultRates::default()
                .datagram_loss(0.2)
                .datagram_copy(0.2)
                .datagram_delay(0.2)
                .delay(Duration::from_millis(1)),
        ),
    ));
}

/// None is lost, but one in twenty comes after thousands of later ones, or its copy does.
mod on_a_wire_that_forgets_the_order {
    use std::time::Duration;

    use farcall_verbs::sim::FaultRates;

    use super::{SimConfig, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(
        5,
        SimConfig::default().faults(
            FaultRates::default()
                .datagram_copy(0.1)
                .datagram_straggle(0.05, Duration::from_millis(20)),
        ),
    ));
}

/// Slow, but right.
mod without_its_optimizations {
    use farcall_verbs::sim::FaultRates;

    use super::{SimConfig, fixture_of};

    farcall_transports_conformance::conformance_tests!(fixture_of(
        "sim://suite?backend=datagram&without=doorbells,polls,selective,inline,bulk,coalescing",
        4,
        SimConfig::default().faults(FaultRates::default().datagram_loss(0.01)),
    ));
}
