//! The address of a peer's device, as a destination of datagrams.

use std::sync::Arc;

use super::context::Context;
use super::domain::ProtectionDomain;
use super::endpoint::IbvEndpoint;
use super::status;
use super::sys::{Handle, Zeroed, ibv_ah, ibv_ah_attr};
use crate::{ConnectError, VerbsError};

/// The number of routers that packets may cross.
const HOP_LIMIT: u8 = 64;

/// An address handle. Datagrams in flight keep it alive.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(super) raw: Handle<ibv_ah>,
    pub(super) domain: Arc<ProtectionDomain>,
}

/// The address of a port: its GID, and in an InfiniBand subnet its LID.
pub(super) fn address_attributes(context: &Context, gid: &[u8; 16], lid: u16) -> ibv_ah_attr {
    let mut attributes = ibv_ah_attr::zeroed();
    attributes.port_num = context.port.number;
    attributes.dlid = lid;
    if context.port.ethernet || lid == 0 {
        attributes.is_global = 1;
        attributes.grh.dgid.raw = *gid;
        attributes.grh.sgid_index = context.port.gid_index;
        attributes.grh.hop_limit = HOP_LIMIT;
    }
    attributes
}

impl AddressHandle {
    pub(crate) fn to_endpoint(
        domain: &Arc<ProtectionDomain>,
        peer: &IbvEndpoint,
    ) -> Result<Arc<AddressHandle>, VerbsError> {
        super::connect::check_network(&domain.context, peer)?;
        AddressHandle::create(domain, &peer.gid, peer.lid)
    }

    pub(crate) fn to_gid(
        domain: &Arc<ProtectionDomain>,
        gid: &[u8; 16],
    ) -> Result<Arc<AddressHandle>, VerbsError> {
        AddressHandle::create(domain, gid, 0)
    }

    fn create(
        domain: &Arc<ProtectionDomain>,
        gid: &[u8; 16],
        lid: u16,
    ) -> Result<Arc<AddressHandle>, VerbsError> {
        let mut attributes = address_attributes(&domain.context, gid, lid);
        // SAFETY: the domain lives, and the structure is ours.
        let raw = Handle::new(unsafe {
            (domain.context.library.create_ah)(domain.raw.raw(), &mut attributes)
        });
        let raw = raw.ok_or_else(|| -> ConnectError {
            status::connecting(gid, "address handle", status::last())
        })?;
        Ok(Arc::new(AddressHandle { raw, domain: Arc::clone(domain) }))
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: datagrams that use it keep it alive, so none is in flight.
        unsafe { (self.domain.context.library.destroy_ah)(self.raw.raw()) };
    }
}
