//! The suite inside layers that change nothing: a layer keeps all rules of the device that it is around.

use std::sync::Arc;

use farcall_verbs::faults::{Outgoing, RandomFaults, Recorder, Verdict};
use farcall_verbs::{Device, OpenError};

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

mod threads {
    use farcall_verbs_conformance::{Threads, device_conformance};

    device_conformance!(Threads::new("shm in layers", |_| super::on_shm()));
}

mod one_thread {
    use farcall_verbs_conformance::{OneThread, device_conformance};

    device_conformance!(OneThread::new("shm in layers", |_| super::on_shm()));
}

#[cfg(feature = "sim")]
mod simulated {
    use farcall_verbs_conformance::{Simulated, device_conformance};

    device_conformance!(Simulated::new(4).layers(super::in_layers));
}
