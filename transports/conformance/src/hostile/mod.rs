//! Peers that keep no rule: they speak the handshake and the device by hand, and write what they like.

pub mod write_imm;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use farcall_transports::handshake::{Frame, FrameError, PREFIX_BYTES};
use farcall_verbs::Device;

/// The socket of a handshake.
pub trait Stream: Read + Write + AsFd + Send {}

impl<S: Read + Write + AsFd + Send> Stream for S {}

/// A way past the client: a handshake's stream to a server, and the device to go on with.
pub struct BreakIn {
    /// The device that both ends use.
    pub device: Device,
    /// Connected to the server; reads are bounded in time.
    pub stream: Box<dyn Stream>,
    /// The server keeps the stream as long as the connection.
    pub is_tether: bool,
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
