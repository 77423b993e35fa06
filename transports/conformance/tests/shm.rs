//! The suite on this machine, over the device `shm` or over loopback, for each backend: servers as threads of the test, then as processes, whose clients share
//! what their backend lets the connections of one thread share.

use std::{process::ExitCode, sync::Arc};

use farcall_transports_conformance::{
    Harness,
    addresses::{AddressFixture, Placement},
    backends,
    sharing::Sharing,
};

fn main() -> ExitCode {
    let mut harness = Harness::new();
    for backend in backends::ALL {
        let fixture = |placement| {
            let fixture = AddressFixture::new(&backend.local_template())
                .expect("an address")
                .peer(env!("CARGO_BIN_EXE_backend-conformance"))
                .placement(placement);
            Arc::new(fixture)
        };
        let processes = Sharing::of(fixture(Placement::OtherProcess));
        harness = harness
            .suite(&format!("{}::threads", backend.name), fixture(Placement::SameProcess))
            .suite(&format!("{}::processes", backend.name), Arc::new(processes));
    }
    harness.run()
}
