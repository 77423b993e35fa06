//! A client of the run: it opens and drops lanes of a connection, calls over all of them, and tries what must be refused.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ConnectionId, DialOptions, Lane, NewConnection};
use farcall_core::{Backpressure, Connection, ConnectionOptions, Key, PollClient, RpcError};
use farcall_rack::Host;
use farcall_verbs::sim::NodeId;
use futures_util::future::{Either, join_all, select};

use super::ends::{LaneEnd, Lanes};
use super::service::{CALLS_PER_SECOND, EchoPollClient, TallyPollClient, VaultPollClient};
use crate::client::SETTLING_NS;
use crate::dice::Dice;
use crate::records::Counts;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Without faults, handshakes and calls take less, and what a client has dropped is gone.
const HEALED_NS: u64 = 200 * MS;

/// Allowance for a turn beyond the deadlines, not counting pauses.
const SLACK_NS: u64 = MS;

/// What a run's clients need to know.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// The server's address by each backend that it offers.
    pub(super) addresses: Vec<String>,
    /// When the last fault happens.
    pub(super) healed_ns: u64,
    /// How long this client's node is paused.
    pub(super) pauses_ns: u64,
    /// Connections do not break, and the server stays.
    pub(super) is_masked: bool,
    /// The keys of all clients, its own first; none: the server asks for none.
    pub(super) keys: Vec<Key>,
    /// It may use all services.
    pub(super) may_use_vault: bool,
}

/// What the clients of a run share.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Connections that clients have.
    ids: Vec<(ConnectionId, NodeId)>,
    tags: u64,
    pub(super) counts: Counts,
    /// Lanes that were let in.
    pub(super) lanes: u64,
    /// Clients that a server has refused as it does not know their connection.
    pub(super) unknown_connections: u64,
    pub(super) failure: Option<String>,
}

/// What is to come of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The client is let in.
    In,
    /// The client is let in, unless the server is full as it has not noticed yet that others have left.
    InOrFull,
    /// Faults decide.
    Either,
    /// The server refuses it, if it answers.
    Refused,
}

/// A client that makes connections of several lanes.
pub(super) struct Client {
    host: Host,
    setup: Setup,
    dice: Dice,
    world: Rc<RefCell<World>>,
    id: Option<ConnectionId>,
    lanes: Lanes,
}

impl Client {
    pub(super) fn new(host: Host, setup: Setup, dice: Dice, world: Rc<RefCell<World>>) -> Client {
        let lanes = Lanes::new(setup.is_masked);
        Client { host, setup, dice, world, id: None, lanes }
    }

    /// Runs the client to its end.
    pub(super) async fn run(mut self) {
        while self.now_ns() < self.setup.healed_ns {
            self.act().await;
            let most_ns = (self.setup.healed_ns / 20).max(2 * US);
            let pause_ns = self.dice.magnitude(US, most_ns);
            self.drive_until(self.now_ns() + pause_ns).await;
        }
        self.drive_until(self.setup.healed_ns + SETTLING_NS).await;
        self.leave();
        self.drive_until(self.now_ns() + HEALED_NS).await;
        self.healed().await;
        self.leave();
        let Lanes { counts, .. } = self.lanes;
        self.world.borrow_mut().counts.add(counts);
    }

    /// Does something while faults happen.
    async fn act(&mut self) {
        if self.lanes.ends.is_empty() {
            return self.begin(Expected::Either).await;
        }
        match self.dice.below(12) {
            0..=2 => {
                let masked = self.setup.is_masked;
                let expected = if masked { Expected::InOrFull } else { Expected::Either };
                let count = self.dice.between(1, 2) as usize;
                self.open_lanes(count, expected).await;
            }
            3 => {
                let lane = self.dice.below(self.lanes.ends.len() as u64) as usize;
                self.lanes.drop_lane(lane);
            }
            4 => self.leave(),
            5 => self.intrude().await,
            6 => self.use_three_services(Expected::Either).await,
            _ => {
                let calls = self.dice.magnitude(1, 2 * u64::from(CALLS_PER_SECOND));
                let timeout_ns = self.dice.magnitude(10 * US, 100 * MS);
                self.call(calls, timeout_ns).await;
            }
        }
    }

    /// All faults are healed: everything happens as it must.
    async fn healed(&mut self) {
        self.lanes.is_masked = true;
        self.begin(Expected::In).await;
        self.open_lanes(2, Expected::In).await;
        self.lanes.answers = 0;
        let quota = u64::from(CALLS_PER_SECOND);
        self.call(2 * quota, HEALED_NS).await;
        if self.lanes.answers < quota {
            let answers = self.lanes.answers;
            let error = &self.lanes.last_error;
            self.fail(format!("{answers} of the first {quota} calls were answered: {error}"));
        }
        self.intrude().await;
        self.use_three_services(Expected::In).await;
        if self.lanes.ends.len() > 1 {
            // The first is the one that the connection began with.
            self.lanes.drop_lane(0);
        }
        self.drive_until(self.now_ns() + HEALED_NS).await;
        self.lanes.answers = 0;
        self.call(1, HEALED_NS).await;
        if self.lanes.answers != 1 {
            let (lanes, error) = (self.lanes.ends.len(), &self.lanes.last_error);
            self.fail(format!("no answer over the {lanes} lanes that are left: {error}"));
        }
        let ended = self.id;
        self.leave();
        self.drive_until(self.now_ns() + HEALED_NS).await;
        if let Some(id) = ended {
            self.dial(&[(Lane::Of(id), 0)], Expected::Refused).await;
        }
    }

