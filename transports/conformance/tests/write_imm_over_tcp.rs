//! The backend `write_imm` on the device `shm`, where TCP carries the handshake. What differs from `shm://` addresses is
//! how connections begin and end, not how calls travel: servers as threads of the test show it.

use std::sync::Arc;

use farcall_transports_conformance::{Fixture, addresses::AddressFixture};

fn fixture() -> Arc<dyn Fixture> {
    let fixture = AddressFixture::new("rdma://127.0.0.1:0?backend=write_imm&device=shm-plain")
        .expect("an address")
        .peer(env!("CARGO_BIN_EXE_backend-conformance"));
    Arc::new(fixture)
}

farcall_transports_conformance::conformance_tests!(fixture());
