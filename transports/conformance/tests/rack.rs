//! The suite on simulated racks, in virtual time, for each backend: with no faults, and on the racks that its entry names.

use std::{process::ExitCode, sync::Arc};

use farcall_transports_conformance::{
    Fixture, Harness, backends, rack::RackFixture, sharing::Sharing,
};

fn main() -> ExitCode {
    let mut harness = Harness::new();
    for backend in backends::ALL {
        for (seed, rack) in (1..).zip(backend.racks) {
            let template = format!("sim://suite?backend={}&{}", backend.name, rack.options);
            let fixture = RackFixture::new(template.trim_end_matches('&'), seed);
            let fixture = Arc::new(fixture.expect("an address").config((rack.config)()));
            let fixture: Arc<dyn Fixture> =
                if rack.shared { Arc::new(Sharing::of(fixture)) } else { fixture };
            harness = harness.suite(&format!("{}::{}", backend.name, rack.name), fixture);
        }
    }
    harness.run()
}
