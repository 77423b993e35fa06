//! The bytes of requests and answers that a thread keeps or gives to another, in reused buffers.

use crate::transport::Message;
use bytes::Bytes;

/// Buffers that a thread keeps.
const MAX_KEPT: usize = 64;

/// Longer buffers are not kept.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// The bytes of a request that waits, here or on its way to another thread.
pub(super) enum Content {
    Copied(Vec<u8>),
    /// A large one has memory of its own already.
    Owned(Bytes),
}

impl Content {
    pub(in crate::server) fn message(&self) -> Message<'_> {
        match self {
            Content::Copied(bytes) => Message::Borrowed(bytes),
            Content::Owned(bytes) => Message::Owned(bytes.clone()),
        }
    }

    /// The bytes that were copied to keep them.
    pub(super) fn copied_bytes(&self) -> usize {
        match self {
            Content::Copied(bytes) => bytes.len(),
            Content::Owned(_) => 0,
        }
    }
}

/// The empty buffers of one thread. It gets about as many as it gives: each request brings a buffer, and so does each answer.
#[derive(Default)]
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// As many as are kept, with room for so many bytes each.
    pub(super) fn prepared(bytes: usize) -> Buffers {
        Buffers((0..MAX_KEPT).map(|_| Vec::with_capacity(bytes)).collect())
    }

    /// A copy of a message, unless it has memory of its own.
    pub(super) fn content(&mut self, message: Message<'_>) -> Content {
        match message {
            Message::Borrowed(bytes) => {
                let mut copy = self.empty();
                copy.extend_from_slice(bytes);
                Content::Copied(copy)
            }
            Message::Owned(bytes) => Content::Owned(bytes),
        }
    }

    pub(super) fn empty(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    pub(super) fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < MAX_KEPT && buffer.capacity() <= MAX_KEPT_BYTES {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
