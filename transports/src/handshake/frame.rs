//! The frames of a handshake, and their bytes.

use std::iter;

use farcall_core::transport::{ConnectionId, Lane, LaneReason};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::methods::MethodEntry;
use super::proof::{Nonce, Proof};
use super::versions::{SPOKEN, Versions};
use crate::contract::{SlicePlan, Terms};

/// Longest body of a frame. Endpoints and names are far shorter.
pub const MAX_BODY_BYTES: usize = 4096;

/// Most services of one connection.
pub const MAX_SERVICES: usize = 32;

/// The first version whose hello names further services.
pub(super) const NAMES_FURTHER: u16 = 2;

/// The first version whose connections may have several lanes.
pub(super) const HAS_LANES: u16 = 3;

/// The first version whose hello names a server thread, and says why the lane is opened.
pub(super) const NAMES_THREAD: u16 = 4;

const MAGIC: [u8; 8] = *b"farcall\n";

/// The first bytes of TLS instead: the type of a record, an alert or a message of a handshake, and the version.
const TLS: [[u8; 2]; 2] = [[0x15, 0x03], [0x16, 0x03]];

/// Whether these first bytes of a peer are those of a frame, as far as they go.
pub(crate) fn begins_as_frame(bytes: &[u8]) -> bool {
    bytes.iter().zip(MAGIC).all(|(byte, expected)| *byte == expected)
}

/// In front of each frame, the same in every version, so that a mismatch can be told from garbage.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Prefix {
    magic: [u8; 8],
    /// The versions that the sender speaks, or the one that it has agreed to.
    lowest: U16,
    highest: U16,
    len: U32,
}

/// Bytes in front of each frame's body.
pub(super) const PREFIX_BYTES: usize = size_of::<Prefix>();

/// Longest frame.
pub const MAX_FRAME_BYTES: usize = PREFIX_BYTES + MAX_BODY_BYTES;

/// The client's first frame, which is written before the version is agreed on: a later version adds fields at its end, which
/// earlier ones ignore.
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
    /// Further services that the connection is to carry, since version 2.
    #[serde(skip)]
    pub further: Vec<NamedService>,
    /// Which lane it is, since version 3.
    #[serde(skip)]
    pub lane: Lane,
    /// The server thread that is to serve it, since version 4.
    #[serde(skip)]
    pub thread: Option<u16>,
    /// Why the client opens it, since version 4.
    #[serde(skip)]
    pub why: LaneReason,
}

/// A service as a client names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedService {
    /// Its name.
    pub name: String,
    /// The fingerprint of its methods.
    pub fingerprint: u64,
}

impl Hello {
    /// The names of all services that the connection is to carry.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        iter::once(&*self.service).chain(self.further.iter().map(|further| &*further.name))
    }

    /// Reads what later versions say after the fields of the first one.
    fn with_later_parts(self, bytes: &[u8], body: Body) -> Result<Hello, FrameError> {
        let (mut hello, mut rest) = (self, bytes);
        if body.version >= NAMES_FURTHER {
            (hello.further, rest) = take(rest)?;
        }
        if body.version >= HAS_LANES {
            (hello.lane, rest) = take(rest)?;
        }
        if body.version >= NAMES_THREAD {
            let number;
            (hello.thread, rest) = take(rest)?;
            (number, rest) = take(rest)?;
            hello.why = LaneReason::of_number(number);
        } else if let Lane::Of(_) = hello.lane {
            hello.why = LaneReason::Unknown;
        }
        if hello.further.len() >= MAX_SERVICES || !(rest.is_empty() || body.may_be_longer) {
            return Err(FrameError::Body);
        }
        Ok(hello)
    }
}

/// A value at the front of these bytes, and the rest.
fn take<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<(T, &'b [u8]), FrameError> {
    postcard::take_from_bytes(bytes).map_err(|_| FrameError::Body)
}

