//! Calls of the ordinary client, which the thread that makes them also drives.
//!
//! A call that is alone waits for its answer in one poll or `wait`: a layer around the client's transport takes the server's turn after
//! each doorbell. With several tasks, the server has its turn when each task had its own. The client's I/O thread is kept out, because
//! it would drive when the profiler stops this thread.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use anyhow::{Context as _, Result, bail, ensure};
use farcall::{Call, Channel, ChannelOptions, ConnectError, DialOptions, RpcError};
use farcall::{ServiceClient, ServiceDescription, Site};
use farcall_core::error::ReserveError;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{
    Armed, ClientTransport, Closing, Delivery, Dial, Limits, NewConnection, ReplySink, SlotId,
};
use farcall_transports::Address;

use super::busy::BusyEndpoint;
use super::{EMPTY_ROUNDS, OwnServer, argument};
use crate::echo::service::EchoClient;

thread_local! {
    /// The server of the client that this thread drives.
    static SERVER: RefCell<Option<OwnServer>> = const { RefCell::new(None) };

    /// The server has its turn after each doorbell.
    static AFTER_DOORBELL: Cell<bool> = const { Cell::new(true) };
}

/// A turn of the server.
#[inline]
fn take_turn(server: &mut OwnServer) {
    server.begin_round();
    server.turn();
}

/// The client; its server is the thread's.
pub(super) struct Ordinary {
    client: EchoClient,
    busy: BusyEndpoint,
}

impl Ordinary {
    pub(super) fn connect(address: &str, mut server: OwnServer) -> Result<Self> {
        let dial = WithServer(address.parse()?);
        let busy = BusyEndpoint::start()?;
        let client = server
            .accept(|| {
                let options = ChannelOptions::default().endpoint(busy.endpoint());
                let channel = Channel::connect(dial, EchoClient::DESCRIPTION, options)?;
                Ok(EchoClient::from_channel(channel))
            })
            .with_context(|| format!("cannot connect to {address}"))?;
        SERVER.set(Some(server));
        Ok(Self { client, busy })
    }

    /// Makes so many calls that block the thread.
    #[inline]
    pub(super) fn wait(&self, calls: usize) -> Result<()> {
        for call in 0..calls {
            let answer = self.client.echo_32(argument(call)).wait()?;
            ensure!(answer == argument(call), "an answer differs from what was sent");
        }
        Ok(())
    }

    /// So many tasks, each of which awaits one call after the other.
    pub(super) fn tasks(self, window: usize) -> Tasks {
        let task = |_| {
            let woken = Arc::new(Woken(AtomicBool::new(true)));
            Task { number: 0, call: None, waker: Waker::from(woken.clone()), woken }
        };
        AFTER_DOORBELL.set(window == 1);
        Tasks { client: self.client, _busy: self.busy, tasks: (0..window).map(task).collect() }
    }
}

/// Tasks of one client, and as much of an executor as they need.
pub(super) struct Tasks {
    client: EchoClient,
    _busy: BusyEndpoint,
    tasks: Vec<Task>,
}

struct Task {
    number: usize,
    call: Option<Call<Result<[u8; 32], RpcError>>>,
    woken: Arc<Woken>,
    waker: Waker,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Tasks {
    /// Makes so many calls in all.
    #[inline]
    pub(super) fn run(&mut self, calls: usize) -> Result<()> {
        let (mut started, mut ended, mut empty_rounds) = (0, 0, 0);
        while ended < calls {
            let before = ended;
            for task in &mut self.tasks {
                if task.call.is_none() && started < calls {
                    task.number = started;
                    task.call = Some(self.client.echo_32(argument(started)));
                    task.woken.0.store(true, Ordering::Relaxed);
                    started += 1;
                }
                let Some(call) = &mut task.call else { continue };
                if !task.woken.0.load(Ordering::Acquire) {
                    continue;
                }
                task.woken.0.store(false, Ordering::Relaxed);
                if let Poll::Ready(answer) =
                    Pin::new(call).poll(&mut Context::from_waker(&task.waker))
                {
                    ensure!(answer? == argument(task.number), "an answer differs");
                    task.call = None;
                    ended += 1;
                }
            }
            if !AFTER_DOORBELL.get() {
                SERVER.with_borrow_mut(|server| server.as_mut().map(take_turn));
            }
            if ended > before {
                empty_rounds = 0;
                continue;
            }
            empty_rounds += 1;
            if empty_rounds > EMPTY_ROUNDS {
                bail!("no answer in {EMPTY_ROUNDS} rounds; {ended} of {calls} calls have ended");
            }
        }
        Ok(())
    }
}

/// Dials connections that take turns of the thread's server.
struct WithServer(Address);

impl Dial for WithServer {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let connection = self.0.dial(service, site, options)?;
        Ok(connection.with_layer(|inner| Box::new(TurnsOfServer { inner, has_sent: false })))
    }
}

/// Takes a turn of the server before the first poll after each doorbell.
struct TurnsOfServer {
    inner: Box<dyn ClientTransport>,
    has_sent: bool,
}

impl ClientTransport for TurnsOfServer {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.inner.reserve(len)
    }

    fn release(&mut self, slot: SlotId) {
        self.inner.release(slot);
    }

    #[inline]
    fn post(&mut self, slot: SlotId, delivery: Delivery) {
        self.inner.post(slot, delivery);
    }

    #[inline]
    fn flush(&mut self) {
        self.inner.flush();
        self.has_sent = true;
    }

    fn abandon(&mut self, slot: SlotId) {
        self.inner.abandon(slot);
    }

    /// At the server's time: the client's own varies from run to run.
    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let now = SERVER.with_borrow_mut(|server| {
            let Some(server) = server else { return now };
            if core::mem::take(&mut self.has_sent) && AFTER_DOORBELL.get() {
                take_turn(server);
            }
            server.now
        });
        self.inner.poll(now, sink)
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        self.inner.arm(waker)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn close(&mut self, why: Closing) {
        self.inner.close(why);
    }
}
