//! The I/O of one channel, as a state machine: its calls over a connection, and the way to the next connection.

use super::driver::Driver;
use super::job::Job;
use super::options::ChannelOptions;
use super::redial::{Redial, Step};
use super::shared::Shared;
use crate::error::{ConnectError, GoneReason, TransportFailure};
use crate::idle::{IdlePolicy, Idler};
use crate::panics::contain;
use crate::service::ServiceDescription;
use crate::site::Site;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{Armed, ClientTransport, Closing, Dial, DialOptions, NewConnection, SlotId};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use std::io;
use std::sync::Arc;
use std::thread;

/// What the one who drives a channel has of it.
pub(super) struct ChannelIo {
    pub(super) driver: Driver,
    pub(super) shared: Arc<Shared>,
    pub(super) link: Link,
    pub(super) dialler: Dialler,
    /// What callers do when they drive and there is nothing to do.
    pub(super) idle: IdlePolicy,
    /// Follows that policy, from the begin of a wait.
    pub(super) idler: Idler,
    pub(super) watch: Watch,
    /// The caller that drove last leaves the calls under way to the I/O thread, which is to drive at once.
    pub(super) is_handed_over: bool,
    pub(super) attendance: Attendance,
    /// When the turn after this one is due.
    pub(super) next: PollAt,
    /// Dropped with this: [`Channel::close`](super::Channel::close) waits for it.
    pub(super) _end: Sender<()>,
}

/// Who notices what arrives while nobody drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The I/O thread looks again in a moment.
    Naps,
    /// The I/O thread sleeps, and what arrives makes an event that wakes it; at the latest it wakes then.
    Armed(Instant),
    /// It still sleeps, but a caller has driven since: what arrives makes no event. Only while a caller drives.
    Disarmed(Instant),
}

/// What callers that drove know of the next turns.
#[derive(Default)]
pub(super) struct Attendance {
    /// The task that polls again soon, and since when it has waited without progress.
    pub(super) task: Option<(usize, Instant)>,
    /// When a caller drove last, unless it left its call to the I/O thread.
    pub(super) last: Option<Instant>,
    /// How long the calls of callers that waited for one ended after their last progress, lately.
    pub(super) usual_ns: u64,
}

impl Attendance {
    /// Since when the task of this ticket has waited without progress, if it is the one that drove last.
    #[inline]
    pub(super) fn idle_since(&self, ticket: usize) -> Option<Instant> {
        self.task.filter(|(task, _)| *task == ticket).map(|(_, since)| since)
    }
}

/// The connection, or the attempts to make the next one.
pub(super) enum Link {
    Up(Box<dyn ClientTransport>),
    Down { redial: Redial, dialling: Option<Receiver<Dialled>> },
}

type Dialled = Result<NewConnection, ConnectError>;

/// What the log says of a dialling thread that panics.
pub(super) const DIALLING: &str = "connecting";

/// How the channel made its connection, to make it again.
pub(super) struct Dialler {
    pub(super) address: Arc<dyn Dial>,
    pub(super) service: &'static ServiceDescription,
    pub(super) site: Site,
    pub(super) options: ChannelOptions,
}

impl ChannelIo {
    /// That of a new channel, which the I/O thread looks at. `end` is dropped with it.
    pub(super) fn new(
        driver: Driver,
        shared: &Arc<Shared>,
        transport: Box<dyn ClientTransport>,
        dialler: Dialler,
        idle: IdlePolicy,
        end: Sender<()>,
    ) -> Box<ChannelIo> {
        Box::new(ChannelIo {
            driver,
            shared: Arc::clone(shared),
            link: Link::Up(transport),
            dialler,
            idle,
            idler: Idler::new(idle),
            watch: Watch::Naps,
            is_handed_over: false,
            attendance: Attendance::default(),
            next: PollAt::OnEvent,
            _end: end,
        })
    }

