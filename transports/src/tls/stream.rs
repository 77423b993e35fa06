//! A socket whose bytes travel within TLS, for a backend that never waits.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};
use rustls::Connection;

use super::failure::{End, explain};
use crate::contract::ByteStream;

/// Bytes of records that one read takes at most.
const READ_BYTES: usize = 48 << 10;

/// A read takes at least so many, also if there is little room for what they say.
const LEAST_READ_BYTES: usize = 1 << 10;

/// Bytes of the longest record (RFC 8446, section 5.2). So many may wait for their end, and come out with the next read.
const MAX_RECORD_BYTES: usize = 5 + (16 << 10) + 256;

/// Bytes that are encrypted at a time, four of the longest records. They then wait for room in the socket.
const BATCH_BYTES: usize = 64 << 10;

/// Slices that are encrypted at a time.
const BATCH_SLICES: usize = 4;

thread_local! {
    /// What was read from a socket, until its session has taken it, which is at once: one for all sockets of the thread.
    static RECORDS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A socket in non-blocking mode, and the session that it carries.
pub(super) struct TlsStream {
    connection: Connection,
    end: End,
    socket: OwnedFd,
    /// What the peer has said was handed out, to the last byte.
    is_drained: bool,
    /// The peer says nothing more.
    has_ended: bool,
    /// The last byte of what was encrypted was not yet reported as taken.
    owes_byte: bool,
}

impl TlsStream {
    /// Goes on with this session.
    pub(super) fn new(mut connection: Connection, end: End, socket: OwnedFd) -> TlsStream {
        // A batch has a bound of its own.
        connection.set_buffer_limit(None);
        // The handshake may have read more than its own.
        let is_drained = false;
        TlsStream { connection, end, socket, is_drained, has_ended: false, owes_byte: false }
    }

    /// Hands out what the peer has said, after the first `filled` bytes of `into`. Gives how many are filled then.
    fn drain(&mut self, into: &mut [IoSliceMut<'_>], mut filled: usize) -> usize {
        let mut begin = 0;
        for slice in into {
            let end = begin + slice.len();
            while filled < end {
                match self.connection.reader().read(&mut slice[filled - begin..]) {
                    Ok(read) if read > 0 => filled += read,
                    // There is nothing now, or nothing ever again.
                    _ => {
                        self.is_drained = true;
                        return filled;
                    }
                }
            }
            begin = end;
        }
        self.is_drained = false;
        filled
    }

    /// Reads once, at most so many bytes of records, and hands out what they say, after the first `filled` bytes of `into`. Gives how
    /// many are filled then.
    fn read(
        &mut self,
        into: &mut [IoSliceMut<'_>],
        filled: usize,
        most: usize,
    ) -> io::Result<usize> {
        // The destructor of another variable of the thread may call when this one is gone.
        let mut records = RECORDS.try_with(Cell::take).unwrap_or_default();
        records.resize(READ_BYTES, 0);
        let read = self.read_through(&mut records[..most], into, filled);
        let _ = RECORDS.try_with(|kept| kept.set(records));
        read
    }

    fn read_through(
        &mut self,
        records: &mut [u8],
        into: &mut [IoSliceMut<'_>],
        mut filled: usize,
    ) -> io::Result<usize> {
        let read = rustix::io::read(&self.socket, &mut *records)?;
        self.has_ended = read == 0;
        let mut bytes = &records[..read];
        while !bytes.is_empty() && !self.has_ended {
            self.connection.read_tls(&mut bytes)?;
            match self.connection.process_new_packets() {
                Ok(state) if state.peer_has_closed() => self.end(),
                Ok(_) => {}
                Err(error) => return Err(self.break_off(&error)),
            }
            filled = self.drain(into, filled);
        }
        Ok(filled)
    }

    /// The peer has said that it says nothing more.
    #[cold]
    fn end(&mut self) {
        self.has_ended = true;
        // So that whoever waits for bytes finds the end. Fails only if the socket is closed at the other end too.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }

    /// The peer has broken the rules of TLS: tells it so, if there is room. Or it says that this end has, and goes.
    #[cold]
    fn break_off(&mut self, error: &rustls::Error) -> io::Error {
        let kind = match error {
            rustls::Error::AlertReceived(_) => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::InvalidData,
        };
        let _ = self.flush();
        io::Error::new(kind, explain(error, self.end))
    }

    /// Sends what was encrypted.
    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Plain(&self.socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Bytes to encrypt: those after the first `skip`, as many as a batch has. It ends with no single byte of a slice that begins in
/// it: that byte would be owed alone, and nothing binds the caller to go on with it.
fn batch<'s>(bytes: &'s [IoSlice<'_>], mut skip: usize) -> ([IoSlice<'s>; BATCH_SLICES], usize) {
    let mut batch = [IoSlice::new(&[]); BATCH_SLICES];
    let (mut count, mut room) = (0, BATCH_BYTES);
    for slice in bytes {
        let skipped = skip.min(slice.len());
        skip -= skipped;
        let rest = &slice[skipped..];
        let len = rest.len().min(room);
        if len == 0 {
            continue;
        }
        if count == BATCH_SLICES || (len == 1 && skipped == 0 && count > 0) {
            break;
        }
        batch[count] = IoSlice::new(&rest[..len]);
        (count, room) = (count + 1, room - len);
        if len < rest.len() {
            break;
        }
    }
    (batch, count)
}

impl ByteStream for TlsStream {
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut filled = if self.is_drained { 0 } else { self.drain(into, 0) };
        if self.is_drained && !self.has_ended {
            let room = into.iter().map(|slice| slice.len()).sum::<usize>() - filled;
            // What comes out of it has room: so the socket alone tells whether there is something to hand out.
            let most = room.saturating_sub(MAX_RECORD_BYTES).clamp(LEAST_READ_BYTES, READ_BYTES);
            match self.read(into, filled, most) {
                Ok(read) => filled = read,
                Err(error) if filled > 0 && error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        match filled {
            0 if !self.has_ended => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(filled),
        }
    }

    /// Encrypts as much as is offered, until the socket takes no more of it. What is encrypted then is sent with the next calls; the last
    /// byte of it counts as taken only when all of it has left, so that the caller, which has something left to send, comes again.
    fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let mut taken = usize::from(std::mem::take(&mut self.owes_byte));
        loop {
            let (batch, slices) = batch(bytes, taken);
            if slices == 0 {
                return Ok(taken);
            }
            taken += self.connection.writer().write_vectored(&batch[..slices])?;
            match self.flush() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.owes_byte = true;
                    return if taken > 1 { Ok(taken - 1) } else { Err(error) };
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn arm(&mut self, _wants_room: bool) -> bool {
        self.is_drained
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// Sends records.
struct Plain<'s>(&'s OwnedFd);

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A peer that is gone is an error, and no signal.
        Ok(rustix::net::send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing_else = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self.0, bytes, &mut nothing_else, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
