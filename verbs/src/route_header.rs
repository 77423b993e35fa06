//! What lies in front of a received datagram.

/// The 40 bytes of an InfiniBand global route header (specification volume 1, section 8.3).
pub(crate) fn fill(into: &mut [u8], len: usize, source: &[u8; 16], target: &[u8; 16]) {
    into.fill(0);
    into[0] = 6 << 4; // IP version.
    into[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    into[6] = 0x1B; // Next header: InfiniBand transport.
    into[7] = 64; // Hop limit.
    into[8..24].copy_from_slice(source);
    into[24..40].copy_from_slice(target);
}
