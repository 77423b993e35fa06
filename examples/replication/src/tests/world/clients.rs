//! Clients of the simulated world: they write, read, and note what they were told.

use super::{Event, HEALED_NS, MS, Message, US, World};
use crate::level::Level;
use crate::node::{Ack, GroupError, Reply, Token};
use crate::store::{Command, Outcome, Query, Request, View};
use crate::tests::history::Append;
use crate::tests::linearizable::{Kind, MAX_OPERATIONS, Value};
use rand::Rng;

pub(super) const CLIENTS: u64 = 4;
const KEYS: u64 = 4;

/// A client sends a command again at most so often.
const MAX_TRIES: u32 = 6;

#[derive(Debug)]
pub(super) struct Client {
    /// Counts what was sent, so that late answers are known.
    pub(super) attempt: u64,
    pub(super) sequence: u64,
    pub(super) under_way: Option<UnderWay>,
    pub(super) is_done: bool,
}

#[derive(Debug)]
pub(super) struct UnderWay {
    begin: u64,
    what: What,
    level: Level,
    tries: u32,
    /// It may have run.
    pub(super) may_have_run: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Put(u64, u64),
    Swap(u64, Value, Value),
    Get(u64),
    Append(u64),
    /// Reads all entries, in the end.
    Entries,
}

impl World {
    pub(super) fn act(&mut self, client: u64) {
        let at = client as usize;
        if self.clients[at].under_way.is_some() {
            return;
        }
        let is_end = self.now > HEALED_NS + 200 * MS;
        if is_end && (client > 0 || self.clients[at].is_done) {
            if client == 0 {
                self.begin(client, What::Entries, Level::Visible);
            }
            return;
        }
        let key = self.random.random_range(0..KEYS);
        self.next_value += 1;
        let value = self.next_value;
        let full = self.history.operations.get(&key).map_or(0, Vec::len) + 8 > MAX_OPERATIONS;
        let what = match self.random.random_range(0..10) {
            _ if is_end => {
                self.clients[at].is_done = true;
                What::Append(value)
            }
            _ if full => What::Append(value),
            0..=2 => What::Put(key, value),
            3 => What::Swap(key, self.last_seen.get(&key).copied().flatten(), Some(value)),
            4..=6 => What::Get(key),
            _ => What::Append(value),
        };
        let level = match self.random.random_range(0..8) {
            0 => Level::Persistent,
            1 => Level::Replicated(2),
            2 => Level::ReplicatedPersistent(2),
            _ => Level::Visible,
        };
        self.begin(client, what, level);
    }

    fn begin(&mut self, client: u64, what: What, level: Level) {
        let begin = self.now;
        let it = &mut self.clients[client as usize];
        it.sequence += 1;
        it.under_way = Some(UnderWay { begin, what, level, tries: 0, may_have_run: false });
        self.try_it(client);
    }

    fn try_it(&mut self, client: u64) {
        self.next_token += 1;
        let token = self.next_token;
        let it = &mut self.clients[client as usize];
        it.attempt += 1;
        let (attempt, sequence) = (it.attempt, it.sequence);
        let Some(under_way) = &mut it.under_way else { return };
        under_way.tries += 1;
        let (what, level) = (under_way.what, under_way.level);
        let bytes = |value: u64| bytes::Bytes::copy_from_slice(&value.to_le_bytes());
        let command = match what {
            What::Put(key, value) => Ok(Command::Put { key: bytes(key), value: bytes(value) }),
            What::Swap(key, expected, new) => Ok(Command::CompareAndSwap {
                key: bytes(key),
                expected: expected.map(bytes),
                new: new.map(bytes),
            }),
            // Of different lengths, so that records end at any place of the ring.
            What::Append(value) => {
                let mut entry = value.to_le_bytes().to_vec();
                entry.resize(8 + (value as usize * 13) % 400, 7);
                Ok(Command::Append { entry: entry.into() })
            }
            What::Get(key) => Err(Query::Get(bytes(key))),
            What::Entries => Err(Query::Entries(0, u32::MAX)),
        };
        let message = match command {
            Ok(command) => {
                Message::Submit { token, request: Request { client, sequence, command }, level }
            }
            Err(query) => Message::Read { token, query },
        };
        // A client may know an old primary.
        let alive: Vec<_> = self.alive().collect();
        let primary = self.membership.newest().primary;
        let to = if self.one_in(4) && !alive.is_empty() {
            alive[self.random.random_range(0..alive.len())]
        } else {
            primary
        };
        self.tokens.insert(token, (client, attempt, sequence));
        let delay = self.delay();
        self.after(delay, Event::Deliver(to, message));
        self.after(60 * MS, Event::ClientTimeout { client, attempt });
    }

