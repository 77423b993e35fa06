//! The suite within TLS: `tcp`, whose calls travel in it, and one backend on a device, whose handshake does. Servers are threads of the
//! test.

use std::{process::ExitCode, sync::Arc};

use farcall_transports_conformance::{Harness, addresses::AddressFixture, tls::MutualTls};

fn main() -> ExitCode {
    let tls = Arc::new(MutualTls::new());
    let templates = [("tcp", "tcp://127.0.0.1:0"), ("rdma", "rdma://127.0.0.1:0?device=shm")];
    let harness = templates.into_iter().fold(Harness::new(), |harness, (name, template)| {
        let fixture = AddressFixture::new(template).expect("an address").within(tls.clone());
        harness.suite(name, Arc::new(fixture))
    });
    harness.run()
}
