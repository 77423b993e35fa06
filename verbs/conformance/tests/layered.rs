//! The suite inside layers that change nothing: a layer keeps all rules of the device inside it.

use std::process::ExitCode;

use farcall_verbs::Device;
#[cfg(feature = "sim")]
use farcall_verbs_conformance::Simulated;
use farcall_verbs_conformance::{Harness, OneThread, Threads, in_layers};

fn main() -> ExitCode {
    let threads = Threads::new("shm in layers", |_| Device::open("shm").map(in_layers));
    let harness =
        Harness::new().suite("threads", threads).suite("one_thread", OneThread::in_layers("shm"));
    #[cfg(feature = "sim")]
    let harness = harness.suite("simulated", Simulated::new(4).layers(in_layers));
    harness.run()
}
