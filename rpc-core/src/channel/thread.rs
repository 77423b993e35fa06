//! The I/O thread: reads the clock, turns the driver, rests, and dials again.

use super::driver::Driver;
use super::options::ChannelOptions;
use super::redial::{Redial, Step};
use super::shared::Shared;
use crate::error::{ConnectError, RpcError};
use crate::idle::{Idler, Rest};
use crate::service::ServiceDescription;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{ClientTransport, Dial, DialOptions, Unpark};
use core::time::Duration;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::sync::Arc;
use std::thread::{self, Thread};

/// While it has no connection the thread looks around at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How the channel came to its connection, to do it again.
pub(super) struct Origin {
    pub(super) address: Arc<dyn Dial>,
    pub(super) service: &'static ServiceDescription,
}

/// The I/O thread's own.
pub(super) struct IoThread {
    pub(super) driver: Driver,
    pub(super) transport: Box<dyn ClientTransport>,
    pub(super) shared: Arc<Shared>,
    pub(super) origin: Origin,
    pub(super) options: ChannelOptions,
}

type Dialled = Result<Box<dyn ClientTransport>, ConnectError>;

impl IoThread {
    /// Runs until the channel is closed.
    pub(super) fn run(mut self) {
        while self.run_connected() && self.run_unconnected() {}
        self.transport.close();
    }

    /// Runs while there is a connection. Answers whether to go on.
    fn run_connected(&mut self) -> bool {
        let mut idler = Idler::new(self.options.idle);
        let mut now = self.transport.now();
        loop {
            let progress = self.driver.turn(now, &mut *self.transport);
            if let Some(why) = self.driver.lost() {
                tracing::info!(service = self.origin.service.name, %why, "connection lost");
                return !self.shared.stopped();
            }
            if !progress.is_idle() {
                idler.worked();
                now = self.transport.now();
            } else if idler.wants_clock() {
                now = self.transport.now();
                if self.rest(&mut idler, now, progress) {
                    now = self.transport.now();
                }
            } else {
                core::hint::spin_loop();
                continue;
            }
            if self.shared.stopped() {
                return false;
            }
        }
    }

    /// Rests after an empty turn. Answers whether that took long enough to read the clock again.
    fn rest(&mut self, idler: &mut Idler, now: Instant, progress: Progress) -> bool {
        match (idler.rest(now), progress.next) {
            (Rest::Spin, _) | (_, PollAt::Now) => {
                core::hint::spin_loop();
                return false;
            }
            (Rest::Yield, _) => thread::yield_now(),
            (Rest::Park, PollAt::At(at)) => self.park(Some(at)),
            (Rest::Park, PollAt::OnEvent) => self.park(None),
        }
        true
    }

    /// Sleeps, unless a caller came that the transport does not know of.
    fn park(&mut self, until: Option<Instant>) {
        if !self.shared.fall_asleep(self.driver.seen_cancels()) {
            self.transport.park(until);
        }
        self.shared.awake();
    }

    /// Runs until there is a connection again. Answers whether there is.
    fn run_unconnected(&mut self) -> bool {
        self.shared.set_unparker(Arc::new(ThisThread(thread::current())));
        let mut redial = Redial::new(self.options.reconnect);
        let mut dialling: Option<Receiver<Dialled>> = None;
        loop {
            // The old connection is over, but its device's clock goes on.
            let now = self.transport.now();
            if self.shared.stopped() {
                return false;
            }
            let progress = self.driver.turn_unconnected(now);
            let mut wake = match progress.next {
                PollAt::At(at) => at,
                _ => Instant::FAR_FUTURE,
            };
            match dialling.as_ref().map(|answer| answer.try_recv()) {
                Some(Err(TryRecvError::Empty)) => {}
                Some(Ok(Ok(transport))) => {
                    self.connect(transport, now);
                    return true;
                }
                Some(Ok(Err(error))) => {
                    dialling = None;
                    tracing::debug!(service = self.origin.service.name, %error, "dialling failed");
                    if let Some(error) = redial.failed(now, &error) {
                        self.driver.fail_waiting(&error);
                    }
                    continue;
                }
                Some(Err(TryRecvError::Disconnected)) => dialling = None,
                None if !self.driver.is_waiting() => redial.nobody_waits(),
                None => match redial.step(now) {
                    Step::Dial => {
                        dialling = self.dial();
                        if dialling.is_none() {
                            self.driver.fail_waiting(&RpcError::PeerGone { may_have_run: false });
                        }
                    }
                    Step::Wait(until) => wake = wake.min(until),
                    Step::GiveUp => {
                        self.driver.fail_waiting(&RpcError::PeerGone { may_have_run: false });
                    }
                },
            }
            if !self.shared.fall_asleep(self.driver.seen_cancels()) {
                thread::park_timeout((wake - now).min(LONGEST_SLEEP));
            }
            self.shared.awake();
        }
    }

    /// Takes the new connection into use.
    fn connect(&mut self, transport: Box<dyn ClientTransport>, then: Instant) {
        let window = transport.limits().window;
        self.driver.connected(window, then, transport.now());
        self.transport = transport;
        self.shared.set_unparker(self.transport.unparker());
        tracing::info!(service = self.origin.service.name, "connected again");
    }

    /// Dials on a thread of its own, since dialling blocks and deadlines must not. None if there can be no thread.
    fn dial(&self) -> Option<Receiver<Dialled>> {
        let (answer, dialled) = bounded(1);
        let (address, service) = (self.origin.address.clone(), self.origin.service);
        let options: DialOptions = self.options.dial.clone();
        let shared = self.shared.clone();
        let dial = move || {
            // A channel that was closed meanwhile drops the connection.
            let _ = answer.send(address.dial(service, &options));
            shared.unpark();
        };
        thread::Builder::new().name("farcall-dial".into()).spawn(dial).ok().map(|_| dialled)
    }
}

/// Wakes a thread without a connection.
struct ThisThread(Thread);

impl Unpark for ThisThread {
    fn unpark(&self) {
        self.0.unpark();
    }
}
