//! A client of lent memory: it is paused between getting a lend and using it, uses lends that others got, goes on across revokes, and tries
//! what it must not.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use farcall::memory::{MemoryError, Remote, RemoteMemory, Rights};
use farcall::{ChannelOptions, ServiceClient};
use farcall_rack::Host;
use farcall_verbs::sim::Node;
use futures_util::future::{join, join_all};
use serde::{Deserialize, Serialize};

use super::owner::LendingClient;
use super::records::{Begun, PART_BYTES, Records};
use crate::client::SETTLING_NS;
use crate::dice::Dice;
use crate::value;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Most lends that a reader, and all readers together, remember.
const MOST_REMEMBERED: usize = 8;

/// Additions at once.
const ADDITIONS: usize = 8;

/// Operations at once of a reader that floods.
const FLOOD: usize = 100;

/// Without faults, an operation takes less.
const HEALED: Duration = Duration::from_millis(200);

/// How often a healed owner is asked, until its node has let a client in.
const HEALED_TRIES: usize = 40;

/// What a run's readers need to know.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) address: String,
    /// Operations go by lanes where there are any.
    pub(super) one_sided: bool,
    /// How much later than by its clock the owner may end a lease.
    pub(super) late_ns: u64,
    /// When the last fault happens.
    pub(super) healed_ns: u64,
    /// A reader also tries a lend whose lease is over by its own clock.
    pub(super) tries_late: bool,
    /// The owner's node.
    pub(super) owner: Node,
    pub(super) records: Records,
    /// Lends that readers have told each other of.
    pub(super) told: Rc<RefCell<Vec<Lend>>>,
}

/// A lend that a reader knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lend {
    remote: Remote,
    number: u64,
}

/// The value as it travels, for readers that make up others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Forged {
    life: u64,
    lend: u32,
    epoch: u32,
    key: u64,
    offset: u64,
    len: u64,
}

impl Forged {
    fn of(remote: &Remote) -> Option<Forged> {
        postcard::from_bytes(&postcard::to_allocvec(remote).ok()?).ok()
    }

    fn remote(&self) -> Option<Remote> {
        postcard::from_bytes(&postcard::to_allocvec(self).ok()?).ok()
    }
}

/// Both services of one connection.
struct Connected {
    lending: LendingClient,
    memory: RemoteMemory,
}

pub(super) struct Reader {
    host: Host,
    setup: Setup,
    dice: Dice,
    connected: Option<Connected>,
    known: Vec<(Lend, Option<u64>)>,
}

impl Reader {
    pub(super) fn new(host: Host, setup: Setup, dice: Dice) -> Reader {
        Reader { host, setup, dice, connected: None, known: Vec::new() }
    }

    /// Runs the reader to its end.
    pub(super) async fn run(mut self) {
        while self.host.node().now_ns() < self.setup.healed_ns {
            let wait_ns = self.dice.magnitude(US, (self.setup.healed_ns / 20).max(2 * US));
            self.host.sleep(Duration::from_nanos(wait_ns)).await;
            self.act().await;
        }
        self.connected = None;
        let now_ns = self.host.node().now_ns();
        let settled_ns = (self.setup.healed_ns + SETTLING_NS).saturating_sub(now_ns);
        self.host.sleep(Duration::from_nanos(settled_ns)).await;
        if let Err(what) = self.healed().await {
            self.setup.records.lock().fail(|| format!("without faults: {what}"));
        }
    }

    async fn connect(&mut self) -> Result<(), String> {
        let options = ChannelOptions::default().also(RemoteMemory::DESCRIPTION);
        let lending: LendingClient = self
            .host
            .connect_with(&self.setup.address, &options)
            .await
            .map_err(|error| error.to_string())?;
        let memory = RemoteMemory::on(lending.channel()).map_err(|error| error.to_string())?;
        let memory = if self.setup.one_sided { memory.one_sided() } else { memory };
        self.connected = Some(Connected { lending, memory });
        Ok(())
    }

    /// Does something while faults happen.
    async fn act(&mut self) {
        if self.connected.is_none() {
            // The next turn tries again.
            let _ = self.connect().await;
            return;
        }
        let what = self.dice.below(20);
        self.host.node().note(|| format!("reader: action {what}"));
        match what {
            0..=2 => self.borrow().await,
            3..=5 | 18 => self.read_after_a_pause().await,
            19 => self.give_up_reading().await,
            6 => self.write().await,
            7 | 16 | 17 => self.add().await,
            8 => self.make_up().await,
            9 => self.read_across_a_revoke().await,
            10 => self.flood().await,
            11 => self.give_up().await,
            12 => self.take_back().await,
            13 => self.batch().await,
            14 => {
                if let Some(Connected { lending, .. }) = &self.connected {
                    let timeout = self.dice.magnitude(100 * US, 50 * MS);
                    let taken = lending.take_all_back().timeout(Duration::from_nanos(timeout));
                    self.note(taken.await.is_err());
                }
            }
            _ if self.dice.once_in(4) => self.connected = None,
            _ => {}
        }
    }