/// The server's answer to a hello that fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// What holds for this connection.
    pub terms: Terms,
    /// What the backend has to say.
    pub setup: Vec<u8>,
    /// The id of the connection, if the client is to be one of several lanes, since version 3.
    #[serde(skip)]
    pub connection: Option<ConnectionId>,
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
    /// The server shuts down: another may listen there soon.
    ShuttingDown,
}

/// A server's answer to another that asks for its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeTold {
    /// When the question came, by the clock of its server threads.
    pub received_nanos: u64,
    /// When the answer left.
    pub answered_nanos: u64,
    /// The slices that it shares.
    pub plan: SlicePlan,
}

/// A client's answer to a challenge. Its [proof](Frame::Proof) follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identify {
    /// The name of its key.
    pub key: String,
    /// The name of the only server that it wants.
    pub server: Option<String>,
    /// For this handshake only.
    pub nonce: Nonce,
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
    /// A server, instead of a client's hello: what is your time? It may ask again when it has the answer.
    AskTime,
    /// Server: this.
    Time(TimeTold),
    /// Server, after a hello: who are you? Its nonce is for this handshake only.
    Challenge(Nonce),
    /// Client: this.
    Identify(Identify),
    /// Client, after `Identify`, and server, after its welcome: I have the secret, and this is what I have said and heard.
    Proof(Proof),
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes do not begin as a frame does.
    #[error("these bytes are not a farcall handshake")]
    Magic,
    /// The bytes begin as TLS does.
    #[error("these bytes are TLS")]
    Tls,
    /// The ends have no version of the protocol in common.
    #[error("protocol version {theirs}, where {ours} is spoken")]
    Version {
        /// The versions of this end.
        ours: Versions,
        /// The versions of the other end.
        theirs: Versions,
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
    /// The frame's bytes, prefix included, from an end that speaks [`SPOKEN`].
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_in(SPOKEN)
    }

    /// The frame's bytes, prefix included, from an end that speaks these versions, or has agreed to one.
    pub fn to_bytes_in(&self, versions: Versions) -> Vec<u8> {
        // A frame is made of our own strings and numbers: encoding it cannot fail but for want of
        // memory.
        let mut body = postcard::to_allocvec(self).unwrap_or_default();
        let mut add = |bytes: Result<Vec<u8>, _>| body.extend(bytes.unwrap_or_default());
        match self {
            Frame::Hello(hello) => {
                if versions.highest >= NAMES_FURTHER {
                    add(postcard::to_allocvec(&hello.further));
                }
                if versions.highest >= HAS_LANES {
                    add(postcard::to_allocvec(&hello.lane));
                }
                if versions.highest >= NAMES_THREAD {
                    add(postcard::to_allocvec(&hello.thread));
                    add(postcard::to_allocvec(&hello.why.number()));
                }
            }
            Frame::Welcome(welcome) if versions.highest >= HAS_LANES => {
                add(postcard::to_allocvec(&welcome.connection));
            }
            _ => {}
        }
        let prefix = Prefix {
            magic: MAGIC,
            lowest: versions.lowest.into(),
            highest: versions.highest.into(),
            len: (body.len() as u32).into(),
        };
        [prefix.as_bytes(), &body].concat()
    }

    /// The frame of a body, which nothing follows.
    ///
    /// # Errors
    /// [`FrameError::Body`].
    pub fn from_body(body: &[u8]) -> Result<Frame, FrameError> {
        match Frame::from_front(body)? {
            (frame, []) => Ok(frame),
            _ => Err(FrameError::Body),
        }
    }

    /// The frame at the front of these bytes, and the rest.
    fn from_front(body: &[u8]) -> Result<(Frame, &[u8]), FrameError> {
        take(body)
    }
}

/// Puts frames together from bytes that come in any pieces.
#[derive(Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// The bytes of the last whole frame.
    last: Vec<u8>,
    /// Known once the prefix is there.
    body: Option<Body>,
    /// The versions that frames may have: after the first one, only the version that both ends take.
    versions: Versions,
}

