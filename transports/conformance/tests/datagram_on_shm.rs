//! The backend `datagram` on the device `shm`: servers as threads of the test, then as processes.

use std::sync::Arc;

use farcall_transports_conformance::{
    Fixture,
    addresses::{AddressFixture, Placement},
    sharing::Sharing,
};

fn fixture(placement: Placement) -> Arc<dyn Fixture> {
    let fixture = AddressFixture::new("shm://conformance?backend=datagram")
        .expect("an address")
        .peer(env!("CARGO_BIN_EXE_backend-conformance"))
        .placement(placement);
    Arc::new(fixture)
}

/// Clients of one process share a queue pair.
fn sharing(placement: Placement) -> Arc<dyn Fixture> {
    Arc::new(Sharing::of(fixture(placement)))
}

mod threads {
    use super::{Placement, fixture};

    farcall_transports_conformance::conformance_tests!(fixture(Placement::SameProcess));
}

mod processes {
    use super::{Placement, sharing};

    farcall_transports_conformance::conformance_tests!(sharing(Placement::OtherProcess));
}