    /// Makes a connection.
    async fn begin(&mut self, expected: Expected) {
        self.leave();
        let backend = self.dice.below(self.setup.addresses.len() as u64) as usize;
        let made = self.dial(&[(Lane::First, backend)], expected).await;
        let Some((backend, connection)) = made.into_iter().next() else { return };
        self.id = connection.connection;
        let Some(id) = self.id else { return self.fail("the server has no lanes".to_owned()) };
        let mut world = self.world.borrow_mut();
        world.tags += 1;
        self.lanes.tag = world.tags;
        world.ids.push((id, self.host.node().id()));
        drop(world);
        self.add_lane(backend, connection);
    }

    /// Opens lanes by backends that the connection has no lane of yet, all at once.
    async fn open_lanes(&mut self, count: usize, expected: Expected) {
        let Some(id) = self.id else { return };
        let has = |backend: &usize| self.lanes.ends.iter().any(|end| end.backend == *backend);
        let others = (0..self.setup.addresses.len()).filter(|backend| !has(backend)).take(count);
        let wanted: Vec<_> = others.map(|backend| (Lane::Of(id), backend)).collect();
        let made = self.dial(&wanted, expected).await;
        for (backend, connection) in made {
            if connection.connection != Some(id) {
                self.fail("a lane of another connection".to_owned());
            }
            self.world.borrow_mut().lanes += 1;
            // Without its last lane the connection has ended: this one would be the first of another with its id.
            if self.id.is_some() {
                self.add_lane(backend, connection);
            }
        }
    }

    /// Tries to become a lane of a connection that is not its own, or of none.
    async fn intrude(&mut self) {
        let own = self.host.node().id();
        let others: Vec<_> = {
            let world = self.world.borrow();
            world.ids.iter().filter(|(_, node)| *node != own).map(|(id, _)| *id).collect()
        };
        let guessed = ConnectionId::new(u128::from(self.dice.word()).to_be_bytes());
        let (id, key) = match (self.dice.below(3), self.id, self.setup.keys.get(1)) {
            (0, Some(id), Some(of_another)) => (id, Some(of_another)),
            (1, ..) if !others.is_empty() => (self.dice.pick(&others), self.setup.keys.first()),
            _ => (guessed, self.setup.keys.first()),
        };
        let options = DialOptions { key: key.cloned(), ..self.options(Lane::Of(id)) };
        let backend = self.dice.below(self.setup.addresses.len() as u64) as usize;
        self.dial_with(&[(backend, options)], Expected::Refused).await;
    }

    /// Makes a connection for three services, one of which not everybody may use, and calls each.
    async fn use_three_services(&mut self, expected: Expected) {
        let expected = if self.setup.may_use_vault { expected } else { Expected::Refused };
        let further = vec![EchoPollClient::DESCRIPTION, VaultPollClient::DESCRIPTION];
        let options = DialOptions { further, ..self.options(Lane::Alone) };
        let backend = self.dice.below(self.setup.addresses.len() as u64) as usize;
        let made = self.dial_with(&[(backend, options)], expected).await;
        let Some((_, connection)) = made.into_iter().next() else { return };
        let connection =
            Connection::new(connection, self.host.site(), &ConnectionOptions::default());
        let mut echo = EchoPollClient::from_connection(connection);
        echo.connection().set_timeout(Duration::from_nanos(HEALED_NS));
        let number = self.dice.word();
        let Ok(mut echoed) = echo.start_echo(number) else { return };
        let host = self.host.clone();
        let lanes = &mut self.lanes;
        let answer = host
            .turns(|now| {
                let progress = lanes.turn(now).and(echo.connection().turn(now));
                echo.take(&mut echoed).ok_or(progress)
            })
            .await;
        let mut vault = VaultPollClient::from_connection(echo.into_connection());
        let opened = match vault.start_open() {
            Ok(mut opening) => {
                host.turns(|now| {
                    let progress = lanes.turn(now).and(vault.connection().turn(now));
                    vault.take(&mut opening).ok_or(progress)
                })
                .await
            }
            Err(error) => Err(error),
        };
        let name = self.setup.keys.first().map(|key| key.name().to_owned());
        // Its quota may be used up: with keys, it is that of all connections together.
        let may_fail = |error: &RpcError| {
            expected == Expected::Either || *error == RpcError::Overloaded(Backpressure::Quota)
        };
        let is_right = answer.as_ref().map_or_else(may_fail, |it| *it == number)
            && opened.as_ref().map_or_else(may_fail, |who| *who == name);
        if !is_right {
            self.fail(format!("a connection of three services: {answer:?}, {opened:?}"));
        }
    }

