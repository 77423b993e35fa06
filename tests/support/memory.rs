//! A minimal transport: two queues behind a lock, to test generated code without a device.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Acceptor, Armed, BindOptions, Binding, Bound, BoundHalf, CallToken, ClientTransport, Closing,
    Delivery, Dial, DialOptions, Limits, Message, NewConnection, Replies, ReplySink, RequestSink,
    ServerTransport, SlotId, WindDown,
};
use farcall_core::{
    BindError, ConnectError, FailureKind, ReserveError, ServiceDescription, TransportFailure,
};

const WINDOW: usize = 8;
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Longer messages arrive in owned memory.
const BORROWED_UP_TO_BYTES: usize = 4096;

/// An address. Everything that dials it reaches what listens at it.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    link: Arc<Link>,
}

#[derive(Default)]
struct Link {
    state: Mutex<State>,
    /// The number of messages passed on in owned memory.
    owned: AtomicUsize,
}

#[derive(Default)]
struct State {
    clients: u32,
    closed: bool,
    /// Of both ends: woken at each change.
    sites: Vec<Site>,
    requests: VecDeque<(u32, SlotId, Vec<u8>)>,
    replies: HashMap<u32, VecDeque<(SlotId, Vec<u8>)>>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The number of messages that arrived in owned memory.
    pub(crate) fn owned_messages(&self) -> usize {
        self.link.owned.load(Ordering::Relaxed)
    }

    /// Sends these bytes as a request, and returns the bytes of the reply.
    pub(crate) fn raw_call(&self, request: &[u8]) -> Vec<u8> {
        struct Raw(Option<Vec<u8>>);
        impl ReplySink for Raw {
            fn reply(&mut self, _: SlotId, message: Message<'_>) {
                self.0 = Some(message.to_vec());
            }
            fn failed(&mut self, _: SlotId, why: TransportFailure) {
                panic!("the request failed: {why}");
            }
            fn lane_lost(&mut self, _: std::ops::Range<u32>, _: TransportFailure) {
                panic!("it has one lane");
            }

            fn closed(&mut self, why: TransportFailure) {
                panic!("the connection is over: {why}");
            }
        }
        let site = Site::new();
        let mut client = Client::new(self.link.clone(), &site);
        let (slot, bytes) = client.reserve(request.len()).unwrap();
        bytes.copy_from_slice(request);
        client.post(slot, Delivery::AtMostOnce);
        let mut answer = Raw(None);
        loop {
            client.poll(site.now(), &mut answer);
            if let Some(reply) = answer.0 {
                return reply;
            }
            let asleep = site.fall_asleep();
            if client.arm(None).may_sleep() {
                asleep.sleep(None);
            }
        }
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        let sites = self.state().sites.clone();
        sites.iter().for_each(Site::wake);
    }

    fn message(&self, bytes: &'_ [u8], visit: impl FnOnce(Message<'_>)) {
        if bytes.len() <= BORROWED_UP_TO_BYTES {
            visit(Message::Borrowed(bytes));
        } else {
            self.owned.fetch_add(1, Ordering::Relaxed);
            visit(Message::Owned(Bytes::copy_from_slice(bytes)));
        }
    }
}

fn progress(worked: usize) -> Progress {
    Progress { worked: worked as u32, next: PollAt::OnEvent, scanned: 0 }
}

fn check(len: usize) -> Result<(), ReserveError> {
    if len <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    Err(ReserveError::TooLarge { len: len as u64, max: MAX_MESSAGE_BYTES as u64 })
}

impl Dial for Memory {
    fn dial(
        &self,
        _: &'static ServiceDescription,
        site: &Site,
        _: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        Ok(Box::new(Client::new(self.link.clone(), site)).into())
    }
}

