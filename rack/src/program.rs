//! Programs of nodes, written as `async` functions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{DialOptions, NewConnection};
use farcall_core::{Channel, ChannelDriver, ChannelOptions, ServiceClient};
use farcall_verbs::sim::{Actor, Next, Node, Turn};

use super::clock;
use super::dial::{Dialled, Dialling};
use super::liveness::NodeLife;
use super::network::Network;
use super::server::turn_after;

/// What a program has of the node that it runs on. Clones are the same program's.
#[derive(Clone)]
pub struct Host {
    life: NodeLife,
    site: Site,
    network: Arc<Network>,
    reactor: Rc<Reactor>,
}

/// What drives a program on: its connections and timers.
#[derive(Default)]
struct Reactor {
    channels: RefCell<Vec<ChannelDriver>>,
    /// By moment, and a number of its own.
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    timers_made: Cell<u64>,
    /// What a program that has turns of its own wants next.
    wish: Cell<Option<Progress>>,
}

impl Host {
    pub(super) fn new(life: NodeLife, site: Site, network: Arc<Network>) -> Host {
        Host { life, site, network, reactor: Rc::default() }
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.life.node
    }

    /// The site of the program.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Time that has passed on the rack.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.node().now_ns())
    }

    /// Waits for so long.
    pub async fn sleep(&self, time: Duration) {
        let until = Instant::from_nanos(self.node().now_ns()) + time;
        self.until(until, |now| (now >= until).then_some(()).ok_or(until)).await;
    }

    /// Connects to the server at this address, such as `sim://1/kv`.
    pub async fn connect<C: ServiceClient>(&self, address: &str) -> Result<C, ConnectError> {
        self.connect_with(address, &ChannelOptions::default()).await
    }

    /// Connects with these options. When the server is gone, so is the connection: make another.
    pub async fn connect_with<C: ServiceClient>(
        &self,
        address: &str,
        options: &ChannelOptions,
    ) -> Result<C, ConnectError> {
        let dialled = self.dial(address, C::DESCRIPTION, options.dial_options()).await?;
        let (channel, driver) = Channel::driven(dialled, &self.site, C::DESCRIPTION, options);
        self.reactor.channels.borrow_mut().push(driver);
        Ok(C::from_channel(channel))
    }

    /// Makes a connection, for a client that the program drives itself.
    pub async fn dial(
        &self,
        address: &str,
        service: &'static ServiceDescription,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let from = self.life.clone();
        let mut dialling =
            Dialling::new(&self.network, from, address, service, &self.site, options)?;
        let dialled = self.until(Instant::ZERO, |now| match dialling.turn(now) {
            Dialled::Done(result) => Ok(result),
            Dialled::NotYet(at) => Err(at),
        });
        dialled.await
    }

    /// Takes `step` in each turn of the program until it gives something. Until then it answers what it did and when to
    /// ask it again, by the node's clock, as a poll-mode client's [`turn`](farcall_core::Connection::turn) does.
    pub async fn turns<T>(&self, mut step: impl FnMut(Instant) -> Result<T, Progress>) -> T {
        std::future::poll_fn(move |_| match step(clock::now(self.node(), self.node().now_ns())) {
            Ok(done) => Poll::Ready(done),
            Err(progress) => {
                let progress = clock::by_rack(self.node(), progress);
                let before = self.reactor.wish.take().unwrap_or(Progress::IDLE);
                self.reactor.wish.set(Some(before.and(progress)));
                Poll::Pending
            }
        })
        .await
    }

    /// Asks `step` from `first` on, and then whenever it says, until it gives something.
    async fn until<T>(
        &self,
        first: Instant,
        mut step: impl FnMut(Instant) -> Result<T, Instant>,
    ) -> T {
        let mut timer = Timer { reactor: Rc::clone(&self.reactor), key: None };
        let mut next = first;
        std::future::poll_fn(move |context| {
            let now = Instant::from_nanos(self.node().now_ns());
            if now >= next {
                match step(now) {
                    Ok(done) => return Poll::Ready(done),
                    Err(at) => next = at,
                }
            }
            timer.set(next, context.waker());
            Poll::Pending
        })
        .await
    }
}

/// Wakes a future at a moment. Dropping it forgets that.
struct Timer {
    reactor: Rc<Reactor>,
    key: Option<(u64, u64)>,
}

