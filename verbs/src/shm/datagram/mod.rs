//! Datagrams: each sender has an inbox of its own at each receiver, made when it first sends there. What
//! does not fit, or meets no receive, is dropped without a word.

mod attachment;
#[cfg(all(test, not(loom)))]
mod deaf;
mod destinations;
mod paths;
mod receiver;

use std::sync::Arc;

use super::peer::Peer;

pub(super) use attachment::Questions;
pub(super) use destinations::Destinations;
pub(super) use paths::{Path, Paths};
pub(super) use receiver::{DatagramReceiver, Supply};

/// The way to a peer's device.
#[derive(Clone, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) peer: Arc<Peer>,
}
