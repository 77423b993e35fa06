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

use farcall_rack::RawAnswer;
use farcall_transports::handshake::{FrameError, FrameReader};
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
        answer: None,
        liveness: None,
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
    answer: Option<RawAnswer>,
    liveness: Option<Box<dyn Send>>,
    closed: Arc<AtomicBool>,
}

impl RackStream {
    /// The bytes of the next frame, if they are all there.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let mut rest = self.written.as_slice();
        let len = match FrameReader::default().push(&mut rest) {
            Ok(None) => return None,
            Ok(Some(_)) => self.written.len() - rest.len(),
            // The server answers both, and reads no further.
            Err(FrameError::Version { .. } | FrameError::Body) => self.written.len(),
            Err(_) => {
                self.closed.store(true, Ordering::Relaxed);
                return None;
            }
        };
        Some(self.written.drain(..len).collect())
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let RackStream { from, address, .. } = self;
        if let Some(answer) = self.answer.take() {
            let closed = Arc::clone(&self.closed);
            let on_server_gone = Box::new(move || closed.store(true, Ordering::Relaxed));
            self.liveness = with(|current| current.rack.raw_ready(answer, on_server_gone));
            return Ok(());
        }
        let answer = with(|current| current.rack.raw_hello(*from, address, frame));
        let answer = answer.map_err(io::Error::other)?;
        self.inbox.extend(&answer.answer);
        self.answer = Some(answer);
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

    fn close_half(&self) {}
}