impl Timer {
    fn set(&mut self, at: Instant, waker: &Waker) {
        self.forget();
        let number = self.reactor.timers_made.get();
        self.reactor.timers_made.set(number + 1);
        let key = (at.as_nanos(), number);
        self.reactor.timers.borrow_mut().insert(key, waker.clone());
        self.key = Some(key);
    }

    fn forget(&mut self) {
        if let Some(key) = self.key.take() {
            self.reactor.timers.borrow_mut().remove(&key);
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Reactor {
    /// Wakes those whose moment has come.
    fn expire(&self, now: Instant) {
        loop {
            let mut timers = self.timers.borrow_mut();
            let Some(entry) = timers.first_entry().filter(|it| it.key().0 <= now.as_nanos()) else {
                return;
            };
            let waker = entry.remove();
            drop(timers);
            waker.wake();
        }
    }

    /// One turn of all connections, and of what takes turns with them.
    fn drive(&self, site: &Site, node: &Node, now: Instant) -> Progress {
        let mut all = Progress::IDLE;
        let shown = clock::now(node, now.as_nanos());
        self.channels.borrow_mut().retain_mut(|channel| {
            let progress = clock::by_rack(node, channel.turn(shown));
            all = all.and(progress);
            !channel.is_over()
        });
        // What they wait for goes on without the connection.
        all.and(clock::by_rack(node, site.drive_companions(shown)))
    }

    fn next_timer(&self) -> PollAt {
        match self.timers.borrow().first_key_value() {
            Some((&(at, _), _)) => PollAt::At(Instant::from_nanos(at)),
            None => PollAt::OnEvent,
        }
    }
}

/// Notes that a program was woken, and wakes its actor.
#[derive(Default)]
struct Woken {
    flag: AtomicBool,
    /// As soon as it has had a turn.
    actor: OnceLock<Waker>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        if let Some(actor) = self.actor.get() {
            actor.wake_by_ref();
        }
    }
}

/// A program, as an actor.
pub(super) struct Program<F: Future> {
    future: Pin<Box<F>>,
    host: Host,
    woken: Arc<Woken>,
    waker: Waker,
    result: Rc<Cell<Option<F::Output>>>,
}

impl<F: Future> Program<F> {
    pub(super) fn new(host: Host, future: F) -> (Program<F>, Task<F::Output>) {
        let woken = Arc::new(Woken { flag: AtomicBool::new(true), actor: OnceLock::new() });
        let waker = Waker::from(Arc::clone(&woken));
        let result = Rc::new(Cell::new(None));
        let task = Task { result: Rc::clone(&result) };
        (Program { future: Box::pin(future), host, woken, waker, result }, task)
    }
}

impl<F: Future> Actor for Program<F> {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let Program { future, host, woken, waker, result } = self;
        if woken.actor.get().is_none()
            && let Some(actor) = host.node().waker()
        {
            let _ = woken.actor.set(actor);
        }
        let now = Instant::from_nanos(now_ns);
        let reactor = Rc::clone(&host.reactor);
        reactor.expire(now);
        let mut progress = reactor.drive(&host.site, host.node(), now);
        let has_turns = reactor.wish.take().is_some();
        if woken.flag.swap(false, Ordering::AcqRel) || has_turns {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                result.set(Some(output));
                return Turn::then(Next::Never);
            }
            // What it has asked for leaves in this turn.
            progress = reactor
                .drive(&host.site, host.node(), now)
                .and(reactor.wish.get().unwrap_or(Progress::IDLE));
        }
        progress.next = progress.next.earlier(reactor.next_timer());
        if woken.flag.load(Ordering::Acquire) {
            progress.next = PollAt::Now;
        }
        turn_after(progress)
    }
}

/// A program that was put onto a node, and what it gives in the end.
pub struct Task<T> {
    result: Rc<Cell<Option<T>>>,
}

impl<T> Task<T> {
    /// What it has given, once it has ended.
    pub fn take(&self) -> Option<T> {
        self.result.take()
    }

    /// Does it still run? It ends with its last line, or with its node.
    pub fn is_running(&self) -> bool {
        // The program holds the other one.
        Rc::strong_count(&self.result) > 1
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("is_running", &self.is_running()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("node", self.node()).finish_non_exhaustive()
    }
}
