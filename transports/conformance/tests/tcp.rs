//! The suite on the device `shm` with handshakes over TCP, for each backend that runs on a device. Connections begin and end in another way than at
//! `shm://` addresses; calls travel in the same way. So servers are threads of the test.

use std::{process::ExitCode, sync::Arc};

use farcall_transports_conformance::{Harness, addresses::AddressFixture, backends};

fn main() -> ExitCode {
    let on_device = backends::ALL.iter().filter(|backend| !backend.runs_on_stream());
    let harness = on_device.fold(Harness::new(), |harness, backend| {
        let template = format!("rdma://127.0.0.1:0?backend={}&device=shm-plain", backend.name);
        let fixture = AddressFixture::new(&template)
            .expect("an address")
            .peer(env!("CARGO_BIN_EXE_backend-conformance"));
        harness.suite(backend.name, Arc::new(fixture))
    });
    harness.run()
}
