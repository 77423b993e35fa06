//! The suite over shared memory with each server, and each process of clients, in a pid namespace of its own, as in containers that
//! share a network namespace. Neither end has a process id for the other.

use std::{process::ExitCode, sync::Arc};

use farcall_transports_conformance::{
    Harness,
    addresses::{AddressFixture, Placement},
    backends,
    process::pid_namespace,
};

fn main() -> ExitCode {
    let missing = pid_namespace::missing();
    let mut harness = Harness::new();
    for backend in backends::ALL.iter().filter(|backend| !backend.runs_on_stream()) {
        let fixture = AddressFixture::new(&backend.local_template())
            .expect("an address")
            .peer(env!("CARGO_BIN_EXE_backend-conformance"))
            .placement(Placement::OtherPidNamespace);
        harness = harness.suite_unless(missing, backend.name, Arc::new(fixture));
    }
    harness.run()
}
