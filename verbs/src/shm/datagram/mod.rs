//! Datagrams. Each sender has a separate inbox at each receiver, created on first use. A datagram that
//! finds no room or no receive is dropped silently.

mod attachment;
#[cfg(all(test, not(loom)))]
mod deaf;
mod destinations;
mod paths;
mod receiver;

use std::sync::Arc;

use super::peer::Peer;

pub(super) use destinations::{Destinations, Route};
pub(super) use paths::{Path, Paths};
pub(super) use receiver::{DatagramReceiver, Reader, Supply};

/// The address of a peer's device.
#[derive(Clone, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) peer: Arc<Peer>,
}
