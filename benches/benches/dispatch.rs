//! The overhead of farcall in a call, with transports that only pass bytes on.
//!
//! `stub`: a poll-mode client's call, from arguments to result. `turn`: a server thread's work for one request, from
//! the message to the posted reply.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant as SystemInstant};

use criterion::{Criterion, criterion_group, criterion_main};
use farcall_bench::echo::service::{EchoPollClient, EchoServer, EchoService};
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Acceptor, Armed, BindOptions, Binding, Bound, BoundHalf, CallToken, ClientTransport, Closing,
    Delivery, Limits, Message, Replies, ReplySink, RequestSink, ServerTransport, SlotId, WindDown,
};
use farcall_core::{
    BindError, Connection, ConnectionOptions, IdlePolicy, PollClient, ReserveError, Server,
    ServiceDescription,
};

/// Both headers of farcall-core have this many bytes; a response that begins with zeros is a value.
const HEADER_BYTES: usize = 8;

/// Requests found by one turn of the server.
const TURN_REQUESTS: u64 = 16;

/// Answers each request at the next poll with zeros: bytes that were just written would come from the store
/// buffer, which no real response does.
struct Mirror {
    slot: SlotId,
    request: [u8; 64],
    response: [u8; 64],
    len: usize,
    posted: bool,
}

impl ClientTransport for Mirror {
    fn limits(&self) -> Limits {
        Limits { window: 1, max_message: 64 }
    }

    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.slot.generation = self.slot.generation.wrapping_add(1);
        self.len = len;
        Ok((self.slot, &mut self.request[..len]))
    }

    fn release(&mut self, _slot: SlotId) {}

    fn post(&mut self, _slot: SlotId, _delivery: Delivery) {
        self.posted = true;
    }

    fn flush(&mut self) {}

    fn abandon(&mut self, _slot: SlotId) {}

    fn poll(&mut self, _now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if !std::mem::take(&mut self.posted) {
            return Progress::IDLE;
        }
        sink.reply(self.slot, Message::Borrowed(&self.response[..self.len]));
        Progress { worked: 1, next: PollAt::OnEvent, scanned: 1 }
    }

    fn arm(&mut self, _: Option<&Waker>) -> Armed {
        Armed::AtSite
    }

    fn close(&mut self, _why: Closing) {}
}

/// The number of requests to answer, and the number answered.
#[derive(Default)]
struct Order {
    wanted: AtomicU64,
    answered: AtomicU64,
}

/// Finds the same request again and again, as often as ordered.
struct Feeder {
    order: Arc<Order>,
    request: Vec<u8>,
    replies: Discard,
}

struct Discard([u8; 64]);

impl Replies for Discard {
    fn reserve(&mut self, _call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        Ok(&mut self.0[..len])
    }

    fn post(&mut self, _call: CallToken, _len: usize) {
        black_box(&mut self.0);
    }

    fn waiting_limit(&self) -> u64 {
        u64::MAX
    }
}

impl ServerTransport for Feeder {
    fn poll(&mut self, _now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let answered = self.order.answered.load(Ordering::Relaxed);
        let found = (self.order.wanted.load(Ordering::Acquire) - answered).min(TURN_REQUESTS);
        for slot in 0..found as u32 {
            let call = CallToken::new(0, 0, slot, 0);
            sink.request(call, Message::Borrowed(&self.request), &mut self.replies);
        }
        self.order.answered.store(answered + found, Ordering::Release);
        Progress { worked: found as u32, next: PollAt::OnEvent, scanned: 1 }
    }

    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.replies
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }

    fn connections(&self) -> usize {
        1
    }

    fn wind_down(&mut self, _now: Instant, _step: WindDown) -> bool {
        true
    }
}

struct NoClients;

impl Acceptor for NoClients {
    fn stop(&mut self) {}
}

struct Fed(Arc<Order>);

impl Binding for Fed {
    fn bind(
        &self,
        _sites: &[Site],
        services: &[&'static ServiceDescription],
        _options: &BindOptions,
    ) -> Result<Bound, BindError> {
        let method = services[0].methods.iter().find(|method| method.name == "echo_32");
        let id = method.expect("the service has it").id;
        let mut request = vec![0; HEADER_BYTES + 32];
        request[..4].copy_from_slice(&id.to_le_bytes());
        let feeder = Feeder { order: Arc::clone(&self.0), request, replies: Discard([0; 64]) };
        Ok(Bound {
            halves: vec![BoundHalf { transports: vec![Box::new(feeder)], renewal: None }],
            acceptor: Box::new(NoClients),
            address: "fed".into(),
            adviser: None,
        })
    }
}

fn stub(criterion: &mut Criterion) {
    let slot = SlotId { index: 0, generation: 0 };
    let mirror = Mirror { slot, request: [0; 64], response: [0; 64], len: 0, posted: false };
    let options = ConnectionOptions::default();
    let connection = Connection::new(Box::new(mirror), &Site::new(), &options);
    let mut client = EchoPollClient::from_connection(connection);
    criterion.bench_function("stub, 32 bytes", |bencher| {
        bencher.iter(|| client.echo_32(black_box([7; 32])));
    });
}

fn turn(criterion: &mut Criterion) {
    let order = Arc::new(Order::default());
    let (parrot, _resume) = EchoService::new();
    let server = Server::builder()
        .service(EchoServer::new(parrot))
        .idle(IdlePolicy::SPIN)
        .serve(&Fed(Arc::clone(&order)))
        .expect("nothing outside is needed");
    let answer = |requests: u64| -> Duration {
        let begin = SystemInstant::now();
        let wanted = order.wanted.fetch_add(requests, Ordering::AcqRel) + requests;
        while order.answered.load(Ordering::Acquire) < wanted {
            spin_loop();
        }
        begin.elapsed()
    };
    criterion.bench_function("turn, 32 bytes", |bencher| bencher.iter_custom(answer));
    server.shutdown();
}

criterion_group!(benches, stub, turn);
criterion_main!(benches);