/// The body that follows a prefix.
#[derive(Debug, Clone, Copy)]
struct Body {
    len: usize,
    /// The version that both ends take.
    version: u16,
    /// Its sender speaks later versions than this end: what follows the fields that are known here is theirs.
    may_be_longer: bool,
}

impl Default for FrameReader {
    fn default() -> FrameReader {
        FrameReader::speaking(SPOKEN)
    }
}

impl FrameReader {
    /// A reader at an end that speaks these versions.
    pub fn speaking(versions: Versions) -> FrameReader {
        FrameReader { bytes: Vec::new(), last: Vec::new(), body: None, versions }
    }

    /// The versions that this end speaks; once a frame has been read, the one that both take.
    pub fn versions(&self) -> Versions {
        self.versions
    }

    /// Checks a prefix, and takes the highest common version.
    fn read_prefix(&mut self) -> Result<Body, FrameError> {
        let prefix = Prefix::read_from_bytes(&self.bytes).map_err(|_| FrameError::Magic)?;
        if TLS.iter().any(|tls| prefix.magic.starts_with(tls)) {
            return Err(FrameError::Tls);
        }
        if prefix.magic != MAGIC {
            return Err(FrameError::Magic);
        }
        let theirs = Versions { lowest: prefix.lowest.get(), highest: prefix.highest.get() };
        let ours = self.versions;
        let common = ours.highest_common(theirs).ok_or(FrameError::Version { ours, theirs })?;
        let len = prefix.len.get() as usize;
        if len > MAX_BODY_BYTES {
            return Err(FrameError::TooLong { len });
        }
        self.versions = Versions::only(common);
        Ok(Body { len, version: common, may_be_longer: theirs.highest > ours.highest })
    }

    /// How many bytes are missing until there is more to say. A reader of a socket that asks for no more never takes what
    /// follows the frame.
    pub fn missing(&self) -> usize {
        PREFIX_BYTES + self.body.map_or(0, |body| body.len) - self.bytes.len()
    }

