//! Messages, immediates and slots, byte by byte.

/// Kinds of messages.
pub(crate) mod kind {
    /// A whole message.
    pub(crate) const INLINE: u8 = 1;
    /// A large request asks where it may land.
    pub(crate) const ANNOUNCE: u8 = 2;
    /// It may land there.
    pub(crate) const GRANT: u8 = 3;
    /// A large response waits there.
    pub(crate) const LENT: u8 = 4;
    /// The announced request is too long.
    pub(crate) const OVER_LIMIT: u8 = 5;
}

/// Operations of an immediate.
pub(crate) mod op {
    /// A message is in the slot.
    pub(crate) const MESSAGE: u32 = 0;
    /// A chunk has landed, or may land.
    pub(crate) const CHUNK: u32 = 1;
    /// The caller does not wait any more.
    pub(crate) const CANCEL: u32 = 2;
    /// The lent response has been read.
    pub(crate) const RELEASE: u32 = 3;
    /// Nothing follows.
    pub(crate) const GOODBYE: u32 = 4;
    /// How responses travel, in `rfp`.
    pub(crate) const MODE: u32 = 6;
    /// So many operations have been read, in `send_recv`.
    pub(crate) const CREDIT: u32 = 7;
}

/// A message: eight bytes of header, and its body.
pub(crate) fn message(generation: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = generation.to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// A request of the core: method, no deadline, arguments.
pub(crate) fn request(generation: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    let mut body = method.to_le_bytes().to_vec();
    body.extend([0; 4]);
    body.extend(arguments);
    message(generation, kind::INLINE, &body)
}

/// Bytes from the beginning of one slot to that of the next: an odd number of cache lines, at least three.
pub(crate) fn stride(slot: u32) -> u32 {
    let lines = slot.div_ceil(64) | 1;
    64 * lines.max(3)
}

/// A region's name as it travels in a message.
pub(crate) fn wire_region(addr: u64, len: u64, rkey: u32) -> Vec<u8> {
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &rkey.to_le_bytes()].concat()
}
