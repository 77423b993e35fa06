//! A backend that takes the socket of the handshake over.

pub(super) mod lost_device;
mod parked_clients;
mod refusals;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::transport::{BindOptions, Binding, ClientTransport, Dial, DialOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::shared_time::ClockSample;
use crate::address::Address;
use crate::contract::{
    Accepted, Answer, Backend, Config, DeathNotice, Fabric, Intake, NewClient, PendingClient,
    Placement, ServerHalf, SetupError, SlicePlan, Source, Stream, TakeStream,
};
use crate::write_imm::WriteImm;

const BOUND: Duration = Duration::from_secs(20);

static SERVICE: ServiceDescription =
    ServiceDescription { name: "Taken", fingerprint: 7, methods: &[] };

/// [`WriteImm`], but both ends take the socket.
#[derive(Debug)]
struct TakesSocket {
    client: Taken,
    server: Taken,
}

/// What one end has taken.
#[derive(Debug)]
struct Taken(Mutex<Option<Sender<OwnedFd>>>);

impl Taken {
    const fn new() -> Taken {
        Taken(Mutex::new(None))
    }

    fn listen(&self) -> Receiver<OwnedFd> {
        let (sender, receiver) = unbounded();
        *self.0.lock().unwrap() = Some(sender);
        receiver
    }

    fn take(&self) -> Option<TakeStream> {
        let taken = self.0.lock().unwrap().clone()?;
        Some(Box::new(move |stream| match stream {
            Stream::Socket(socket) => taken.send(socket).unwrap(),
            Stream::Custom(_) => panic!("an address in text has a socket"),
        }))
    }
}

static BACKEND: TakesSocket = TakesSocket { client: Taken::new(), server: Taken::new() };

impl Backend for TakesSocket {
    fn name(&self) -> &'static str {
        "takes_socket"
    }

    fn number(&self) -> u8 {
        100
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        WriteImm.check(fabric)
    }

    fn death_notice(&self) -> DeathNotice {
        DeathNotice::BY_SOCKET
    }

    fn dial(
        &self,
        at: &Placement<'_>,
        config: &Config,
    ) -> Result<Box<dyn PendingClient>, SetupError> {
        Ok(Box::new(Pending(WriteImm.dial(at, config)?)))
    }

    fn serve(
        &self,
        at: &Placement<'_>,
        config: &Config,
        max_clients: usize,
    ) -> Result<ServerHalf, SetupError> {
        let ServerHalf { transport, intake } = WriteImm.serve(at, config, max_clients)?;
        Ok(ServerHalf { transport, intake: Box::new(TakingIntake(intake)) })
    }
}

struct Pending(Box<dyn PendingClient>);

impl PendingClient for Pending {
    fn setup(&self) -> Vec<u8> {
        self.0.setup()
    }

    fn take_stream(&mut self) -> Option<TakeStream> {
        BACKEND.client.take()
    }

    fn finish(self: Box<Self>, answer: Answer<'_>) -> Result<Box<dyn ClientTransport>, SetupError> {
        self.0.finish(answer)
    }
}

#[derive(Debug)]
struct TakingIntake(Box<dyn Intake>);

impl Intake for TakingIntake {
    fn accept(&self, client: NewClient<'_>) -> Result<Accepted, SetupError> {
        Ok(Accepted { take_stream: BACKEND.server.take(), ..self.0.accept(client)? })
    }

    fn make_room(&self, source: Source, wait: Duration) -> bool {
        self.0.make_room(source, wait)
    }
}

#[test]
fn both_ends_of_a_socket_are_handed_over_after_the_handshake() {
    let (client_takes, server_takes) = (BACKEND.client.listen(), BACKEND.server.listen());
    for address in
        [format!("shm://taken-{}", std::process::id()), "rdma://127.0.0.1:0?device=shm".into()]
    {
        let address: Address = address.parse().unwrap();
        let address = address.with_backend(&BACKEND);
        let site = [Site::new()];
        let bound = address.bind(&site, &[&SERVICE], &BindOptions::default()).unwrap();
        // The port that the system chose; a name on this machine has none.
        let (_, end) = bound.address.rsplit_once(':').unwrap();
        let port = end.split('?').next().and_then(|port| port.parse().ok());
        let dialled = port.map_or(address.clone(), |port| address.with_port(port));
        let client = dialled.dial(&SERVICE, &Site::new(), &DialOptions::default()).unwrap();

        let mut ours = File::from(client_takes.recv_timeout(BOUND).unwrap());
        let mut theirs = File::from(server_takes.recv_timeout(BOUND).unwrap());
        let mut byte = [0];
        let nothing = theirs.read(&mut byte).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock, "nothing is left of the handshake");
        ours.write_all(b"!").unwrap();
        wait_for(&theirs);
        assert_eq!((theirs.read(&mut byte).unwrap(), &byte), (1, b"!"));
        // Nobody else holds the client's end.
        drop((client, ours));
        wait_for(&theirs);
        assert_eq!(theirs.read(&mut byte).unwrap(), 0);
    }
}