    /// The bytes of the last frame that was given, as they came.
    pub(super) fn last_bytes(&self) -> &[u8] {
        &self.last
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
            let Some(body) = self.body else {
                self.body = Some(self.read_prefix()?);
                continue;
            };
            let frame = match Frame::from_front(&self.bytes[PREFIX_BYTES..])? {
                (Frame::Hello(hello), rest) => Frame::Hello(hello.with_later_parts(rest, body)?),
                (Frame::Welcome(welcome), rest) if body.version >= HAS_LANES => match take(rest)? {
                    (connection, []) => Frame::Welcome(Welcome { connection, ..welcome }),
                    _ => return Err(FrameError::Body),
                },
                (frame, []) => frame,
                _ => return Err(FrameError::Body),
            };
            self.last = std::mem::take(&mut self.bytes);
            self.body = None;
            return Ok(Some(frame));
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
            further: vec![NamedService { name: "Log".into(), fingerprint: 5 }],
            lane: Lane::Of(ConnectionId::new([7; 16])),
            thread: Some(3),
            why: LaneReason::Trial,
        })
    }

    #[test]
    fn frames_are_read_back() {
        let plan = SlicePlan { groups: 3, slice_nanos: 1 };
        let time = TimeTold { received_nanos: 1, answered_nanos: u64::MAX, plan };
        let others = [Frame::Ready, Frame::AskTime, Frame::Time(time)];
        for frame in [hello(), Frame::Methods(Vec::new())].into_iter().chain(others) {
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
        bytes[8..12].copy_from_slice(&[7, 0, 9, 0]);
        bytes[PREFIX_BYTES..].fill(0xff);
        let theirs = Versions { lowest: 7, highest: 9 };
        assert_eq!(read(&bytes), Err(FrameError::Version { ours: SPOKEN, theirs }));
    }

    #[test]
    fn a_later_versions_hello_may_say_more_and_no_other_frame_may() {
        let later = Versions { highest: SPOKEN.highest + 1, ..SPOKEN };
        let longer = |frame: Frame, versions: Versions| {
            let mut bytes = frame.to_bytes_in(versions);
            bytes[12] += 3;
            bytes.extend([1, 2, 3]);
            read(&bytes)
        };
        assert_eq!(longer(hello(), later), Ok(hello()));
        assert_eq!(longer(hello(), SPOKEN), Err(FrameError::Body));
        assert_eq!(longer(Frame::Ready, later), Err(FrameError::Body));
    }

    #[test]
    fn ends_of_earlier_versions_know_less_of_a_hello() {
        let range = |lowest, highest| Versions { lowest, highest };
        let Frame::Hello(sent) = hello() else { unreachable!() };
        let read = |ours, theirs| {
            let bytes = Frame::Hello(sent.clone()).to_bytes_in(theirs);
            let Ok(Some(Frame::Hello(read))) = FrameReader::speaking(ours).push(&mut &*bytes)
            else {
                panic!("a hello of {theirs} at an end of {ours}");
            };
            let of_first = |hello: &Hello| Hello {
                further: Vec::new(),
                lane: Lane::Alone,
                thread: None,
                why: LaneReason::First,
                ..hello.clone()
            };
            assert_eq!(of_first(&sent), of_first(&read));
            (read.further.len(), read.lane != Lane::Alone, read.thread, read.why)
        };
        let (trial, unknown, first) = (LaneReason::Trial, LaneReason::Unknown, LaneReason::First);
        for (ours, theirs, later_parts) in [
            (range(1, 4), range(1, 4), (1, true, Some(3), trial)),
            (range(1, 4), range(2, 5), (1, true, Some(3), trial)),
            (range(1, 3), range(1, 4), (1, true, None, unknown)),
            (range(1, 4), range(1, 3), (1, true, None, unknown)),
            (range(1, 2), range(1, 3), (1, false, None, first)),
            (range(1, 3), range(1, 2), (1, false, None, first)),
            (range(1, 1), range(1, 4), (0, false, None, first)),
            (range(1, 4), range(1, 1), (0, false, None, first)),
        ] {
            assert_eq!(read(ours, theirs), later_parts, "{theirs} at {ours}");
        }
    }

    #[test]
    fn a_reason_that_is_not_known_is_no_reason_to_refuse() {
        let bytes = hello().to_bytes();
        let read_with = |number| {
            let mut bytes = bytes.clone();
            // It is the last byte of a hello.
            *bytes.last_mut().unwrap() = number;
            let Ok(Frame::Hello(hello)) = read(&bytes) else { panic!("{number} is refused") };
            hello.why
        };
        assert_eq!([0, 1, 4].map(read_with), [0, 1, 4].map(LaneReason::of_number));
        assert_eq!([5, 99, 127, 255].map(read_with), [LaneReason::Unknown; 4]);
    }

    #[test]
    fn a_hello_names_no_more_services_than_a_connection_carries() {
        let Frame::Hello(hello) = hello() else { unreachable!() };
        let with = |count| {
            let named = NamedService { name: "Log".into(), fingerprint: 5 };
            read(&Frame::Hello(Hello { further: vec![named; count], ..hello.clone() }).to_bytes())
        };
        assert!(with(MAX_SERVICES - 1).is_ok());
        assert_eq!(with(MAX_SERVICES), Err(FrameError::Body));
    }

    #[test]
    fn after_the_first_frame_only_the_agreed_version_is_read() {
        let range = |lowest, highest| Versions { lowest, highest };
        let mut reader = FrameReader::speaking(range(2, 5));
        let read = |reader: &mut FrameReader, versions| {
            reader.push(&mut &*Frame::Ready.to_bytes_in(versions)).map(|frame| frame.is_some())
        };
        assert_eq!(read(&mut reader, range(1, 3)), Ok(true));
        assert_eq!(reader.versions(), range(3, 3));
        let (ours, theirs) = (range(3, 3), range(4, 5));
        assert_eq!(read(&mut reader, theirs), Err(FrameError::Version { ours, theirs }));
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
