//! Peers that keep no rule: they speak the handshake and the device by hand, and write what they like.

pub mod datagram;
pub mod write_imm;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farcall_core::codec::{As, Reader, Serde, decode, encode, encoded_len};
use farcall_transports::handshake::{Frame, FrameError, PREFIX_BYTES, Terms};
use farcall_verbs::Device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The stream of a handshake.
pub trait Stream: Read + Write + Send {
    /// Has the other end closed it, or said something?
    fn has_news(&self) -> bool;
}

fn is_readable(socket: &impl AsFd) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut events, Some(&at_once)).is_ok_and(|found| found > 0)
}

impl Stream for UnixStream {
    fn has_news(&self) -> bool {
        is_readable(self)
    }
}

impl Stream for TcpStream {
    fn has_news(&self) -> bool {
        is_readable(self)
    }
}

/// How whoever keeps no rule waits.
pub trait Pace: Send {
    /// Lets everything else go on.
    fn turn(&self);

    /// Time that has passed.
    fn now(&self) -> Duration;
}

/// As the system's clock goes.
pub struct RealTime(pub Instant);

impl Pace for RealTime {
    fn turn(&self) {
        std::thread::yield_now();
    }

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A way past the client: a handshake's stream to a server, and the device to go on with.
pub struct BreakIn {
    /// The device that both ends use.
    pub device: Device,
    /// Connected to the server; reads are bounded in time.
    pub stream: Box<dyn Stream>,
    /// The server keeps the stream as long as the connection.
    pub is_tether: bool,
    /// How to wait.
    pub pace: Box<dyn Pace>,
}

/// A false server: what clients of an address connect to.
pub struct Ambush {
    /// The device that both ends use.
    pub device: Device,
    /// Gives the next client's stream; bounded in time.
    pub accept: Box<dyn FnMut() -> io::Result<Box<dyn Stream>> + Send>,
}

/// Reads one frame.
pub fn receive(stream: &mut dyn Stream) -> io::Result<Frame> {
    let invalid = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix)?;
    let mut body = vec![0; Frame::body_len(&prefix).map_err(invalid)?];
    stream.read_exact(&mut body)?;
    Frame::from_body(&body).map_err(invalid)
}

/// The terms that a hostile client asks for.
pub fn terms(window: u32, slot: u32, max_message: u64) -> Terms {
    Terms { window, slot, max_message }
}

/// The handshake's encoding of an end's setup.
pub fn encoded<T: Serialize>(setup: &T) -> Vec<u8> {
    let payload = As::<Serde, T>::new(setup);
    let mut bytes = vec![0; encoded_len(&payload).expect("a length")];
    encode(&payload, &mut bytes).expect("its own length");
    bytes
}

fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> T {
    decode::<Serde, T>(Reader::borrowed(bytes)).expect("a setup")
}
