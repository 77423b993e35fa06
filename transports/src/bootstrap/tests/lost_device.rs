//! A server whose device is lost, and comes back.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farcall_core::codec::{As, Whole};
use farcall_core::metrics::RefusalReason;
use farcall_core::service::{Answer, Method, MethodDescription, Service, ServiceDescription};
use farcall_core::transport::Message;
use farcall_core::{Channel, ChannelOptions, Reply, RpcError, Server};
use farcall_verbs::faults::FaultInjector;
use farcall_verbs::{Device, OpenError};

use super::BOUND;
use crate::address::{Address, Place};
use crate::bootstrap::DeviceError;

static METHODS: [MethodDescription; 1] = [MethodDescription::new("echo", 1, 0)];
pub(super) static ECHO: ServiceDescription =
    ServiceDescription { name: "Echo", fingerprint: 11, methods: &METHODS };

pub(super) enum Echo {}

impl Method for Echo {
    const NAME: &'static str = "Echo.echo";
    const ID: u32 = 1;
    type Output = Result<Vec<u8>, RpcError>;

    fn read(answer: Answer<'_>) -> Self::Output {
        match answer {
            Answer::Value(message) => Ok(message.to_vec()),
            Answer::Service(_) => panic!("it has no error of its own"),
            Answer::Failed(error) => Err(error),
        }
    }
}

#[derive(Clone)]
pub(super) struct EchoServer;

impl Service for EchoServer {
    fn description(&self) -> &'static ServiceDescription {
        &ECHO
    }

    fn dispatch(&self, _: usize, arguments: Message<'_>, reply: Reply<'_>) {
        reply.value(&As::<Whole, [u8]>::new(&arguments));
    }
}

/// The device of a server, which can be taken away.
struct Losable {
    name: String,
    is_there: AtomicBool,
    /// It was lost so often.
    losses: AtomicU32,
}

static LOSABLE: Mutex<Vec<Arc<Losable>>> = Mutex::new(Vec::new());

impl Losable {
    /// That of the server of this name.
    fn of(name: &str) -> Arc<Losable> {
        let losable = Arc::new(Losable {
            name: name.to_owned(),
            is_there: AtomicBool::new(true),
            losses: AtomicU32::new(0),
        });
        LOSABLE.lock().unwrap().push(Arc::clone(&losable));
        losable
    }

    fn open(self: &Arc<Self>) -> Result<Device, DeviceError> {
        if !self.is_there.load(Ordering::SeqCst) {
            let (name, known, hint) = ("rxe0".into(), "shm".into(), String::new());
            return Err(OpenError::UnknownDevice { name, known, hint }.into());
        }
        let losses = self.losses.load(Ordering::SeqCst);
        let opened = Opened { device: Arc::clone(self), losses };
        Ok(Device::open("shm")?.with_faults(Arc::new(opened)))
    }

    fn lose(&self) {
        self.is_there.store(false, Ordering::SeqCst);
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    fn come_back(&self) {
        self.is_there.store(true, Ordering::SeqCst);
    }
}

/// It was opened after so many losses.
struct Opened {
    device: Arc<Losable>,
    losses: u32,
}

impl FaultInjector for Opened {
    fn is_lost(&self) -> bool {
        self.device.losses.load(Ordering::SeqCst) != self.losses
    }
}

/// The devices of this address, if they can be lost.
pub(crate) fn open_devices(
    address: &Address,
    threads: usize,
) -> Option<Result<Vec<Option<Device>>, DeviceError>> {
    let Place::Shm { name } = address.place() else { return None };
    let all = LOSABLE.lock().unwrap();
    let losable = all.iter().find(|losable| losable.name == *name)?;
    Some((0..threads).map(|_| losable.open().map(Some)).collect())
}

/// Waits for the condition.
#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "never: {what}");
        std::thread::yield_now();
    }
}

fn a_server_opens_a_lost_device_again(backend: &str) {
    let name = |of: &str| format!("{of}-{}-{backend}", std::process::id());
    let (lost, kept) = (name("lost"), name("kept"));
    let address = |name: &str| -> Address {
        format!("shm://{name}?backend={backend}").parse().expect("an address")
    };
    let device = Losable::of(&lost);
    let (lost, kept) = (address(&lost), address(&kept));
    let server = Server::builder().service(EchoServer).threads(2);
    let server = server.serve_all(&[&lost, &kept]).expect("the places are free");
    let connect = |address: &Address| {
        Channel::connect(address.clone(), &ECHO, ChannelOptions::default().timeout(BOUND))
    };
    let echo = |channel: &Channel| channel.call::<Echo, _>(&As::<Whole, [u8]>::new(b"echo")).wait();
    let echoed = Ok(b"echo".to_vec());
    let bystander = connect(&kept).expect("a server");
    for _ in 0..2 {
        let (roaming, other) =
            (connect(&lost).expect("a server"), connect(&lost).expect("a server"));
        assert_eq!((echo(&roaming), echo(&other)), (echoed.clone(), echoed.clone()));
        device.lose();
        // The connections end, and there are no new ones.
        let mut refused = String::new();
        until("a refusal", || {
            let _ = (echo(&roaming), echo(&other));
            assert_eq!(echo(&bystander), echoed, "the other address goes on");
            refused = connect(&lost).map_or_else(|error| error.to_string(), |_| String::new());
            refused.contains("it serves again when the device is back")
        });
        // It has lost its connection, and is refused another one.
        let ended = echo(&roaming);
        let Err(RpcError::Refused { why }) = &ended else { panic!("{refused}, {ended:?}") };
        assert!(why.to_string().contains("it serves again when the device is back"), "{why}");
        until("the end of the lost clients", || server.connections() == 1);
        device.come_back();
        until("answers", || {
            assert_eq!(echo(&bystander), echoed, "the other address goes on");
            echo(&roaming) == echoed
        });
        assert!(connect(&lost).is_ok(), "and new connections");
    }
    let refused = server.metrics().snapshot().refused(RefusalReason::NoDevice);
    assert!(refused >= 2, "{refused} clients were refused for want of a device");
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_server_opens_a_lost_device_again_and_its_clients_come_back() {
    for backend in ["write_imm", "send_recv", "rfp", "scale", "datagram"] {
        a_server_opens_a_lost_device_again(backend);
    }
}