    pub(super) fn reply(&mut self, token: Token, reply: Reply) {
        let Some((client, attempt, sequence)) = self.tokens.remove(&token) else { return };
        if let Reply::Command(Ok(ack)) = &reply {
            self.check_ack(ack);
            if ack.reached.synced() > 0 {
                self.synced.push((ack.lsn, client, sequence));
            }
        }
        if self.is_faulty() && self.one_in(12) {
            return; // The answer is lost.
        }
        let delay = self.delay();
        self.after(delay, Event::ClientReply { client, attempt, reply });
    }

    /// So many disks must have the record as the acknowledgement says.
    fn check_ack(&mut self, ack: &Ack) {
        self.acknowledged += 1;
        let synced = self.replicas.values().filter(|it| it.has_synced(ack.lsn)).count();
        if (synced as u32) < ack.reached.synced() {
            self.problem = Some(format!("{ack:?}, and it is on {synced} disks"));
        }
    }

    pub(super) fn on_timeout(&mut self, client: u64, attempt: u64) {
        let it = &mut self.clients[client as usize];
        if it.attempt != attempt {
            return;
        }
        if let Some(under_way) = &mut it.under_way {
            under_way.may_have_run = true;
            self.again(client);
        }
    }

    /// Tries again, or gives up.
    pub(super) fn again(&mut self, client: u64) {
        let Some(under_way) = &self.clients[client as usize].under_way else { return };
        let keeps_trying = matches!(under_way.what, What::Entries);
        if keeps_trying || under_way.tries < MAX_TRIES {
            return self.try_it(client);
        }
        self.give_up(client);
    }

    /// The end of an operation without a result.
    pub(super) fn give_up(&mut self, client: u64) {
        let Some(under_way) = &self.clients[client as usize].under_way else { return };
        let (begin, what, may_have_run) = (under_way.begin, under_way.what, under_way.may_have_run);
        self.end(client);
        match what {
            What::Put(key, value) if may_have_run => {
                self.history.add(key, begin, None, Kind::Put(value));
            }
            What::Swap(key, expected, new) if may_have_run => {
                self.history.add(key, begin, None, Kind::Swap(expected, new, None));
            }
            What::Append(entry) => {
                let did_not_run = !may_have_run;
                let append = Append { begin, end: None, entry, index: None, did_not_run };
                self.history.appends.push(append);
            }
            _ => {}
        }
    }

    fn end(&mut self, client: u64) {
        let it = &mut self.clients[client as usize];
        it.under_way = None;
        // Late answers are for nobody.
        it.attempt += 1;
        let longest = if self.one_in(3) { 12 * MS } else { 500 * US };
        let pause = self.random.random_range(0..longest);
        self.after(pause, Event::ClientAct(client));
    }

    pub(super) fn on_reply(&mut self, client: u64, attempt: u64, reply: Reply) {
        let it = &mut self.clients[client as usize];
        if it.attempt != attempt {
            return;
        }
        let Some(UnderWay { begin, what, level, may_have_run, .. }) = &mut it.under_way else {
            return;
        };
        let (begin, what) = (*begin, *what);
        let outcome = match reply {
            Reply::View(Ok(view)) => return self.on_view(client, begin, what, view),
            Reply::Command(Ok(ack)) => ack.outcome,
            // It was done, and what it did is not known.
            Reply::Command(Err(GroupError::Weaker { .. })) => {
                *may_have_run = true;
                *level = Level::Visible;
                return self.again(client);
            }
            Reply::Command(Err(GroupError::NotEnoughReplicas { .. })) => {
                *level = Level::Visible;
                return self.again(client);
            }
            Reply::Command(Err(error)) | Reply::View(Err(error)) => {
                *may_have_run |= !error.did_not_run();
                it.attempt += 1;
                let attempt = it.attempt;
                return self.after(5 * MS, Event::ClientRetry { client, attempt });
            }
        };
        let Some(outcome) = outcome else { return };
        let end = Some(self.now);
        self.end(client);
        match (what, outcome) {
            (What::Put(key, value), Outcome::Put) => {
                self.history.add(key, begin, end, Kind::Put(value));
            }
            (What::Swap(key, expected, new), Outcome::Compared(had)) => {
                let had = had.map(|had| number(&had));
                self.history.add(key, begin, end, Kind::Swap(expected, new, Some(had)));
            }
            (What::Append(entry), Outcome::Appended(index)) => {
                let append = Append { begin, end, entry, index: Some(index), did_not_run: false };
                self.history.appends.push(append);
            }
            (what, outcome) => {
                self.problem = Some(format!("{what:?} ended as {outcome:?}"));
            }
        }
    }

    fn on_view(&mut self, client: u64, begin: u64, what: What, view: View) {
        let end = Some(self.now);
        match (what, view) {
            (What::Get(key), View::Value(value)) => {
                let value = value.map(|value| number(&value));
                self.last_seen.insert(key, value);
                self.history.add(key, begin, end, Kind::Get(value));
            }
            (What::Entries, View::Entries(_, entries)) => {
                self.entries = Some((begin, entries.iter().map(|entry| number(entry)).collect()));
            }
            (what, view) => self.problem = Some(format!("{what:?} saw {view:?}")),
        }
        self.end(client);
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.get(..8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}
