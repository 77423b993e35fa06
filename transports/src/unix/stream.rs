//! Frames over a Unix socket, each wait bounded by one deadline.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::handshake::{Frame, FrameError, PREFIX_BYTES};

/// Why no frame came, or none could be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the handshake's time is over")]
    TimedOut,
    #[error("the other end closed the connection during the handshake")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> StreamError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => StreamError::TimedOut,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => StreamError::Closed,
            _ => StreamError::Io(error),
        }
    }
}

/// A connected socket whose handshake must end at a deadline.
#[derive(Debug)]
pub(super) struct FrameStream {
    socket: UnixStream,
    deadline: Instant,
}

impl FrameStream {
    pub(super) fn new(socket: OwnedFd, deadline: Instant) -> FrameStream {
        FrameStream { socket: socket.into(), deadline }
    }

    /// Time that is left.
    pub(super) fn remaining(&self) -> Result<Duration, StreamError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(StreamError::TimedOut) } else { Ok(left) }
    }

    /// Refuses a peer of another user, saying whose.
    pub(super) fn check_user(&self) -> Result<(), String> {
        let ours = rustix::process::geteuid();
        match rustix::net::sockopt::socket_peercred(&self.socket) {
            Ok(peer) if peer.uid == ours => Ok(()),
            Ok(peer) => Err(format!(
                "the other end runs as user {}, this end as user {}",
                peer.uid.as_raw(),
                ours.as_raw()
            )),
            Err(error) => Err(format!("the other end's user cannot be told: {error}")),
        }
    }

    pub(super) fn send(&mut self, frame: &Frame) -> Result<(), StreamError> {
        self.socket.set_write_timeout(Some(self.remaining()?))?;
        // A frame is far smaller than the socket's buffer: it is written in one piece.
        Ok(self.socket.write_all(&frame.to_bytes())?)
    }

    pub(super) fn receive(&mut self) -> Result<Frame, StreamError> {
        let mut prefix = [0; PREFIX_BYTES];
        self.fill(&mut prefix)?;
        let mut body = vec![0; Frame::body_len(&prefix)?];
        self.fill(&mut body)?;
        Ok(Frame::from_body(&body)?)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            self.socket.set_read_timeout(Some(self.remaining()?))?;
            match self.socket.read(bytes) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(n) => bytes = &mut bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(limit: Duration) -> (FrameStream, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (FrameStream::new(a.into(), Instant::now() + limit), b)
    }

    #[test]
    fn a_silent_peer_costs_the_deadline_and_no_more() {
        let (mut stream, _silent) = pair(Duration::from_millis(50));
        let begun = Instant::now();
        assert!(matches!(stream.receive(), Err(StreamError::TimedOut)));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_peer_that_drips_bytes_cannot_stretch_the_deadline() {
        let (mut stream, mut dripping) = pair(Duration::from_millis(100));
        let drip = std::thread::spawn(move || {
            let bytes = Frame::Ready.to_bytes();
            while dripping.write_all(&bytes[..1]).is_ok() {
                std::thread::park_timeout(Duration::from_millis(20));
            }
        });
        assert!(stream.receive().is_err());
        drop(stream);
        drip.join().unwrap();
    }

    #[test]
    fn a_closed_peer_is_told_from_a_slow_one() {
        let (mut stream, peer) = pair(Duration::from_secs(5));
        drop(peer);
        assert!(matches!(stream.receive(), Err(StreamError::Closed)));
    }

    #[test]
    fn garbage_is_not_a_frame() {
        let (mut stream, mut peer) = pair(Duration::from_secs(5));
        peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(matches!(stream.receive(), Err(StreamError::Frame(FrameError::Magic))));
    }

    #[test]
    fn this_user_may_take_part() {
        let (stream, _peer) = pair(Duration::from_secs(5));
        assert_eq!(stream.check_user(), Ok(()));
    }
}
