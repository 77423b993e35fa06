//! The global route header in front of a received datagram.

use crate::GRH_BYTES;

/// The 40 bytes of an InfiniBand global route header (specification volume 1, section 8.3), with an unset
/// length.
#[derive(Debug)]
pub(crate) struct RouteHeader([u8; GRH_BYTES]);

impl RouteHeader {
    pub(crate) fn new(source: &[u8; 16], target: &[u8; 16]) -> RouteHeader {
        let mut header = [0; GRH_BYTES];
        header[0] = 6 << 4; // IP version.
        header[6] = 0x1B; // Next header: InfiniBand transport.
        header[7] = 64; // Hop limit.
        header[8..24].copy_from_slice(source);
        header[24..40].copy_from_slice(target);
        RouteHeader(header)
    }

    /// Writes it in front of a datagram of `len` bytes.
    #[inline]
    pub(crate) fn fill(&self, into: &mut [u8; GRH_BYTES], len: usize) {
        *into = self.0;
        into[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    }
}
