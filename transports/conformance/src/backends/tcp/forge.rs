//! One end of a `tcp` connection, driven by hand. The frames are written down a second time, byte by byte, so that a change of
//! them is noticed.

use farcall_core::ServiceDescription;
use farcall_transports::contract::Terms;
use farcall_transports::handshake::{Frame, Reject};

use super::NAME;
use crate::{
    backends::UnconnectedEnd,
    hostile::{RawConnection, RawListener, Stream, hello, read_frame, shake_hands, welcome_client},
};

/// Kinds of frames.
pub(super) mod kind {
    /// A whole message.
    pub(crate) const WHOLE: u8 = 1;
    /// A large message waits.
    pub(crate) const BEGIN: u8 = 2;
    /// It may be sent.
    pub(crate) const GRANT: u8 = 3;
    /// Bytes of it.
    pub(crate) const PART: u8 = 4;
    /// The caller does not wait any more.
    pub(crate) const CANCEL: u8 = 5;
    /// The cancelled call has ended.
    pub(crate) const DROPPED: u8 = 6;
    /// Nothing follows.
    pub(crate) const GOODBYE: u8 = 7;
}

/// What both ends say of themselves.
const SETUP: &[u8] = b"farcall tcp 1";

/// The longest body of a part.
pub(super) const PART_BYTES: usize = 128 << 10;

/// A frame: twelve bytes of header, and its body.
pub(super) fn frame(kind: u8, slot: u16, generation: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(generation.to_le_bytes());
    bytes.extend(slot.to_le_bytes());
    bytes.extend([kind, 0]);
    bytes.extend(body);
    bytes
}

/// The announcement of a message of that length.
pub(super) fn begin(slot: u16, generation: u32, len: u64) -> Vec<u8> {
    frame(kind::BEGIN, slot, generation, &len.to_le_bytes())
}

/// The message of a request: method, no deadline, arguments.
pub(super) fn call(method: u32, arguments: &[u8]) -> Vec<u8> {
    [&method.to_le_bytes()[..], &[0; 4], arguments].concat()
}

/// A request in one frame.
pub(super) fn request(slot: u16, generation: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    frame(kind::WHOLE, slot, generation, &call(method, arguments))
}

/// An end before the handshake: there is nothing to make.
pub(super) struct Unconnected;

impl UnconnectedEnd for Unconnected {
    fn setup(&self) -> Vec<u8> {
        SETUP.to_vec()
    }
}

/// Setups that either end must refuse.
pub(super) fn broken_setups() -> Vec<Vec<u8>> {
    vec![SETUP[..SETUP.len() - 1].to_vec(), b"farcall tcp 2".to_vec(), [SETUP, b"0"].concat()]
}

/// A frame that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) kind: u8,
    pub(super) slot: u16,
    pub(super) generation: u32,
    pub(super) body: Vec<u8>,
}

/// An end that is connected.
pub(super) struct End {
    stream: Box<dyn Stream>,
}

/// Shakes hands as a client that keeps the rules so far.
pub(super) fn connect(
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
) -> Result<End, Reject> {
    let RawConnection { mut stream, .. } = to;
    shake_hands(&mut *stream, &hello(NAME, service, wanted, SETUP.to_vec()))?;
    Ok(End { stream })
}

/// The same for a client that sends these bytes together with the last frame of its handshake.
pub(super) fn connect_with(
    to: RawConnection,
    service: &'static ServiceDescription,
    wanted: Terms,
    first: &[u8],
) -> End {
    let RawConnection { mut stream, .. } = to;
    let hello = hello(NAME, service, wanted, SETUP.to_vec());
    stream.write_all(&hello.to_bytes()).expect("write hello");
    let answer = read_frame(&mut *stream);
    assert!(matches!(answer, Ok(Frame::Welcome(_))), "{answer:?}");
    stream.write_all(&[&Frame::Ready.to_bytes(), first].concat()).expect("write ready");
    End { stream }
}

/// Shakes hands as a server that keeps the rules so far.
pub(super) fn accept(listener: &mut RawListener, most: Terms) -> End {
    let ((), _, stream) = welcome_client(listener, most, |_, _| ((), SETUP.to_vec()));
    End { stream }
}

impl End {
    /// Writes these bytes; `false` if the other end has closed the stream, or reads nothing for a while.
    pub(super) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Writes these bytes one by one, and lets others run in between.
    pub(super) fn trickle(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| {
            std::thread::yield_now();
            self.send(&[*byte])
        })
    }

    /// The next frame; nothing if the stream has ended.
    pub(super) fn next_frame(&mut self) -> Option<Arrived> {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header).ok()?;
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let slot = u16::from_le_bytes([header[8], header[9]]);
        let mut body = vec![0; number(0) as usize];
        self.stream.read_exact(&mut body).ok()?;
        assert_eq!(header[11], 0);
        Some(Arrived { kind: header[10], slot, generation: number(4), body })
    }

    /// Sends no more, and goes on reading.
    pub(super) fn close_half(&self) {
        self.stream.close_half();
    }

    /// Whether the other end ends the connection, within the bound on a read.
    pub(super) fn is_dropped(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    use std::io::ErrorKind::{TimedOut, WouldBlock};
                    return !matches!(error.kind(), WouldBlock | TimedOut);
                }
            }
        }
    }
}