    /// After an error, sometimes makes another connection: the owner may be another one.
    fn note(&mut self, has_failed: bool) {
        if has_failed && self.dice.once_in(2) {
            self.connected = None;
        }
    }

    fn timeout(&mut self) -> Duration {
        Duration::from_nanos(self.dice.magnitude(20 * US, 100 * MS))
    }

    fn begun(&self, tenancy: u64) -> Begun {
        let at_ns = self.host.node().now_ns();
        let life = self.setup.records.lock().life;
        let (owner_clock_ns, late_ns) = (self.setup.owner.clock_ns(), self.setup.late_ns);
        Begun { tenancy, at_ns, owner_clock_ns, life, late_ns }
    }

    async fn borrow(&mut self) {
        let timeout = self.timeout();
        let Some(Connected { lending, .. }) = &self.connected else { return };
        let lent = lending.borrow().timeout(timeout).await;
        self.note(lent.is_err());
        let Ok(Some((remote, number))) = lent else { return };
        self.remember(Lend { remote, number });
    }

    /// Remembers a lend, and perhaps tells the others.
    fn remember(&mut self, lend: Lend) {
        let records = self.setup.records.lock();
        let ends_ns = records.tenancy(lend.number).and_then(|tenancy| tenancy.lease_ends_ns);
        drop(records);
        // What is left of the lease, counted by this reader's clock.
        let left_ns = ends_ns.map(|ends_ns| ends_ns.saturating_sub(self.setup.owner.clock_ns()));
        let ends_ns = left_ns.map(|left_ns| self.host.node().clock_ns() + left_ns);
        if self.known.len() == MOST_REMEMBERED {
            self.known.remove(0);
        }
        self.known.push((lend, ends_ns));
        let mut told = self.setup.told.borrow_mut();
        if told.len() == MOST_REMEMBERED {
            told.remove(0);
        }
        told.push(lend);
    }

    /// A lend that this reader, or another, has got, and that is not over for all that this reader knows.
    fn pick(&mut self) -> Option<Lend> {
        let told = self.setup.told.borrow();
        if self.setup.tries_late && self.dice.once_in(3) && !told.is_empty() {
            return Some(self.dice.pick(&told));
        }
        drop(told);
        let clock_ns = self.host.node().clock_ns();
        let tries_late = self.setup.tries_late && self.dice.once_in(2);
        let is_alive = |ends_ns: Option<u64>| ends_ns.is_none_or(|ends_ns| clock_ns < ends_ns);
        let usable = self.known.iter().filter(|(_, ends_ns)| tries_late || is_alive(*ends_ns));
        let usable: Vec<Lend> = usable.map(|(lend, _)| *lend).collect();
        if usable.is_empty() { None } else { Some(self.dice.pick(&usable)) }
    }

    /// A lend that permits to write.
    fn pick_writable(&mut self) -> Option<Lend> {
        let lend = self.pick()?;
        let records = self.setup.records.lock();
        let rights = records.tenancy(lend.number).map(|tenancy| tenancy.rights);
        rights.filter(|rights| rights.contains(Rights::WRITE)).map(|_| lend)
    }

    /// A part of a lend, and where it begins.
    fn part(&mut self, lend: &Lend) -> Option<(usize, Remote)> {
        let begin = self.dice.below(PART_BYTES as u64);
        let end = self.dice.between(begin + 1, PART_BYTES as u64);
        Some((begin as usize, lend.remote.slice(begin..end).ok()?))
    }

    /// Records the end of a READ.
    fn check_read(&self, begun: Begun, begin: usize, read: &Result<Bytes, MemoryError>) {
        let mut records = self.setup.records.lock();
        match read {
            Ok(bytes) => {
                records.check_success(begun, Rights::READ);
                records.check_bytes(begun.tenancy, begin, bytes, "a reader");
            }
            Err(why) => records.check_failure(begun, why, self.setup.owner.clock_ns()),
        }
    }

    async fn read_after_a_pause(&mut self) {
        let Some(lend) = self.pick() else { return };
        let Some((begin, part)) = self.part(&lend) else { return };
        let pause_ns = self.dice.magnitude(US, 30 * MS);
        self.host.sleep(Duration::from_nanos(pause_ns)).await;
        let timeout = self.timeout();
        let Some(Connected { memory, .. }) = &self.connected else { return };
        let begun = self.begun(lend.number);
        let read = memory.read(&part).timeout(timeout).await;
        self.check_read(begun, begin, &read);
        self.note(read.is_err());
    }

