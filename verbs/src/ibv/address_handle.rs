//! The way to a peer's device, for datagrams.

use std::sync::Arc;

use super::context::Context;
use super::domain::ProtectionDomain;
use super::endpoint::IbvEndpoint;
use super::status;
use super::sys::{Handle, Zeroed, ibv_ah, ibv_ah_attr};
use crate::{ConnectError, VerbsError};

/// Packets may cross so many routers.
const HOP_LIMIT: u8 = 64;

/// An address handle. Datagrams that are under way hold it.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(super) raw: Handle<ibv_ah>,
    pub(super) domain: Arc<ProtectionDomain>,
}

/// The way to a port: by its GID, and in an InfiniBand subnet by its LID.
pub(super) fn way_to(context: &Context, gid: &[u8; 16], lid: u16) -> ibv_ah_attr {
    let mut way = ibv_ah_attr::zeroed();
    way.port_num = context.port.number;
    way.dlid = lid;
    if context.port.ethernet || lid == 0 {
        way.is_global = 1;
        way.grh.dgid.raw = *gid;
        way.grh.sgid_index = context.port.gid_index;
        way.grh.hop_limit = HOP_LIMIT;
    }
    way
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
        let mut way = way_to(&domain.context, gid, lid);
        // SAFETY: the domain lives, and the structure is ours.
        let raw =
            Handle::new(unsafe { (domain.context.library.create_ah)(domain.raw.raw(), &mut way) });
        let raw = raw.ok_or_else(|| -> ConnectError {
            status::connecting(gid, "address handle", status::last())
        })?;
        Ok(Arc::new(AddressHandle { raw, domain: Arc::clone(domain) }))
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: datagrams that use it hold it, so none is under way.
        unsafe { (self.domain.context.library.destroy_ah)(self.raw.raw()) };
    }
}