/// Waits until there is something to read.
fn wait_for(socket: &File) {
    let bound = Timespec { tv_sec: BOUND.as_secs().cast_signed(), tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&bound)).unwrap(), 1);
}

/// A server of no calls at this address.
fn bind_scale(address: &str) -> Result<farcall_core::transport::Bound, String> {
    let address: Address = address.parse().unwrap();
    let options = BindOptions::default();
    address.bind(&[Site::new()], &[&SERVICE], &options).map_err(|error| error.to_string())
}

#[test]
fn a_server_that_shares_its_slices_tells_its_time_and_others_say_why_not() {
    let name = |what: &str| format!("{what}-{}", std::process::id());
    let (leader, other, third) = (name("time-leader"), name("time-other"), name("time-third"));
    let shares = |name: &str| format!("shm://{name}?backend=scale&groups=4&slice=50us");
    let _leader = bind_scale(&shares(&leader)).unwrap();
    let _other = bind_scale(&format!("{}&slices_of=shm://{leader}", shares(&other))).unwrap();
    let _third = bind_scale(&format!("shm://{third}?backend=scale")).unwrap();
    let site = Site::new();
    let ask = |name: &str| {
        let address = format!("shm://{name}").parse().unwrap();
        super::follow_time::ask(&address, &site).map_err(|error| error.to_string())
    };
    let (samples, plan) = ask(&leader).unwrap();
    assert_eq!(plan, SlicePlan { groups: 4, slice_nanos: 50_000 });
    for ClockSample { asked, received_nanos, answered_nanos, heard } in samples {
        // Both have the clock of this process.
        assert!(asked.as_nanos() <= received_nanos && received_nanos <= answered_nanos);
        assert!(answered_nanos <= heard.as_nanos());
    }
    let error = ask(&other).unwrap_err();
    assert!(error.contains("it follows the time of another server"), "{error}");
    let error = ask(&third).unwrap_err();
    assert!(error.contains("its address needs groups=N"), "{error}");
    let error = ask(&name("time-nobody")).unwrap_err();
    assert!(error.contains("start the server"), "{error}");
}

#[test]
fn a_server_publishes_the_time_of_the_one_that_it_follows_once_that_runs() {
    let name = |what: &str| format!("shm://{what}-{}", std::process::id());
    let (leader, other) = (name("followed"), name("follows"));
    let address: Address =
        format!("{other}?backend=scale&groups=4&slices_of={leader}").parse().unwrap();
    let slices = address.backend().shared_slices(address.config()).unwrap();
    let follower = super::follow_time::follower(&address, slices.as_ref()).unwrap();
    let clock = follower.as_ref().map(|(_, follower)| follower.clock().clone()).unwrap();
    let site = Site::new();
    struct NoClients;
    impl farcall_core::transport::Acceptor for NoClients {
        fn stop(&mut self) {}
    }
    let mut following =
        super::follow_time::AcceptingInSharedTime::start(NoClients, follower, &site).unwrap();
    let _leader = bind_scale(&format!("{leader}?backend=scale&groups=4")).unwrap();
    let (mut seen, begun) = (0, std::time::Instant::now());
    let fit = loop {
        match clock.newer_than(&mut seen) {
            Some(fit) => break fit,
            None if begun.elapsed() < BOUND => std::thread::yield_now(),
            None => panic!("no time within {BOUND:?}"),
        }
    };
    // Both have the clock of this process.
    let now = site.now();
    let error = fit.shared_at(now).abs_diff(now.as_nanos());
    assert!(error < 1_000_000_000, "off by {error} ns: {fit:?}");
    following.stop();
}

#[test]
fn slices_of_is_another_servers_address() {
    let name = format!("own-{}", std::process::id());
    for (of, wanted) in [
        (format!("shm://{name}"), "slices_of is this server's own address"),
        ("shm://a/b".to_owned(), "slices_of: "),
        ("sim://1/a".to_owned(), "slices_of: "),
    ] {
        let bound = bind_scale(&format!("shm://{name}?backend=scale&groups=4&slices_of={of}"));
        let error = bound.err().unwrap();
        assert!(error.contains(wanted), "{of}: {error}");
    }
}
