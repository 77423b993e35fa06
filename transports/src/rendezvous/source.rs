//! The bytes of a large request, until they have been written.

use bytes::Bytes;
use farcall_verbs::Buffer;

/// Bytes that may be in front of a shared message.
pub(crate) const MOST_FRONT_BYTES: usize = 16;

/// Where a request, or the rest of it, is.
#[derive(Debug)]
pub(crate) enum Source {
    /// In registered memory.
    Registered(Buffer),
    /// In its caller's.
    Shared(Shared),
}

/// A few bytes and then those of memory that is shared with others.
#[derive(Debug)]
pub(crate) struct Shared {
    front: [u8; MOST_FRONT_BYTES],
    front_len: usize,
    body: Bytes,
}

impl Shared {
    pub(crate) fn pieces(&self) -> [&[u8]; 2] {
        [&self.front[..self.front_len], &self.body]
    }
}

impl Source {
    /// These bytes, and then these.
    ///
    /// # Panics
    /// If there are more than a few in front.
    pub(crate) fn shared(front: &[u8], body: &Bytes) -> Source {
        let mut bytes = [0; MOST_FRONT_BYTES];
        bytes[..front.len()].copy_from_slice(front);
        Source::Shared(Shared { front: bytes, front_len: front.len(), body: body.clone() })
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Source::Shared(_))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Source::Registered(buffer) => buffer.len(),
            Source::Shared(shared) => shared.front_len + shared.body.len(),
        }
    }

    /// Splits off the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer, or the front of a shared message has more.
    pub(crate) fn split_to(&mut self, n: usize) -> Source {
        match self {
            Source::Registered(buffer) => Source::Registered(buffer.split_to(n)),
            Source::Shared(Shared { front, front_len, body }) => {
                let (front, front_len) = (*front, std::mem::take(front_len));
                let body = body.split_to(n - front_len);
                Source::Shared(Shared { front, front_len, body })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_message_is_split_behind_its_front() {
        let body = Bytes::from_static(b"0123456789");
        let mut rest = Source::shared(b"front", &body);
        let mut read = Vec::new();
        for n in [7, 5, 3] {
            assert_eq!(rest.len(), 15 - read.len());
            let Source::Shared(part) = rest.split_to(n) else { panic!("it is shared") };
            assert_eq!(part.pieces().concat().len(), n);
            read.extend_from_slice(&part.pieces().concat());
        }
        assert_eq!(read, b"front0123456789");
        assert_eq!(rest.len(), 0);
    }
}