    /// Makes so many calls over all lanes, and waits until all have ended.
    async fn call(&mut self, calls: u64, timeout_ns: u64) {
        let timeout = Duration::from_nanos(timeout_ns);
        self.lanes.ends.iter_mut().for_each(|it| it.client.connection().set_timeout(timeout));
        let first = self.dice.below(8) as usize;
        let pauses_ns = self.setup.pauses_ns;
        let (host, lanes) = (self.host.clone(), &mut self.lanes);
        let mut left = calls;
        host.turns(|now| {
            let mut progress = lanes.turn(now);
            let ends_by_ns = now.as_nanos() + timeout_ns + SLACK_NS + pauses_ns;
            let count = lanes.ends.len();
            for lane in 0..count {
                // Each lane gets its share, whichever is faster.
                while left > 0 && left % count as u64 == (lane + first) as u64 % count as u64 {
                    if !lanes.start(lane, ends_by_ns) {
                        break;
                    }
                    left -= 1;
                    progress.worked += 1;
                }
            }
            let is_over = lanes.ends.is_empty() || (left == 0 && lanes.are_quiet());
            if is_over { Ok(()) } else { Err(progress) }
        })
        .await;
    }

    fn options(&self, lane: Lane) -> DialOptions {
        DialOptions { lane, key: self.setup.keys.first().cloned(), ..DialOptions::default() }
    }

    /// Dials these lanes by these backends, all at once.
    async fn dial(
        &mut self,
        wanted: &[(Lane, usize)],
        expected: Expected,
    ) -> Vec<(usize, NewConnection)> {
        let wanted: Vec<_> =
            wanted.iter().map(|&(lane, backend)| (backend, self.options(lane))).collect();
        self.dial_with(&wanted, expected).await
    }

    /// Dials with these options, all at once, while it drives the lanes that there are.
    async fn dial_with(
        &mut self,
        wanted: &[(usize, DialOptions)],
        expected: Expected,
    ) -> Vec<(usize, NewConnection)> {
        let (host, addresses) = (self.host.clone(), &self.setup.addresses);
        let dialling = wanted.iter().map(|(backend, options)| {
            host.dial(&addresses[*backend], TallyPollClient::DESCRIPTION, options)
        });
        let lanes = &mut self.lanes;
        let driving = host.turns(|now| Err::<Infallible, Progress>(lanes.turn(now)));
        let Either::Left((dialled, _)) = select(join_all(dialling), pin!(driving)).await;
        let mut made = Vec::new();
        for ((backend, _), result) in wanted.iter().zip(dialled) {
            match (result, expected) {
                (Ok(_), Expected::Refused) => {
                    self.fail("let in where it must be refused".to_owned());
                }
                (Ok(connection), _) => made.push((*backend, connection)),
                (Err(error), Expected::In) => self.fail(format!("not let in: {error}")),
                (Err(error), Expected::InOrFull)
                    if !error.to_string().contains("the most that") =>
                {
                    self.fail(format!("not let in: {error}"));
                }
                (Err(error), _) => self.note_refusal(&error),
            }
        }
        made
    }

    fn note_refusal(&self, error: &ConnectError) {
        if matches!(error, ConnectError::Refused { reason, .. } if reason.contains("no such connection"))
        {
            self.world.borrow_mut().unknown_connections += 1;
        }
    }

    fn add_lane(&mut self, backend: usize, connection: NewConnection) {
        let options = ConnectionOptions::default();
        let connection = Connection::new(connection, self.host.site(), &options);
        let client = TallyPollClient::from_connection(connection);
        self.lanes.ends.push(LaneEnd { backend, client });
    }

    /// Drops the connection, with all its lanes.
    fn leave(&mut self) {
        self.lanes.clear();
        if let Some(gone) = self.id.take() {
            self.world.borrow_mut().ids.retain(|(id, _)| *id != gone);
        }
    }

    async fn drive_until(&mut self, until_ns: u64) {
        let (host, lanes) = (self.host.clone(), &mut self.lanes);
        host.turns(|now| {
            let mut progress = lanes.turn(now);
            progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(until_ns)));
            if now.as_nanos() >= until_ns { Ok(()) } else { Err(progress) }
        })
        .await;
        if let Some(what) = self.lanes.failure.take() {
            self.fail(what);
        }
    }

    fn now_ns(&self) -> u64 {
        self.host.node().now_ns()
    }

    fn fail(&self, what: String) {
        let (node, now_ns) = (self.host.node().id(), self.host.node().now_ns());
        self.host.node().note(|| format!("failure: {what}"));
        let failure = &mut self.world.borrow_mut().failure;
        failure.get_or_insert_with(|| format!("{now_ns} ns, client {node:?}: {what}"));
    }
}