impl Binding for Memory {
    fn bind(
        &self,
        sites: &[Site],
        _: &[&'static ServiceDescription],
        _: &BindOptions,
    ) -> Result<Bound, BindError> {
        struct NoAcceptor;
        impl Acceptor for NoAcceptor {
            fn stop(&mut self) {}
        }
        let link = self.link.clone();
        link.state().sites.extend_from_slice(sites);
        let server = Server { answers: Answers { link, reserved: HashMap::new() } };
        Ok(Bound {
            halves: vec![BoundHalf { transports: vec![Box::new(server)], renewal: None }],
            acceptor: Box::new(NoAcceptor),
            address: "memory".into(),
            adviser: None,
        })
    }
}

struct Client {
    link: Arc<Link>,
    client: u32,
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    taken: bool,
    bytes: Vec<u8>,
}

impl Client {
    fn new(link: Arc<Link>, site: &Site) -> Self {
        let mut state = link.state();
        state.clients += 1;
        state.sites.push(site.clone());
        let client = state.clients;
        drop(state);
        Self { link, client, slots: (0..WINDOW).map(|_| Slot::default()).collect() }
    }

    fn free(&mut self, slot: SlotId) {
        let slot = &mut self.slots[slot.index as usize];
        slot.taken = false;
        slot.generation += 1;
    }
}

impl ClientTransport for Client {
    fn limits(&self) -> Limits {
        Limits { window: WINDOW as u32, max_message: MAX_MESSAGE_BYTES as u64 }
    }

    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        check(len)?;
        let index = self.slots.iter().position(|slot| !slot.taken);
        let index = index.ok_or(farcall_core::Backpressure::Credits)?;
        let slot = &mut self.slots[index];
        slot.taken = true;
        slot.bytes = vec![0xEE; len];
        Ok((SlotId { index: index as u32, generation: slot.generation }, &mut slot.bytes))
    }

    fn release(&mut self, slot: SlotId) {
        self.free(slot);
    }

    fn post(&mut self, slot: SlotId, _: Delivery) {
        let bytes = std::mem::take(&mut self.slots[slot.index as usize].bytes);
        self.link.state().requests.push_back((self.client, slot, bytes));
        self.link.wake_all();
    }

    fn flush(&mut self) {}

    fn abandon(&mut self, _: SlotId) {}

    fn poll(&mut self, _: Instant, sink: &mut dyn ReplySink) -> Progress {
        let mut state = self.link.state();
        let arrived = std::mem::take(state.replies.entry(self.client).or_default());
        let closed = state.closed;
        drop(state);
        for (slot, bytes) in &arrived {
            self.free(*slot);
            self.link.message(bytes, |message| sink.reply(*slot, message));
        }
        if closed {
            sink.closed(TransportFailure::new(FailureKind::Goodbye, true));
        }
        progress(arrived.len())
    }

    fn arm(&mut self, _: Option<&Waker>) -> Armed {
        let state = self.link.state();
        let is_idle =
            !state.closed && state.replies.get(&self.client).is_none_or(VecDeque::is_empty);
        Armed::of(is_idle, false)
    }

    fn close(&mut self, _: Closing) {}
}

struct Server {
    answers: Answers,
}

struct Answers {
    link: Arc<Link>,
    reserved: HashMap<(u32, u32), Vec<u8>>,
}

impl ServerTransport for Server {
    fn poll(&mut self, _: Instant, sink: &mut dyn RequestSink) -> Progress {
        let arrived = std::mem::take(&mut self.answers.link.state().requests);
        let link = self.answers.link.clone();
        for (client, slot, bytes) in &arrived {
            let call = CallToken::new(*client, 0, slot.index, slot.generation);
            link.message(bytes, |message| sink.request(call, message, &mut self.answers));
        }
        progress(arrived.len())
    }

    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.answers
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        self.answers.link.state().requests.is_empty()
    }

    fn connections(&self) -> usize {
        self.answers.link.state().clients as usize
    }

    fn wind_down(&mut self, _: Instant, step: WindDown) -> bool {
        if step == WindDown::Close {
            self.answers.link.state().closed = true;
            self.answers.link.wake_all();
        }
        true
    }
}

impl Replies for Answers {
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        check(len)?;
        let bytes = self.reserved.entry((call.client(), call.slot())).or_default();
        *bytes = vec![0xEE; len];
        Ok(bytes)
    }

    fn post(&mut self, call: CallToken, len: usize) {
        let bytes = self.reserved.remove(&(call.client(), call.slot())).unwrap();
        assert_eq!(bytes.len(), len);
        let slot = SlotId { index: call.slot(), generation: call.generation() };
        self.link.state().replies.entry(call.client()).or_default().push_back((slot, bytes));
        self.link.wake_all();
    }

    fn waiting_limit(&self) -> u64 {
        u64::MAX
    }
}
