//! The suite inside layers that change nothing: a layer keeps all rules of the device inside it.

use std::process::ExitCode;
use std::sync::Arc;

use farcall_verbs::faults::{Outgoing, RandomFaults, Recorder, Verdict};
use farcall_verbs::{Device, OpenError};
#[cfg(feature = "sim")]
use farcall_verbs_conformance::Simulated;
use farcall_verbs_conformance::{Harness, OneThread, Threads};

fn main() -> ExitCode {
    let harness = Harness::new()
        .suite("threads", Threads::new("shm in layers", |_| on_shm()))
        .suite("one_thread", OneThread::new("shm in layers", |_| on_shm()));
    #[cfg(feature = "sim")]
    let harness = harness.suite("simulated", Simulated::new(4).layers(in_layers));
    harness.run()
}

fn on_shm() -> Result<Device, OpenError> {
    Device::open("shm").map(in_layers)
}

fn in_layers(device: Device) -> Device {
    let pass = |_: &Outgoing<'_>| Verdict::Pass;
    device
        .with_faults(Arc::new(pass))
        .with_faults(Arc::new(RandomFaults::new(1)))
        .with_faults(Arc::new(Recorder::default()))
}