    /// One turn at `now`. Never waits.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant) -> Progress {
        let Link::Up(transport) = &mut self.link else {
            let progress = self.turn_unconnected(now);
            self.next = progress.next;
            return progress;
        };
        let progress = self.driver.turn(now, &mut **transport);
        self.next = progress.next;
        match self.driver.lost() {
            None => progress,
            Some(why) => self.lose_connection(why, progress),
        }
    }

    /// Sends a call at once if there is no other and there is a connection, before the clock is read. Otherwise gives it back.
    #[inline]
    pub(super) fn send_alone(&mut self, job: Box<Job>) -> Result<SlotId, Box<Job>> {
        match &mut self.link {
            Link::Up(transport) => self.driver.send_alone(job, &mut **transport),
            Link::Down { .. } => Err(job),
        }
    }

    /// Nothing is left to do for others when a caller leaves.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.watch == Watch::Naps
            && self.is_up()
            && !self.is_handed_over
            && !self.driver.has_calls()
            && !self.driver.has_woken()
    }

    /// There is a connection. Callers drive only then.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Callers have left something since the last turn.
    pub(super) fn has_news(&self) -> bool {
        self.shared.has_news(self.driver.seen_cancels())
    }

    /// A caller drives: what arrives need not wake the I/O thread.
    #[cold]
    pub(super) fn disarm(&mut self, until: Instant) {
        self.watch = Watch::Disarmed(until);
        if let Link::Up(transport) = &mut self.link {
            transport.disarm();
        }
    }

    /// Nothing came since the last turn, and what comes from now on makes an event. After
    /// [`Site::fall_asleep`].
    pub(super) fn arm(&mut self) -> Armed {
        if self.has_news() {
            return Armed::No;
        }
        match &mut self.link {
            Link::Up(transport) => transport.arm(self.shared.parking.waker()),
            Link::Down { dialling, .. } => {
                Armed::of(dialling.as_ref().is_none_or(Receiver::is_empty), false)
            }
        }
    }

    #[cold]
    fn lose_connection(&mut self, why: TransportFailure, mut progress: Progress) -> Progress {
        tracing::info!(service = self.dialler.service.name, %why, "connection lost");
        let redial = Redial::new(self.dialler.options.reconnect);
        self.link = Link::Down { redial, dialling: None };
        progress.worked += 1;
        progress.next = PollAt::Now;
        progress
    }

    #[cold]
    fn turn_unconnected(&mut self, now: Instant) -> Progress {
        let mut progress = self.driver.turn_unconnected(now);
        let Link::Down { redial, dialling } = &mut self.link else { return progress };
        match dialling.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(Ok(NewConnection { transport, compatibility, .. }))) => {
                self.driver.connected(transport.slots(), compatibility);
                self.link = Link::Up(transport);
                tracing::info!(service = self.dialler.service.name, "connected again");
                progress.worked += 1;
            }
            Some(Ok(Err(error))) => {
                *dialling = None;
                self.dialling_failed(now, error);
                progress.worked += 1;
            }
            Some(Err(TryRecvError::Disconnected)) => {
                *dialling = None;
                self.cannot_dial(io::Error::other("the thread that dialled has panicked"));
                progress.worked += 1;
            }
            None if !self.driver.is_waiting() => redial.stop_waiting(),
            None => match redial.step(now) {
                Step::Dial => {
                    match self.dialler.dial() {
                        Ok(answer) => *dialling = Some(answer),
                        Err(cause) => self.cannot_dial(cause),
                    }
                    progress.worked += 1;
                }
                Step::Wait(until) => progress.next = progress.next.earlier(PollAt::At(until)),
                Step::GiveUp => {
                    self.driver.give_up_waiting();
                    progress.worked += 1;
                }
            },
        }
        progress
    }

    /// An attempt to connect has failed. The first one since the connection was lost is worth a warning.
    #[cold]
    fn dialling_failed(&mut self, now: Instant, error: ConnectError) {
        let Link::Down { redial, .. } = &mut self.link else { return };
        let service = self.dialler.service.name;
        if redial.is_first() {
            tracing::warn!(service, %error, "the connection was lost, and no new one could be made");
        } else {
            tracing::debug!(service, %error, "dialling failed again");
        }
        match redial.failed(now, Arc::new(error)) {
            Ok(why) => self.driver.set_outage(why),
            Err(lasting) => self.driver.fail_waiting(&lasting),
        }
    }

    /// This end could not even try: the calls that wait end at once, and a later one tries again.
    #[cold]
    fn cannot_dial(&mut self, cause: io::Error) {
        let service = self.dialler.service.name;
        let error = ConnectError::Io { address: service.into(), doing: "dialling", cause };
        tracing::warn!(service, %error, "the connection was lost, and this end cannot dial");
        self.driver.set_outage(GoneReason::Dial(Arc::new(error)));
        self.driver.give_up_waiting();
    }
}

impl Drop for ChannelIo {
    fn drop(&mut self) {
        if let Link::Up(transport) = &mut self.link {
            transport.close(Closing::Goodbye);
        }
    }
}

impl Dialler {
    /// Dials on a thread of its own, because dialling blocks.
    ///
    /// # Errors
    /// The system has no thread.
    fn dial(&self) -> io::Result<Receiver<Dialled>> {
        let (answer, dialled) = bounded(1);
        let (address, service) = (self.address.clone(), self.service);
        let (site, options): (Site, DialOptions) = (self.site.clone(), self.options.dial.clone());
        let dial = move || {
            let answer = DialAnswer { site: &site, answer: Some(answer) };
            // If it panics, the answer is dropped.
            contain(DIALLING, || answer.send(address.dial(service, &site, &options)));
        };
        thread::Builder::new().name("farcall-dial".into()).spawn(dial)?;
        Ok(dialled)
    }
}

/// Where a dialling thread leaves its result. Wakes the I/O thread, also when dialling panics.
struct DialAnswer<'a> {
    site: &'a Site,
    answer: Option<Sender<Dialled>>,
}

impl DialAnswer<'_> {
    fn send(self, dialled: Dialled) {
        if let Some(answer) = &self.answer {
            // If the channel was closed meanwhile, this drops the connection.
            let _ = answer.send(dialled);
        }
    }
}

impl Drop for DialAnswer<'_> {
    fn drop(&mut self) {
        self.answer = None;
        self.site.wake();
    }
}
