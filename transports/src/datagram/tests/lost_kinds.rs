//! A kind of message is lost, by an injector around the device: no call notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall_core::error::TransportFailure;
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{
    ClientInfo, ClientTransport, Delivery, Message, ReplySink, ServerTransport, SlotId,
};
use farcall_verbs::Device;
use farcall_verbs::faults::{DropWhen, Outgoing};

use super::by_hand::Handlers;
use crate::contract::{Answer, Backend, Config, Fabric, NewClient, Placement, Source};
use crate::datagram::Datagram;
use crate::datagram::wire::{HEADER_BYTES, Kind};

/// How many of a kind are lost.
const LOST: u32 = 2;

const TURN: Duration = Duration::from_micros(10);

/// Turns after which a call that has not ended never will: 20 s.
const MANY_TURNS: usize = 2_000_000;

const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Heard(Vec<(SlotId, Vec<u8>)>);

impl ReplySink for Heard {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        self.0.push((slot, message.to_vec()));
    }

    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        panic!("{slot:?} failed: {why:?}");
    }

    fn lane_lost(&mut self, _: std::ops::Range<u32>, _: TransportFailure) {
        panic!("it has one lane");
    }

    fn closed(&mut self, why: TransportFailure) {
        panic!("the session ended: {why:?}");
    }
}

struct Pair {
    client: Box<dyn ClientTransport>,
    server: Box<dyn ServerTransport>,
    heard: Heard,
    handlers: Handlers,
    now: Instant,
}

impl Pair {
    fn over(device: &Device) -> Pair {
        let config = Config { window: 4, slot: 512, max_message: 1 << 20, ..Config::default() };
        let (ours, theirs) = (Site::new(), Site::new());
        let at = |site| Placement::new(site, Fabric::Verbs(device));
        let half = Datagram.serve(&at(&theirs), &config, 1).unwrap();
        let mut pending = Datagram.dial(&at(&ours), &config).unwrap();
        let (terms, timeout, setup) = (config.terms(), TIMEOUT, pending.setup());
        let accepted = half
            .intake
            .accept(NewClient {
                terms: &terms,
                setup: &setup,
                timeout,
                source: Source::Unknown,
                info: &ClientInfo::default(),
            })
            .unwrap();
        let answer = Answer { terms: &terms, setup: &accepted.setup, timeout };
        let (mut server, mut handlers, mut now) =
            (half.transport, Handlers::default(), Instant::ZERO);
        let confirmed = (0..MANY_TURNS).any(|_| {
            now += TURN;
            server.poll(now, &mut handlers);
            server.flush();
            pending.confirm(&answer, now).unwrap().is_none()
        });
        assert!(confirmed, "the server does not answer");
        Pair {
            client: pending.finish(answer).unwrap(),
            server,
            heard: Heard::default(),
            handlers,
            now,
        }
    }

    fn turn(&mut self) {
        self.now = self.now.saturating_add_nanos(TURN.as_nanos() as u64);
        self.client.poll(self.now, &mut self.heard);
        self.client.flush();
        self.server.poll(self.now, &mut self.handlers);
        self.server.flush();
    }

    /// One call that is echoed.
    fn call(&mut self, bytes: &[u8]) {
        let (slot, room) = self.client.reserve(bytes.len()).unwrap();
        room.copy_from_slice(bytes);
        self.client.post(slot, Delivery::AtMostOnce);
        let answered = (0..MANY_TURNS).find_map(|_| {
            self.turn();
            self.heard.0.pop()
        });
        assert_eq!(answered, Some((slot, bytes.to_vec())));
    }
}

fn kind_of(request: &Outgoing<'_>) -> Option<u8> {
    request.payload.get(HEADER_BYTES).copied()
}

#[test]
fn every_kind_of_message_may_be_lost() {
    let kinds = [
        Kind::Challenge,
        Kind::Request,
        Kind::Response,
        Kind::Announce,
        Kind::Part,
        Kind::Progress,
        Kind::Lent,
        Kind::Ask,
        Kind::Release,
        Kind::Released,
    ];
    for kind in kinds {
        let seen = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&seen);
        let injector = DropWhen::new(move |request| {
            kind_of(request) == Some(kind as u8) && counter.fetch_add(1, Ordering::Relaxed) < LOST
        });
        let device = Device::open("shm-plain").unwrap().with_faults(Arc::new(injector));
        let mut pair = Pair::over(&device);
        for len in [10, 20_000, 0, 300_000, 300_000, 7] {
            pair.call(&vec![len as u8; len]);
        }
        assert_eq!(pair.handlers.requests, 6, "{kind:?}");
        assert!(seen.load(Ordering::Relaxed) >= LOST, "{kind:?}: nothing of the kind was lost");
    }
}
