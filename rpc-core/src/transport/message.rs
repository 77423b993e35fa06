//! The bytes of one arrived message.

use bytes::{Buf, Bytes};
use core::fmt;
use core::ops::Deref;

/// Bytes of each message in front of the encoded arguments, or of the encoded result.
pub const MESSAGE_HEADER_BYTES: usize = 8;

/// A message that arrived. Its bytes are in private memory: no peer can write them any more.
#[derive(Clone)]
pub enum Message<'a> {
    /// In a buffer of the transport; valid during the callback.
    Borrowed(&'a [u8]),
    /// A large message in memory of its own, which can be kept.
    Owned(Bytes),
}

impl<'a> Message<'a> {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Message::Borrowed(bytes) => bytes,
            Message::Owned(bytes) => bytes,
        }
    }

    /// The bytes, owned: copied if they were borrowed.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Message::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Message::Owned(bytes) => bytes,
        }
    }

    /// The message without its first `n` bytes; `None` if it is shorter.
    #[inline(always)]
    pub fn skip(self, n: usize) -> Option<Message<'a>> {
        match self {
            Message::Borrowed(bytes) => bytes.get(n..).map(Message::Borrowed),
            Message::Owned(mut bytes) if n <= bytes.len() => {
                bytes.advance(n);
                Some(Message::Owned(bytes))
            }
            Message::Owned(_) => None,
        }
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Message<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Message::Borrowed(_) => "borrowed",
            Message::Owned(_) => "owned",
        };
        write!(f, "Message({kind}, {} bytes)", self.len())
    }
}
