//! Telling a peer where bytes are that it may READ.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use farcall_verbs::{ProtectionDomain, Publication, RemoteRegion};

use super::slab::{Key, Slab};

/// The slabs that the peer of one connection may READ.
#[derive(Debug)]
pub(crate) struct Exports {
    pd: ProtectionDomain,
    /// Where peers map memory: they map a slab once.
    known: Vec<(Weak<Slab>, Arc<Key>)>,
}

/// Bytes that a peer may READ until this is dropped.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) region: RemoteRegion,
    _bytes: Bytes,
    /// Where a NIC checks each access: the key of these bytes alone, so that the peer sees no others.
    _key: Option<Publication>,
}

impl Exports {
    /// To the peers of this domain.
    pub(crate) fn new(pd: &ProtectionDomain) -> Exports {
        Exports { pd: pd.clone(), known: Vec::new() }
    }

    /// Lets the peer READ these bytes, if they are memory of a pool and the device allows it.
    pub(crate) fn export(&mut self, bytes: &Bytes) -> Option<Export> {
        let slab = Slab::find(bytes)?;
        let exported = match self.pd.caps().network {
            true => self.export_alone(&slab, bytes),
            false => self.export_whole(&slab, bytes),
        };
        exported.unwrap_or_else(|error| {
            tracing::debug!(%error, "a buffer is copied, because the peer cannot be let to READ it");
            None
        })
    }

    fn export_alone(
        &self,
        slab: &Slab,
        bytes: &Bytes,
    ) -> Result<Option<Export>, farcall_verbs::VerbsError> {
        let key = slab.publish(&self.pd, bytes)?;
        Ok(key.remote(bytes).map(|region| Export {
            region,
            _bytes: bytes.clone(),
            _key: Some(key),
        }))
    }

    fn export_whole(
        &mut self,
        slab: &Arc<Slab>,
        bytes: &Bytes,
    ) -> Result<Option<Export>, farcall_verbs::VerbsError> {
        let is_known = |(known, _): &&(Weak<Slab>, Arc<Key>)| known.as_ptr() == Arc::as_ptr(slab);
        let key = match self.known.iter().find(is_known) {
            Some((_, key)) => Arc::clone(key),
            None => {
                self.known.retain(|(known, _)| known.strong_count() > 0);
                let key = slab.publish_whole(&self.pd, bytes)?;
                self.known.push((Arc::downgrade(slab), Arc::clone(&key)));
                key
            }
        };
        Ok(key.remote(bytes).map(|region| Export { region, _bytes: bytes.clone(), _key: None }))
    }
}
