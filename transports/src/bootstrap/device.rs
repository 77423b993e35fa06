//! Which device an address means, and the one that all dialled connections share.

use std::collections::HashMap;
use std::iter;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_core::metrics::RefusalReason;
use farcall_core::site::Site;
use farcall_verbs::{Device, OpenError, OpenOptions, PeerRefusal, PerProcess};

use crate::address::{Address, DeviceChoice, NetworkPlace, Place, runs_on_stream};
use crate::contract::{Backend, Fabric};

/// The device for connections within this machine.
const SHARED_MEMORY: &str = "shm";

/// The devices of this process's dialled connections. A forked child opens its own: those of its parent have their memory and their
/// threads there.
static OPENED: PerProcess<Mutex<HashMap<DeviceChoice, Device>>> = PerProcess::new();

/// Why this program finds none, if there may be one.
fn no_rdma() -> String {
    Device::rdma_support().err().map_or_else(String::new, |why| format!(" for it: {why}"))
}

/// Why an address gives no device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// None is named, and there is none to choose.
    #[error(
        "the address names no device and there is no RDMA device here{}; on one machine device=shm does without, and `farcall info` tells what there is",
        no_rdma()
    )]
    None,
    /// None is named, and these could be chosen.
    #[error("the address names no device and there are several; add device= and one of: {0}")]
    Several(String),
    /// The address goes over TCP alone.
    #[error("a tcp:// address has no device; use rdma://HOST:PORT?device=NAME")]
    NoDevice,
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Address {
    /// Opens the device that this address means, anew.
    pub fn open_device(&self) -> Result<Device, DeviceError> {
        open_choice(&choice(self)?)
    }

    /// Opens it for each of so many threads. An opened device has one page of doorbells, and threads that share it wait
    /// for one another (RFP, EuroSys 2017, Fig. 3); shared memory has none.
    ///
    /// None has one if the address needs none.
    pub(crate) fn open_devices(&self, threads: usize) -> Result<Vec<Option<Device>>, DeviceError> {
        if let Place::Tcp(_) = self.place() {
            return Ok(vec![None; threads]);
        }
        #[cfg(test)]
        if let Some(opened) = super::tests::lost_device::open_devices(self, threads) {
            return opened;
        }
        let choice = choice(self)?;
        let first = open_choice(&choice)?;
        if choice.name.as_deref() == Some(SHARED_MEMORY) {
            return Ok(vec![Some(first); threads]);
        }
        let others = (1..threads).map(|_| open_choice(&choice));
        iter::once(Ok(first)).chain(others).map(|device| device.map(Some)).collect()
    }
}

/// Counts at this site the peers that the device refuses, if it tells of them.
pub(crate) fn count_refusals(device: Option<&Device>, site: &Site) {
    let Some(device) = device else { return };
    let refusals = Arc::clone(site.refusals());
    device.on_peer_refused(move |why| refusals.count(reason_of(why)));
}

fn reason_of(why: PeerRefusal) -> RefusalReason {
    match why {
        PeerRefusal::OtherUser => RefusalReason::NotPermitted,
        PeerRefusal::NoRoom => RefusalReason::Crowd,
        PeerRefusal::GuessedKeys => RefusalReason::GuessedKeys,
        _ => RefusalReason::BrokeProtocol,
    }
}

/// What a connection runs on that has this device, or none.
pub(crate) fn fabric(device: &Option<Device>) -> Fabric<'_> {
    device.as_ref().map_or(Fabric::Stream, Fabric::Verbs)
}

/// What a backend runs on at an address that has this device, or none.
pub(crate) fn fabric_for<'d>(backend: &dyn Backend, device: &'d Option<Device>) -> Fabric<'d> {
    if runs_on_stream(backend) { Fabric::Stream } else { fabric(device) }
}

/// The device of this address, opened once for all connections that this process dials: each opened
/// device has a thread of its own, and descriptors. `None`: the address needs none.
pub(crate) fn shared(address: &Address) -> Result<Option<Device>, DeviceError> {
    if let Place::Tcp(_) = address.place() {
        return Ok(None);
    }
    let choice = choice(address)?;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&choice) {
        return Ok(Some(device.clone()));
    }
    let device = open_choice(&choice)?;
    opened.insert(choice, device.clone());
    Ok(Some(device))
}

/// The device of this address could not do what it should: the next connection opens it anew, for it may
/// have been removed and come back.
pub(crate) fn forget(address: &Address) {
    if let Ok(choice) = choice(address) {
        OPENED.get().lock().unwrap_or_else(PoisonError::into_inner).remove(&choice);
    }
}

/// The address's choice, with a name.
fn choice(address: &Address) -> Result<DeviceChoice, DeviceError> {
    let named = |name: &str| Some(name.to_owned());
    match address.place() {
        Place::Tcp(_) => Err(DeviceError::NoDevice),
        Place::Shm { .. } => {
            Ok(DeviceChoice { name: named(SHARED_MEMORY), ..DeviceChoice::default() })
        }
        Place::Rdma(NetworkPlace { device, .. }) if device.name.is_some() => Ok(device.clone()),
        Place::Rdma(NetworkPlace { device, .. }) => {
            let mut names: Vec<_> = Device::list().into_iter().map(|info| info.name).collect();
            names.retain(|name| name != SHARED_MEMORY);
            match names.as_slice() {
                [] => Err(DeviceError::None),
                [only] => Ok(DeviceChoice { name: named(only), ..device.clone() }),
                _ => Err(DeviceError::Several(names.join(", "))),
            }
        }
    }
}

fn open_choice(choice: &DeviceChoice) -> Result<Device, DeviceError> {
    let name = choice.name.as_deref().unwrap_or(SHARED_MEMORY);
    let mut options = OpenOptions::default();
    (options.gid_index, options.port) = (choice.gid_index, choice.ib_port);
    Ok(Device::open_with(name, &options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str) -> String {
        address.parse::<Address>().unwrap().open_device().unwrap_err().to_string()
    }

    #[test]
    fn a_device_that_is_not_there_is_told_with_those_that_are() {
        let error = refused("rdma://localhost:1?device=nosuch0");
        assert!(error.contains("nosuch0") && error.contains("shm"), "{error}");
    }

    #[test]
    fn without_rdma_the_error_says_why() {
        let error = DeviceError::None.to_string();
        match Device::rdma_support() {
            Ok(()) => assert!(error.contains("no RDMA device here; on one"), "{error}"),
            Err(why) => assert!(error.contains(&format!("here for it: {why}; on one")), "{error}"),
        }
    }

    #[test]
    fn tcp_has_no_device() {
        let error = refused("tcp://localhost:1");
        assert!(error.contains("use rdma://"), "{error}");
    }

    #[test]
    fn shared_memory_has_no_ports() {
        for option in ["gid_index=1", "ib_port=1"] {
            let error = refused(&format!("rdma://localhost:1?device=shm&{option}"));
            assert!(error.contains("shm"), "{error}");
        }
    }

    #[test]
    fn connections_of_one_choice_share_a_device() {
        let dialled = |address: &str| shared(&address.parse().unwrap()).unwrap();
        // Opened devices have no names to compare; but each that is opened anew has a thread.
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let _first = dialled("shm://a");
        let before = threads();
        let _others = ["shm://b", "rdma://localhost:1?device=shm"].map(dialled);
        assert!(threads() <= before, "one more thread");
    }
}