    /// Reads while the owner takes the lend back.
    async fn read_across_a_revoke(&mut self) {
        let Some(lend) = self.pick() else { return };
        let timeout = self.timeout();
        let delay_ns = self.dice.magnitude(1, 20 * US);
        let Some(Connected { memory, lending }) = &self.connected else { return };
        let reads = (0..8).map(async |_| {
            let begun = self.begun(lend.number);
            (begun, memory.read(&lend.remote).timeout(timeout).await)
        });
        let revoke = async {
            self.host.sleep(Duration::from_nanos(delay_ns)).await;
            lending.take_back(lend.number).timeout(timeout).await
        };
        let (reads, _) = join(join_all(reads), revoke).await;
        for (begun, read) in &reads {
            self.check_read(*begun, 0, read);
        }
    }

    async fn flood(&mut self) {
        let Some(lend) = self.pick() else { return };
        let timeout = self.timeout();
        let Some(Connected { memory, .. }) = &self.connected else { return };
        let reads = (0..FLOOD).map(async |_| {
            let begun = self.begun(lend.number);
            (begun, memory.read(&lend.remote).timeout(timeout).await)
        });
        for (begun, read) in &join_all(reads).await {
            self.check_read(*begun, 0, read);
        }
    }

    async fn write(&mut self) {
        let Some(lend) = self.pick_writable() else { return };
        let Some((begin, part)) = self.part(&lend) else { return };
        let timeout = self.timeout();
        let Some(Connected { memory, .. }) = &self.connected else { return };
        let value = self.setup.records.lock().new_value();
        let bytes = value::bytes(value, PART_BYTES)[begin..begin + part.len() as usize].to_vec();
        self.setup.records.lock().may_write(lend.number, value);
        let begun = self.begun(lend.number);
        let written = memory.write(&part, bytes).timeout(timeout).await;
        let mut records = self.setup.records.lock();
        match &written {
            Ok(()) => records.check_success(begun, Rights::WRITE),
            Err(why) => {
                records.check_failure(begun, why, self.setup.owner.clock_ns());
                if !why.may_have_landed() {
                    records.has_not_written(lend.number, value);
                }
            }
        }
        drop(records);
        self.note(written.is_err());
    }

    /// Counts.
    async fn add(&mut self) {
        let timeout = self.timeout();
        let Some(Connected { memory, lending }) = &self.connected else { return };
        let Ok(Some((counter, life))) = lending.counter().timeout(timeout).await else { return };
        let added =
            join_all((0..ADDITIONS).map(|_| memory.fetch_add(&counter, 1).timeout(timeout))).await;
        let mut records = self.setup.records.lock();
        for added in added {
            match added {
                Ok(before) => records.record_addition(life, before),
                Err(why) if why.may_have_landed() => records.record_lost_addition(life),
                Err(_) => {}
            }
        }
    }

    /// Reads and writes several lends at once.
    async fn batch(&mut self) {
        let lends: Vec<_> = (0..4).filter_map(|_| self.pick()).collect();
        let timeout = self.timeout();
        let Some(Connected { memory, .. }) = &self.connected else { return };
        let begun: Vec<_> = lends.iter().map(|lend| self.begun(lend.number)).collect();
        let batch = lends.iter().fold(memory.batch(), |batch, lend| batch.read(&lend.remote));
        match batch.post().timeout(timeout).await {
            Ok(read) => {
                for (begun, read) in begun.iter().zip(read) {
                    self.check_read(*begun, 0, &Ok(Bytes::copy_from_slice(read.bytes())));
                }
            }
            Err(error) => {
                if let Some(begun) = begun.get(error.at as usize) {
                    self.check_read(*begun, 0, &Err(error.error));
                }
            }
        }
    }

    /// Begins to write, and gives up.
    async fn give_up(&mut self) {
        let Some(lend) = self.pick_writable() else { return };
        let Some(Connected { memory, .. }) = &self.connected else { return };
        let value = self.setup.records.lock().new_value();
        self.setup.records.lock().may_write(lend.number, value);
        let bytes = value::bytes(value, PART_BYTES);
        let written = memory.write(&lend.remote, bytes);
        let soon = self.host.sleep(Duration::from_nanos(self.dice.magnitude(1, 10 * US)));
        let (written, soon) = (std::pin::pin!(written), std::pin::pin!(soon));
        futures_util::future::select(written, soon).await;
    }

