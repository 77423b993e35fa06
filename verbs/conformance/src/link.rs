//! The byte channel, separate from the device, over which the two ends of a case synchronize.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The other end is gone: it finished, failed or died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkClosed;

/// Carries whole messages, in order, between the two ends of a case. Never blocks for long.
pub trait Link {
    /// Sends one message.
    fn send(&mut self, message: &[u8]) -> Result<(), LinkClosed>;
    /// Takes the next message, if one has arrived.
    fn try_receive(&mut self) -> Result<Option<Vec<u8>>, LinkClosed>;
}

/// A link between two ends in one process.
#[derive(Debug)]
pub struct ChannelLink {
    to_peer: mpsc::Sender<Vec<u8>>,
    from_peer: mpsc::Receiver<Vec<u8>>,
}

impl ChannelLink {
    /// Both halves of a new link.
    pub fn pair() -> (ChannelLink, ChannelLink) {
        let (to_second, from_first) = mpsc::channel();
        let (to_first, from_second) = mpsc::channel();
        (
            ChannelLink { to_peer: to_second, from_peer: from_second },
            ChannelLink { to_peer: to_first, from_peer: from_first },
        )
    }
}

impl Link for ChannelLink {
    fn send(&mut self, message: &[u8]) -> Result<(), LinkClosed> {
        self.to_peer.send(message.to_vec()).map_err(|_| LinkClosed)
    }

    fn try_receive(&mut self) -> Result<Option<Vec<u8>>, LinkClosed> {
        match self.from_peer.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(mpsc::TryRecvError::Disconnected) => Err(LinkClosed),
        }
    }
}

/// Bytes of a message's length on a stream.
const LENGTH_BYTES: usize = 4;
/// No message between ends is longer: they are handles and short byte strings.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A link over a connected stream socket: between processes, or between machines.
#[derive(Debug)]
pub struct StreamLink<S> {
    stream: S,
    arrived: Vec<u8>,
}

impl<S: Read + Write + AsFd> StreamLink<S> {
    /// Wraps a stream in blocking mode. Give it a write timeout first, if it has one.
    pub fn new(stream: S) -> Self {
        StreamLink { stream, arrived: Vec::new() }
    }

    fn readable(&self) -> Result<bool, LinkClosed> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(_) => Err(LinkClosed),
        }
    }

    fn take_message(&mut self) -> Result<Option<Vec<u8>>, LinkClosed> {
        let Some((length, _)) = self.arrived.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(LinkClosed);
        }
        if self.arrived.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        let rest = self.arrived.split_off(LENGTH_BYTES + length);
        let mut message = std::mem::replace(&mut self.arrived, rest);
        message.drain(..LENGTH_BYTES);
        Ok(Some(message))
    }
}

impl<S: Read + Write + AsFd> Link for StreamLink<S> {
    fn send(&mut self, message: &[u8]) -> Result<(), LinkClosed> {
        assert!(message.len() <= MAX_MESSAGE_BYTES, "a message between ends is short");
        let mut framed = (message.len() as u32).to_le_bytes().to_vec();
        framed.extend_from_slice(message);
        self.stream.write_all(&framed).map_err(|_| LinkClosed)
    }

    fn try_receive(&mut self) -> Result<Option<Vec<u8>>, LinkClosed> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            if !self.readable()? {
                return Ok(None);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(LinkClosed),
                Ok(count) => self.arrived.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(LinkClosed),
            }
        }
    }
}

/// How long a stream may refuse bytes before the other end counts as gone.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn messages_cross_whole_and_in_order(mut a: impl Link, mut b: impl Link) {
        assert_eq!(b.try_receive(), Ok(None));
        for length in [0, 1, 5000] {
            a.send(&vec![7; length]).expect("the other half lives");
        }
        for length in [0, 1, 5000] {
            assert_eq!(b.try_receive(), Ok(Some(vec![7; length])));
        }
        a.send(b"last words").expect("the other half lives");
        drop(a);
        assert_eq!(b.try_receive(), Ok(Some(b"last words".to_vec())));
        assert_eq!(b.try_receive(), Err(LinkClosed));
    }

    #[test]
    fn messages_cross_a_channel() {
        let (a, b) = ChannelLink::pair();
        messages_cross_whole_and_in_order(a, b);
    }

    #[test]
    fn messages_cross_a_stream() {
        let (a, b) = UnixStream::pair().expect("a socket pair");
        messages_cross_whole_and_in_order(StreamLink::new(a), StreamLink::new(b));
    }
}
