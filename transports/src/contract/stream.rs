//! The byte stream that carries the calls of a connection over [`Fabric::Stream`](super::Fabric::Stream).

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags};

/// A connected byte stream that never blocks.
pub enum Stream {
    /// A socket in non-blocking mode.
    Socket(OwnedFd),
    /// One whose bytes take another way: through TLS to a socket, or through a simulator.
    Custom(Box<dyn ByteStream>),
}

/// A byte stream that is not a socket alone.
pub trait ByteStream: Send {
    /// Fills these slices in order, and gives the number of bytes; 0: the peer sends no more.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): there are no bytes now. Any other: the stream is broken.
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Takes bytes of these slices in order, and gives their number. The next call begins with the first byte that was not taken,
    /// if a part of its slice was: a stream may already have sent it, and not told.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): there is no room now. Any other: the stream is broken.
    fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Prepares for the thread to sleep: bytes that arrive from now on, and room for more if `wants_room`, make an event at the
    /// thread's site. `false`: there is something already.
    fn arm(&mut self, wants_room: bool) -> bool;

    /// The socket that the bytes come from and go to, if there is one. With one, its readiness tells that there are bytes, or room;
    /// and [`arm`](Self::arm), that there is nothing that it does not tell.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Stream {
    /// The socket, if there is one.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Stream::Socket(socket) => Some(socket.as_fd()),
            Stream::Custom(stream) => stream.socket(),
        }
    }

    /// As [`ByteStream::receive`].
    #[inline]
    pub fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Socket(socket) => match into {
                // The kernel handles one buffer faster than a list of one.
                [only] => Ok(rustix::io::read(&*socket, &mut only[..])?),
                several => Ok(rustix::io::readv(&*socket, several)?),
            },
            Stream::Custom(stream) => stream.receive(into),
        }
    }

    /// As [`ByteStream::send`].
    #[inline]
    pub fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        // A peer that is gone is an error, and no signal.
        let flags = SendFlags::NOSIGNAL;
        match self {
            Stream::Socket(socket) => match bytes {
                [only] => Ok(rustix::net::send(&*socket, only, flags)?),
                several => {
                    let mut nothing_else = SendAncillaryBuffer::default();
                    Ok(rustix::net::sendmsg(&*socket, several, &mut nothing_else, flags)?)
                }
            },
            Stream::Custom(stream) => stream.send(bytes),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stream::Socket(socket) => f.debug_tuple("Socket").field(socket).finish(),
            Stream::Custom(_) => f.debug_tuple("Custom").finish_non_exhaustive(),
        }
    }
}