    /// Begins to read, and gives up. What is read next must not get these bytes.
    async fn give_up_reading(&mut self) {
        let Some(lend) = self.pick() else { return };
        let (Some((_, given_up)), Some((begin, next))) = (self.part(&lend), self.part(&lend))
        else {
            return;
        };
        let (timeout, soon_ns) = (self.timeout(), self.dice.magnitude(1, 2 * US));
        let Some(Connected { memory, .. }) = &self.connected else { return };
        // So that a lane, if there is one, has access.
        for _ in 0..2 {
            let begun = self.begun(lend.number);
            self.check_read(begun, 0, &memory.read(&lend.remote).timeout(timeout).await);
        }
        {
            let read = std::pin::pin!(memory.read(&given_up));
            let soon = std::pin::pin!(self.host.sleep(Duration::from_nanos(soon_ns)));
            futures_util::future::select(read, soon).await;
        }
        let begun = self.begun(lend.number);
        let read = memory.read(&next).timeout(timeout).await;
        self.check_read(begun, begin, &read);
        self.note(read.is_err());
    }

    async fn take_back(&mut self) {
        let Some(lend) = self.pick() else { return };
        let timeout = self.timeout();
        let Some(Connected { lending, .. }) = &self.connected else { return };
        let taken = lending.take_back(lend.number).timeout(timeout).await;
        self.note(taken.is_err());
    }

    /// Makes up values that name what was not lent to it.
    async fn make_up(&mut self) {
        let Some(lend) = self.pick() else { return };
        let Some(own) = Forged::of(&lend.remote) else { return };
        let guess = self.dice.word();
        let (beyond, len) = (own.offset + own.len, own.len);
        let forged = match self.dice.below(8) {
            0 => Forged { len: len + 1, ..own },
            1 => Forged { offset: beyond, len: 1, ..own },
            2 => Forged { offset: own.offset.wrapping_sub(1), ..own },
            3 => Forged { epoch: own.epoch.wrapping_add(1), ..own },
            4 => Forged { key: own.key ^ 1 << (guess % 64), ..own },
            5 => Forged { life: own.life ^ 1 << (guess % 64), ..own },
            6 => Forged { lend: own.lend ^ 1 << (guess % 4), ..own },
            _ => Forged { lend: guess as u32, epoch: 1, key: guess, ..own },
        };
        let Some(remote) = forged.remote() else { return };
        let timeout = self.timeout();
        let Some(Connected { memory, .. }) = &self.connected else { return };
        let writes = self.dice.once_in(2);
        let done = if writes {
            memory.write(&remote, vec![0xee; remote.len() as usize]).timeout(timeout).await
        } else {
            memory.read(&remote).timeout(timeout).await.map(drop)
        };
        if done.is_ok() {
            let what = if writes { "write" } else { "read" };
            self.setup.records.lock().fail(|| format!("a {what} of what was not lent: {forged:?}"));
        }
    }

    /// All faults are healed: what is lent can be used, and what was taken back cannot.
    async fn healed(&mut self) -> Result<(), String> {
        let mut tries = 0;
        while let Err(why) = self.connect().await {
            tries += 1;
            if tries == HEALED_TRIES {
                return Err(format!("not let in: {why}"));
            }
            self.host.sleep(HEALED).await;
        }
        let Some(Connected { memory, lending }) = &self.connected else { return Ok(()) };
        let failed = |what: &str, why: &dyn std::fmt::Display| format!("{what}: {why}");
        let mut tries = 0;
        let lent = loop {
            let lent = lending.borrow().timeout(HEALED).await;
            // Others take lends back at the same time.
            if let Some((remote, number)) = lent.map_err(|why| failed("borrowing", &why))? {
                let records = self.setup.records.lock();
                let lease = records.tenancy(number).and_then(|tenancy| tenancy.lease_ends_ns);
                if lease.is_none() {
                    break Lend { remote, number };
                }
            }
            tries += 1;
            if tries == HEALED_TRIES {
                return Err("nothing is lent without a lease".to_owned());
            }
            self.host.sleep(Duration::from_nanos(MS)).await;
        };
        // Others may take it back meanwhile.
        let begun = self.begun(lent.number);
        self.check_read(begun, 0, &memory.read(&lent.remote).timeout(HEALED).await);
        while !lending
            .take_back(lent.number)
            .timeout(HEALED)
            .await
            .map_err(|why| failed("taking back", &why))?
        {
            self.host.sleep(Duration::from_nanos(MS)).await;
        }
        let late = memory.read(&lent.remote).timeout(HEALED).await;
        match late {
            Err(MemoryError::Revoked) => Ok(()),
            other => Err(format!("a lend that was taken back: {other:?}")),
        }
    }
}
