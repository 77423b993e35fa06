//! Layers of faults around a device.

use std::sync::Arc;

use farcall_verbs::Device;
use farcall_verbs::faults::{Outgoing, RandomFaults, Recorder, Verdict};

/// The device inside layers that change nothing: a layer keeps all rules of the device inside it.
pub fn in_layers(device: Device) -> Device {
    let pass = |_: &Outgoing<'_>| Verdict::Pass;
    device
        .with_faults(Arc::new(pass))
        .with_faults(Arc::new(RandomFaults::new(1)))
        .with_faults(Arc::new(Recorder::default()))
}
