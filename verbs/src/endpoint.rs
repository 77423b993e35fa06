//! The address of a queue pair, exchanged out of band.

#[cfg(feature = "ibverbs")]
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::dispatch::{self, Address};
#[cfg(feature = "ibverbs")]
use crate::ibv;
#[cfg(feature = "sim")]
use crate::sim;
use crate::{EndpointError, QpNumber, shm};

/// Identifies one queue pair of one device to a peer. It is plain bytes, at most [`Endpoint::MAX_BYTES`],
/// sent over any channel between the two sides. It is a capability: any process that knows it may connect.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    bytes: [u8; Endpoint::MAX_BYTES],
    len: u8,
    address: Address,
}

/// The first bytes: the kind of device, and the version of the rest.
const SHM_TAG: [u8; 4] = [1, 1, 0, 0];
const IBV_TAG: [u8; 4] = [2, 1, 0, 0];
#[cfg(feature = "sim")]
const SIM_TAG: [u8; 4] = [3, 1, 0, 0];

impl Endpoint {
    /// The largest length of [`to_bytes`](Endpoint::to_bytes).
    pub const MAX_BYTES: usize = 64;

    /// The endpoint as bytes.
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Parses the endpoint that a peer sent.
    ///
    /// # Errors
    /// If the bytes are not an endpoint of a device kind and version known here.
    pub fn from_bytes(bytes: &[u8]) -> Result<Endpoint, EndpointError> {
        let (tag, rest) =
            bytes.split_first_chunk::<4>().ok_or(EndpointError("shorter than its tag"))?;
        let address = match *tag {
            SHM_TAG => shm::ShmEndpoint::read_from_bytes(rest).ok().map(Address::Shm),
            #[cfg(feature = "ibverbs")]
            IBV_TAG => ibv::IbvEndpoint::read_from_bytes(rest).ok().map(Address::Ibv),
            #[cfg(not(feature = "ibverbs"))]
            IBV_TAG => {
                return Err(EndpointError(
                    "of an RDMA device; for those, build with `--features ibverbs`",
                ));
            }
            #[cfg(feature = "sim")]
            SIM_TAG => sim::SimEndpoint::read_from_bytes(rest).ok().map(Address::Sim),
            _ => return Err(EndpointError("of a device or version unknown here")),
        };
        address.map(Endpoint::new).ok_or(EndpointError("cut short, or too long"))
    }

    /// The number of its queue pair.
    pub fn qp(&self) -> QpNumber {
        match &self.address {
            Address::Shm(shm) => QpNumber(shm.qp),
            #[cfg(feature = "ibverbs")]
            Address::Ibv(ibv) => QpNumber(ibv.qp),
            #[cfg(feature = "sim")]
            Address::Sim(sim) => QpNumber(sim.qp),
        }
    }

    /// The global identifier of its device, as a datagram from there tells it
    /// ([`DatagramSource`](crate::DatagramSource)).
    pub fn gid(&self) -> [u8; 16] {
        match &self.address {
            Address::Shm(shm) => shm.gid,
            #[cfg(feature = "ibverbs")]
            Address::Ibv(ibv) => ibv.gid,
            #[cfg(feature = "sim")]
            Address::Sim(sim) => sim.gid(),
        }
    }

    pub(crate) fn new(address: Address) -> Endpoint {
        let (tag, record) = match &address {
            Address::Shm(shm) => (SHM_TAG, shm.as_bytes()),
            #[cfg(feature = "ibverbs")]
            Address::Ibv(ibv) => (IBV_TAG, ibv.as_bytes()),
            #[cfg(feature = "sim")]
            Address::Sim(sim) => (SIM_TAG, sim.as_bytes()),
        };
        let mut bytes = [0; Endpoint::MAX_BYTES];
        let len = tag.len() + record.len();
        bytes[..tag.len()].copy_from_slice(&tag);
        bytes[tag.len()..len].copy_from_slice(record);
        Endpoint { bytes, len: len as u8, address }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
}

impl std::fmt::Debug for Endpoint {
    /// Omits the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("qp", &self.qp().0).finish_non_exhaustive()
    }
}

/// A UD destination: the device of an endpoint. One handle serves all its queue pairs.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    handle: dispatch::AddressHandle,
}

impl AddressHandle {
    pub(crate) fn new(handle: dispatch::AddressHandle) -> AddressHandle {
        AddressHandle { handle }
    }

    pub(crate) fn shm(&self) -> Option<&shm::AddressHandle> {
        match &self.handle {
            dispatch::AddressHandle::Shm(handle) => Some(handle),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => None,
        }
    }

    #[cfg(feature = "sim")]
    pub(crate) fn sim(&self) -> Option<&sim::AddressHandle> {
        match &self.handle {
            dispatch::AddressHandle::Sim(handle) => Some(handle),
            _ => None,
        }
    }

    #[cfg(feature = "ibverbs")]
    #[inline]
    pub(crate) fn ibv(&self) -> Option<&Arc<ibv::AddressHandle>> {
        match &self.handle {
            dispatch::AddressHandle::Ibv(handle) => Some(handle),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint() -> Endpoint {
        Endpoint::new(Address::Shm(shm::ShmEndpoint {
            secret: 0x1122_3344_5566_7788,
            gid: [7; 16],
            uid: 1000,
            qp: 42,
            ty: 0,
            reserved: 0,
        }))
    }

    #[test]
    fn an_endpoint_survives_encoding() {
        let back = Endpoint::from_bytes(endpoint().to_bytes()).unwrap();
        assert_eq!((back.qp(), &back), (QpNumber(42), &endpoint()));
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", endpoint()).contains("1122"));
    }

    proptest! {
        #[test]
        fn only_whole_endpoints_are_accepted(cut in 0usize..44, garbage: Vec<u8>) {
            prop_assert!(Endpoint::from_bytes(&endpoint().to_bytes()[..cut]).is_err());
            let _ = Endpoint::from_bytes(&garbage);
        }
    }
}
