//! The stream of a handshake by hand with a server of a rack.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use farcall_transports::{
    handshake::{Frame, FrameError, PREFIX_BYTES},
    rack::Knocked,
};
use farcall_verbs::sim::NodeId;

use super::fixture::{move_on, now, with};
use crate::hostile::{Clock, RawConnection, Stream};

/// A connection to that server, from that node.
pub(super) fn connect(from: NodeId, address: &str) -> RawConnection {
    let stream = RackStream {
        from,
        address: address.to_owned(),
        written: Vec::new(),
        inbox: VecDeque::new(),
        knocked: None,
        tie: None,
        closed: Arc::default(),
    };
    let device = with(|current| current.rack.node(from).device());
    RawConnection {
        device,
        stream: Box::new(stream),
        is_liveness_socket: true,
        clock: Box::new(RackClock),
    }
}

/// The clock of the current case's rack.
struct RackClock;

impl Clock for RackClock {
    fn turn(&self) {
        move_on();
    }

    fn now(&self) -> Duration {
        now()
    }
}

/// Stands for the TCP connection, a frame at a time.
struct RackStream {
    from: NodeId,
    address: String,
    /// The beginning of the next frame.
    written: Vec<u8>,
    inbox: VecDeque<u8>,
    /// The server's answer to the first frame.
    knocked: Option<Knocked>,
    tie: Option<Box<dyn Send>>,
    closed: Arc<AtomicBool>,
}

impl RackStream {
    /// The bytes of the next frame, if they are all there.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let prefix = self.written.first_chunk::<PREFIX_BYTES>()?;
        let len = match Frame::body_len(prefix) {
            Ok(len) => PREFIX_BYTES + len,
            // The server reads no further than the version.
            Err(FrameError::Version { .. }) => self.written.len(),
            Err(_) => {
                self.closed.store(true, Ordering::Relaxed);
                return None;
            }
        };
        (self.written.len() >= len).then(|| self.written.drain(..len).collect())
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let RackStream { from, address, .. } = self;
        if let Some(knocked) = self.knocked.take() {
            let closed = Arc::clone(&self.closed);
            let on_break = Box::new(move || closed.store(true, Ordering::Relaxed));
            self.tie = with(|current| current.rack.ready(knocked, on_break));
            return Ok(());
        }
        let knocked = with(|current| current.rack.knock(*from, address, frame));
        let knocked = knocked.map_err(io::Error::other)?;
        self.inbox.extend(&knocked.answer);
        self.knocked = Some(knocked);
        Ok(())
    }
}

impl Write for RackStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.extend_from_slice(bytes);
        while let Some(frame) = self.next_frame() {
            self.send(&frame)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for RackStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.inbox.read(into)
    }
}

impl Stream for RackStream {
    fn is_readable(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || !self.inbox.is_empty()
    }
}
