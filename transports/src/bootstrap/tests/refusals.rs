//! Refusals for reasons that no peer of an ordinary test has: another user, and a server that cannot make its end.

use farcall_core::transport::{ConnectionId, Lane, LaneReason};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall_core::metrics::RefusalReason;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;

use crate::bootstrap::accept::Accepting;
use crate::bootstrap::socket::{Listener, Liveness, Socket};
use crate::bootstrap::{Admission, MostClients, NewIds, ServerHalves, places};
use crate::contract::{
    Accepted, Backend, Config, Fabric, Intake, NewClient, SetupError, Source, Terms,
};
use crate::handshake::{Frame, FrameReader, Hello, Reject};
use crate::tcp::Tcp;

static SERVICE: ServiceDescription =
    ServiceDescription { name: "Refused", fingerprint: 7, methods: &[] };

/// No device can make its clients' ends.
#[derive(Debug)]
struct NoDevice;

impl Intake for NoDevice {
    fn accept(&self, _: NewClient<'_>) -> Result<Accepted, SetupError> {
        Err(SetupError::Device("device nic7: out of queue pairs".into()))
    }

    fn make_room(&self, _: Source, _: Duration) -> bool {
        false
    }
}

/// What a server at that site lets in: nobody.
fn admission(site: &Site) -> Admission {
    let config = Config::default();
    let most = MostClients { all: 8, of_identity: 8 };
    let places = places(std::slice::from_ref(site), &config, most);
    let threads = [(site, Fabric::Stream, &places[0])].into_iter();
    let halves = ServerHalves::make("a test", (&Tcp, &config), threads, most, None).unwrap();
    halves.intakes.replace(0, Box::new(NoDevice));
    let ids = NewIds::from(|| Ok(ConnectionId::new([7; 16])));
    Admission::new(vec![(&Tcp, &config, halves.intakes)], &[&SERVICE], (places, ids), site)
}

#[test]
fn a_device_that_fails_is_named_to_programs_of_the_same_user_only() {
    let site = Site::new();
    let admission = admission(&site);
    let hello = Hello {
        backend: Tcp.name().into(),
        service: SERVICE.name.into(),
        fingerprint: SERVICE.fingerprint,
        terms: Terms { window: 8, slot: 4096, max_message: 99 },
        further: Vec::new(),
        lane: Lane::Alone,
        why: LaneReason::First,
        thread: None,
        setup: Vec::new(),
    };
    let told = |source| {
        let time_left = || Ok(Duration::from_secs(1));
        match admission.admit((&hello, None), (source, Duration::ZERO), time_left) {
            Err(Reject::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(told(Source::Process(1)).contains("nic7"));
    assert!(!told(Source::Machine([10, 0, 0, 1].into())).contains("nic7"));
    assert_eq!(site.refusals().of(RefusalReason::Failed), 2);
}

/// A socket of another user's process.
struct Foreign(UnixStream);

impl Read for Foreign {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Foreign {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket for Foreign {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(timeout))
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.0.set_write_timeout(Some(timeout))
    }

    fn check_peer(&self) -> Result<(), String> {
        Err("the other end runs as another user".into())
    }

    fn source(&self) -> Source {
        Source::Unknown
    }

    fn watch_liveness(&self, _: Duration) -> io::Result<Liveness> {
        Ok(Liveness::IfDeviceIsSilent)
    }

    fn into_fd(self: Box<Self>) -> OwnedFd {
        self.0.into()
    }
}

/// Has one client, after some panics, and is readable as long as its other end is closed.
struct One {
    panics: AtomicU32,
    client: Mutex<Option<Foreign>>,
    readable: UnixStream,
}

impl AsFd for One {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Listener for One {
    fn accept(&self) -> io::Result<Box<dyn Socket>> {
        let left = self.panics.load(Ordering::SeqCst);
        if left > 0 {
            self.panics.store(left - 1, Ordering::SeqCst);
            panic!("a panic while it accepts, as asked");
        }
        match self.client.lock().unwrap().take() {
            Some(client) => Ok(Box::new(client)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

#[test]
fn a_process_of_another_user_is_refused_and_counted() {
    is_refused_and_counted(0);
}

/// As a subscriber of the log may.
#[test]
fn a_panic_of_the_accepting_thread_does_not_end_it() {
    is_refused_and_counted(2);
}

fn is_refused_and_counted(panics: u32) {
    let site = Site::new();
    let (mut client, server) = UnixStream::pair().unwrap();
    let (readable, _) = UnixStream::pair().unwrap();
    let (client_of, panics) = (Mutex::new(Some(Foreign(server))), AtomicU32::new(panics));
    let listener = Box::new(One { panics, client: client_of, readable });
    let bound = Duration::from_secs(20);
    let _accepting =
        Accepting::start(listener, (admission(&site), None), (bound, &site), "a test").unwrap();
    client.set_read_timeout(Some(bound)).unwrap();
    let mut reader = FrameReader::default();
    let answer = loop {
        let mut bytes = vec![0; reader.missing()];
        client.read_exact(&mut bytes).unwrap();
        if let Some(frame) = reader.push(&mut &bytes[..]).unwrap() {
            break frame;
        }
    };
    assert!(matches!(answer, Frame::Reject(Reject::NotPermitted { .. })), "{answer:?}");
    assert_eq!(site.refusals().of(RefusalReason::NotPermitted), 1);
}
