//! A socket whose reads and writes are bounded by one deadline, within TLS if the ends speak it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::socket::Socket;
use crate::contract::{Source, Stream};
use crate::tls::{Failure, Session};

/// Why no bytes came, or none could be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the handshake's time is over")]
    TimedOut,
    #[error("the other end closed the connection during the handshake")]
    Closed,
    #[error(transparent)]
    Tls(#[from] Failure),
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
pub(super) struct DeadlineStream {
    socket: Box<dyn Socket>,
    deadline: Instant,
    /// What all bytes pass through, if the ends speak TLS.
    session: Option<Box<Session>>,
}

/// Bytes that are read for TLS at a time: most handshakes' longest message fits.
const RECORDS_BYTES: usize = 4096;

/// How long a peer that was refused may take to read why, if it has sent more than was read: the system throws what was sent away
/// when such a socket is closed.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(500);

/// Bytes that such a peer may have sent.
const LAST_WORDS_BYTES: usize = 64 << 10;

impl DeadlineStream {
    pub(super) fn new(socket: Box<dyn Socket>, deadline: Instant) -> DeadlineStream {
        DeadlineStream { socket, deadline, session: None }
    }

    /// Shakes hands for this session, within which all further bytes travel. `first`, if there are any, were read already.
    pub(super) fn secure(&mut self, session: Session, first: &[u8]) -> Result<(), StreamError> {
        let session = self.session.insert(Box::new(session));
        let taken = session.take_records(first);
        self.finish_step(taken)?;
        while self.session.as_ref().is_some_and(|session| session.is_handshaking()) {
            let mut buffer = [0; RECORDS_BYTES];
            let bytes = self.receive_plain(&mut buffer)?;
            self.take_records(bytes)?;
        }
        Ok(())
    }

    /// Gives bytes of the peer's to the session, and the peer its answers.
    fn take_records(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let taken = session.take_records(bytes);
        self.finish_step(taken)
    }

    /// Sends what the session has to say, also that it has failed.
    fn finish_step(&mut self, step: Result<(), Failure>) -> Result<(), StreamError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let records = session.records();
        let sent = self.send_plain(&records);
        step?;
        sent
    }

    /// What only the two ends of the TLS session know; `None` without TLS.
    pub(super) fn binding(&self) -> Result<Option<[u8; 32]>, StreamError> {
        self.session.as_ref().map(|session| session.binding()).transpose().map_err(StreamError::Tls)
    }

    /// The session with the peer, if there is one.
    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// Lets a peer that was refused read why: waits, with a bound, until it hangs up.
    pub(super) fn let_read(&mut self) {
        self.deadline = self.deadline.min(Instant::now() + LAST_WORDS_WAIT);
        // Fails only if the peer has gone.
        let _ = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Write);
        let (mut read, mut buffer) = (0, [0; RECORDS_BYTES]);
        while read < LAST_WORDS_BYTES {
            match self.receive_plain(&mut buffer) {
                Ok(bytes) => read += bytes.len(),
                Err(_) => return,
            }
        }
    }

    /// Time that is left.
    pub(super) fn remaining(&self) -> Result<Duration, StreamError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(StreamError::TimedOut) } else { Ok(left) }
    }

    /// Waits for so long. Fails as soon as the peer hangs up, or the time is over.
    pub(super) fn wait_for_hang_up(&self, pause: Duration) -> Result<(), StreamError> {
        let pause = pause.min(self.remaining()?);
        let mut events = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::RDHUP)];
        let timeout =
            Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        match rustix::event::poll(&mut events, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => Err(StreamError::Closed),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Refuses a peer that must not take part, saying why.
    pub(super) fn check_peer(&self) -> Result<(), String> {
        self.socket.check_peer()
    }

    /// Where the peer is.
    pub(super) fn source(&self) -> Source {
        self.socket.source()
    }

    /// The socket, once the handshake has ended well. It carries nothing more: so the session ends.
    pub(super) fn into_socket(self) -> Box<dyn Socket> {
        self.socket
    }

    /// The stream on which the calls go on, once the handshake has ended well: it never blocks, and finds that its peer has been silent
    /// for so long.
    pub(super) fn into_stream(self, silence: Duration) -> io::Result<Stream> {
        self.socket.watch_liveness(silence)?;
        let socket = self.socket.into_fd();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(match self.session {
            None => Stream::Socket(socket),
            Some(session) => session.into_stream(socket),
        })
    }

    /// A second name of the socket, with which another thread may shut it down.
    pub(super) fn second_name(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Writes all of these bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        match &mut self.session {
            None => self.send_plain(bytes),
            Some(session) => {
                let written = session.write(bytes);
                self.finish_step(written)
            }
        }
    }

    /// Reads at least one byte and at most as many as `bytes` holds. Gives those that came.
    pub(super) fn receive<'b>(&mut self, bytes: &'b mut [u8]) -> Result<&'b [u8], StreamError> {
        loop {
            match &mut self.session {
                None => return self.receive_plain(bytes),
                Some(session) => match session.read(bytes) {
                    0 => {}
                    read => return Ok(&bytes[..read]),
                },
            }
            let mut buffer = [0; RECORDS_BYTES];
            let records = self.receive_plain(&mut buffer)?;
            self.take_records(records)?;
        }
    }

    fn send_plain(&mut self, mut bytes: &[u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            self.socket.set_write_timeout(self.remaining()?)?;
            match self.socket.write(bytes) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) fn receive_plain<'b>(
        &mut self,
        bytes: &'b mut [u8],
    ) -> Result<&'b [u8], StreamError> {
        loop {
            self.socket.set_read_timeout(self.remaining()?)?;
            match self.socket.read(bytes) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(n) => return Ok(&bytes[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::bootstrap::socket::Liveness;

    /// Both kinds of sockets: ours, and the peer's.
    fn pairs(limit: Duration) -> Vec<(DeadlineStream, Box<dyn Socket>)> {
        let unix = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let deadline = Instant::now() + limit;
        vec![
            (DeadlineStream::new(Box::new(unix.0), deadline), Box::new(unix.1)),
            (DeadlineStream::new(Box::new(accepted), deadline), Box::new(dialled)),
        ]
    }

    #[test]
    fn a_silent_peer_costs_the_deadline_and_no_more() {
        let begun = Instant::now();
        for (mut stream, _silent) in pairs(Duration::from_millis(50)) {
            assert!(matches!(stream.receive(&mut [0; 8]), Err(StreamError::TimedOut)));
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_peer_that_drips_bytes_cannot_stretch_the_deadline() {
        for (mut stream, mut dripping) in pairs(Duration::from_millis(100)) {
            let drip = std::thread::spawn(move || {
                while dripping.write_all(b"f").is_ok() {
                    std::thread::park_timeout(Duration::from_millis(20));
                }
            });
            while stream.receive(&mut [0; 8]).is_ok() {}
            drop(stream);
            drip.join().unwrap();
        }
    }

    #[test]
    fn a_closed_peer_is_told_from_a_slow_one() {
        for (mut stream, peer) in pairs(Duration::from_secs(5)) {
            drop(peer);
            assert!(matches!(stream.receive(&mut [0; 8]), Err(StreamError::Closed)));
        }
    }

    #[test]
    fn this_user_may_take_part() {
        for (stream, _peer) in pairs(Duration::from_secs(5)) {
            assert_eq!(stream.check_peer(), Ok(()));
        }
    }

    #[test]
    fn a_peer_that_was_refused_may_read_why_before_its_socket_is_closed() {
        use std::io::Read;
        use std::sync::atomic::{AtomicBool, Ordering};
        for (mut stream, mut refused) in pairs(Duration::from_secs(20)) {
            let has_read = std::sync::Arc::new(AtomicBool::new(false));
            let noted = std::sync::Arc::clone(&has_read);
            let reader = std::thread::spawn(move || {
                let mut why = Vec::new();
                refused.read_to_end(&mut why).unwrap();
                noted.store(true, Ordering::SeqCst);
                why
            });
            stream.send(b"no").unwrap();
            stream.let_read();
            assert!(has_read.load(Ordering::SeqCst), "it waits until the peer has hung up");
            assert_eq!(reader.join().unwrap(), b"no");
        }
    }

    /// A socket whose reads and writes a signal interrupts, each once.
    struct Interrupted(UnixStream, bool);

    impl Interrupted {
        fn interrupt(&mut self) -> io::Result<()> {
            self.1 = !self.1;
            if self.1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        }
    }

    impl io::Read for Interrupted {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.interrupt()?;
            self.0.read(bytes)
        }
    }

    impl Write for Interrupted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.interrupt()?;
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    impl AsFd for Interrupted {
        fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Socket for Interrupted {
        fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
            Socket::set_read_timeout(&self.0, timeout)
        }

        fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
            Socket::set_write_timeout(&self.0, timeout)
        }

        fn check_peer(&self) -> Result<(), String> {
            Ok(())
        }

        fn source(&self) -> Source {
            Source::Unknown
        }

        fn watch_liveness(&self, _: Duration) -> io::Result<Liveness> {
            unreachable!("its handshake does not end")
        }

        fn into_fd(self: Box<Self>) -> OwnedFd {
            self.0.into()
        }
    }

    #[test]
    fn a_signal_ends_no_handshake() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut stream = DeadlineStream::new(Box::new(Interrupted(ours, false)), deadline);
        stream.send(b"hello").unwrap();
        let mut heard = [0; 5];
        io::Read::read_exact(&mut theirs, &mut heard).unwrap();
        theirs.write_all(&heard).unwrap();
        assert_eq!(stream.receive(&mut [0; 8]).unwrap(), b"hello");
    }
}
