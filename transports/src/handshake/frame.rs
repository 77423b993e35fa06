//! The frames of a handshake, and their bytes.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::methods::MethodEntry;
use crate::contract::Terms;

/// The version of everything that two ends must agree on: these frames, and each backend's layout.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest body of a frame. Endpoints and names are far shorter.
pub const MAX_BODY_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"farcall\n";

/// In front of each frame, the same in every version, so that a mismatch can be told from garbage.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Prefix {
    magic: [u8; 8],
    version: U32,
    len: U32,
}

/// Bytes in front of each frame's body.
pub(super) const PREFIX_BYTES: usize = size_of::<Prefix>();

/// The client's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The backend's name.
    pub backend: String,
    /// The service's name.
    pub service: String,
    /// The fingerprint of the service's methods.
    pub fingerprint: u64,
    /// What the client is ready to give.
    pub terms: Terms,
    /// What the backend has to say: queue pair, regions.
    pub setup: Vec<u8>,
}

/// The server's answer to a hello that fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// What holds for this connection.
    pub terms: Terms,
    /// What the backend has to say.
    pub setup: Vec<u8>,
}

/// The server's answer to a hello that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reject {
    /// The server runs another backend.
    Backend {
        /// The server's backend.
        theirs: String,
    },
    /// The server does not serve that service.
    Service {
        /// What it serves.
        served: Vec<String>,
    },
    /// A reason of the server's own: full, shutting down, out of memory.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The client's frame broke the protocol.
    Malformed {
        /// The rule that it broke.
        what: String,
    },
    /// The client runs as another user.
    NotPermitted {
        /// Whose credentials did not fit.
        reason: String,
    },
}

/// Every frame after its prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame {
    /// Client: may I?
    Hello(Hello),
    /// Server: yes.
    Welcome(Welcome),
    /// Server: no.
    Reject(Reject),
    /// Client: my queue pair is connected; requests follow.
    Ready,
    /// Server, before its welcome: your fingerprint differs; these are my methods, or some of them, by ascending id.
    Methods(Vec<MethodEntry>),
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes do not begin as a frame does.
    #[error("these bytes are not a farcall handshake")]
    Magic,
    /// Another version of the protocol.
    #[error("protocol version {theirs}, where {PROTOCOL_VERSION} is spoken")]
    Version {
        /// The version of the other end.
        theirs: u32,
    },
    /// The body is longer than any frame's.
    #[error("a body of {len} bytes, where {MAX_BODY_BYTES} are the most")]
    TooLong {
        /// The length announced.
        len: usize,
    },
    /// The body cannot be decoded.
    #[error("the frame's body cannot be decoded")]
    Body,
}

impl Frame {
    /// The frame's bytes, prefix included.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A frame is made of our own strings and numbers: encoding it cannot fail but for want of
        // memory.
        let body = postcard::to_allocvec(self).unwrap_or_default();
        let prefix = Prefix {
            magic: MAGIC,
            version: PROTOCOL_VERSION.into(),
            len: (body.len() as u32).into(),
        };
        [prefix.as_bytes(), &body].concat()
    }

    /// The length of the body that follows this prefix.
    pub(super) fn body_len(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, FrameError> {
        let prefix = Prefix::read_from_bytes(prefix).map_err(|_| FrameError::Magic)?;
        if prefix.magic != MAGIC {
            return Err(FrameError::Magic);
        }
        let theirs = prefix.version.get();
        if theirs != PROTOCOL_VERSION {
            return Err(FrameError::Version { theirs });
        }
        let len = prefix.len.get() as usize;
        if len > MAX_BODY_BYTES {
            return Err(FrameError::TooLong { len });
        }
        Ok(len)
    }

    /// The frame of a body, which nothing follows.
    ///
    /// # Errors
    /// [`FrameError::Body`].
    pub fn from_body(body: &[u8]) -> Result<Frame, FrameError> {
        match postcard::take_from_bytes(body) {
            Ok((frame, [])) => Ok(frame),
            _ => Err(FrameError::Body),
        }
    }
}

/// Puts frames together from bytes that come in any pieces.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Known once the prefix is there.
    body_len: Option<usize>,
}

impl FrameReader {
    /// How many bytes are missing until there is more to say. A reader of a socket that asks for no more never takes what
    /// follows the frame.
    pub fn missing(&self) -> usize {
        PREFIX_BYTES + self.body_len.unwrap_or(0) - self.bytes.len()
    }

    /// Takes bytes off the front, up to the end of the frame. Gives the frame once it is whole, and begins another.
    ///
    /// # Errors
    /// [`FrameError`] as soon as the bytes cannot be a frame; nothing more can be read then.
    pub fn push(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        loop {
            let (front, rest) = bytes.split_at(self.missing().min(bytes.len()));
            self.bytes.extend_from_slice(front);
            *bytes = rest;
            if self.missing() > 0 {
                return Ok(None);
            }
            if self.body_len.is_some() {
                let frame = Frame::from_body(&self.bytes[PREFIX_BYTES..])?;
                *self = FrameReader::default();
                return Ok(Some(frame));
            }
            let prefix = self.bytes.first_chunk().ok_or(FrameError::Magic)?;
            self.body_len = Some(Frame::body_len(prefix)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(mut bytes: &[u8]) -> Result<Frame, FrameError> {
        FrameReader::default().push(&mut bytes)?.ok_or(FrameError::Body)
    }

    fn hello() -> Frame {
        Frame::Hello(Hello {
            backend: "write_imm".into(),
            service: "Kv".into(),
            fingerprint: 0x1234_5678_9abc_def0,
            terms: Terms { window: 64, slot: 4096, max_message: 1 << 30 },
            setup: vec![1, 2, 3],
        })
    }

    #[test]
    fn frames_are_read_back() {
        for frame in [hello(), Frame::Ready, Frame::Methods(Vec::new())] {
            assert_eq!(read(&frame.to_bytes()), Ok(frame));
        }
    }

    #[test]
    fn frames_are_read_in_any_pieces_and_one_by_one() {
        let stream = [hello().to_bytes(), Frame::Ready.to_bytes()].concat();
        for piece in [1, 7, stream.len()] {
            let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
            for mut bytes in stream.chunks(piece) {
                while !bytes.is_empty() {
                    frames.extend(reader.push(&mut bytes).unwrap());
                }
            }
            assert_eq!(frames, [hello(), Frame::Ready]);
        }
    }

    #[test]
    fn another_version_is_told_before_the_body_is_looked_at() {
        let mut bytes = hello().to_bytes();
        bytes[8] = 9;
        bytes[PREFIX_BYTES..].fill(0xff);
        assert_eq!(read(&bytes), Err(FrameError::Version { theirs: 9 }));
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_it_is_read() {
        let mut bytes = hello().to_bytes();
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(&bytes), Err(FrameError::TooLong { len: u32::MAX as usize }));
    }

    proptest! {
        #[test]
        fn any_body_is_a_frame_or_an_error(body: Vec<u8>) {
            let _ = Frame::from_body(&body);
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0usize..60, value: u8) {
            let mut bytes = hello().to_bytes();
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = read(&bytes);
        }
    }
}
