//! The state machine: keys and values, appended entries, and what each client has already done.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use farcall::Shape;
use serde::{Deserialize, Serialize};

use crate::planted::{Bug, is_planted};
use crate::record::{Lsn, MAX_PAYLOAD_BYTES};

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1 << 10;

/// The longest value or appended entry, in bytes. A command with a key and two of them fits into a record.
pub const MAX_VALUE_BYTES: usize = (MAX_PAYLOAD_BYTES - MAX_KEY_BYTES - 256) / 2;

/// So many appended entries are kept; older ones are forgotten.
pub const MAX_APPENDED: usize = 100_000;

/// The results of so many clients are kept. A command that is sent again after so many other clients have written may be applied twice.
pub const MAX_CLIENTS: usize = 65_536;

/// What changes the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum Command {
    /// Gives a key a value.
    Put {
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
    },
    /// Gives a key a value, or none, if it has this one.
    CompareAndSwap {
        /// The key.
        key: Bytes,
        /// What it must have.
        expected: Option<Bytes>,
        /// What it gets.
        new: Option<Bytes>,
    },
    /// Appends an entry to the list of entries.
    Append {
        /// The entry.
        entry: Bytes,
    },
}

/// A command, and whose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Request {
    /// The client: a number of no other one.
    pub client: u64,
    /// The number of the command at its client, which gives them in ascending order and has one under way at a time.
    pub sequence: u64,
    /// What to do.
    pub command: Command,
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum Outcome {
    /// The key has the value.
    Put,
    /// What the key had: it was swapped if that is what was expected.
    Compared(Option<Bytes>),
    /// The index of the entry in the list.
    Appended(u64),
    /// The client has sent a later command before: this one was not applied now.
    Superseded,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum Query {
    /// The value of a key.
    Get(Bytes),
    /// So many entries from this index on.
    Entries(u64, u32),
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum View {
    /// The value of the key.
    Value(Option<Bytes>),
    /// The index of the first entry, and entries from there on: the first one that is kept, if those asked for are forgotten.
    Entries(u64, Vec<Bytes>),
}

/// Why a command cannot be applied, whatever the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize, Shape)]
#[error("{length} bytes are too long for a {what}: at most {max} are possible")]
pub struct TooLong {
    /// Whether it is the key.
    pub what: Part,
    /// Its length, in bytes.
    pub length: u64,
    /// The most.
    pub max: u64,
}

/// A part of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum Part {
    /// The key.
    Key,
    /// A value or an entry.
    Value,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Key => "key",
            Part::Value => "value",
        })
    }
}

impl Command {
    /// Checks the lengths.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn check(&self) -> Result<(), TooLong> {
        let limit = |what, bytes: &Bytes, max: usize| {
            let too_long = TooLong { what, length: bytes.len() as u64, max: max as u64 };
            if bytes.len() > max { Err(too_long) } else { Ok(()) }
        };
        let key = |key| limit(Part::Key, key, MAX_KEY_BYTES);
        let value = |value| limit(Part::Value, value, MAX_VALUE_BYTES);
        match self {
            Command::Put { key: at, value: new } => key(at).and_then(|()| value(new)),
            Command::CompareAndSwap { key: at, expected, new } => {
                key(at)?;
                [expected, new].into_iter().flatten().try_for_each(value)
            }
            Command::Append { entry } => value(entry),
        }
    }
}

impl Request {
    /// Its bytes, for a record.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        // It has no types that cannot be written.
        postcard::to_allocvec(self).unwrap_or_default().into()
    }

    /// Reads the bytes of a record.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        postcard::from_bytes(bytes).ok()
    }
}

/// The last command of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Session {
    sequence: u64,
    outcome: Outcome,
    used: Lsn,
}

/// The state after some record of the log. The same records give the same state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    applied: Lsn,
    values: BTreeMap<Bytes, Bytes>,
    first_entry: u64,
    entries: VecDeque<Bytes>,
    sessions: BTreeMap<u64, Session>,
}

impl Store {
    /// The last record that was applied.
    #[must_use]
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// Applies the next record.
    ///
    /// # Panics
    /// If it is not the next one.
    pub fn apply(&mut self, lsn: Lsn, request: &Request) -> Outcome {
        assert_eq!(lsn, self.applied.next(), "records are applied in their order");
        self.applied = lsn;
        if let Some(session) = self.sessions.get(&request.client)
            && !is_planted(Bug::RetryAppliedTwice)
        {
            if session.sequence == request.sequence {
                return session.outcome.clone();
            }
            if session.sequence > request.sequence {
                return Outcome::Superseded;
            }
        }
        let outcome = self.execute(&request.command);
        let session = Session { sequence: request.sequence, outcome: outcome.clone(), used: lsn };
        if self.sessions.insert(request.client, session).is_none()
            && self.sessions.len() > MAX_CLIENTS
        {
            self.forget_a_client();
        }
        outcome
    }

    /// A record that is no command: nothing is done.
    pub fn skip(&mut self, lsn: Lsn) {
        assert_eq!(lsn, self.applied.next(), "records are applied in their order");
        self.applied = lsn;
    }

    fn execute(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Put { key, value } => {
                self.values.insert(key.clone(), value.clone());
                Outcome::Put
            }
            Command::CompareAndSwap { key, expected, new } => {
                let had = self.values.get(key).cloned();
                if had == *expected {
                    match new {
                        Some(new) => self.values.insert(key.clone(), new.clone()),
                        None => self.values.remove(key),
                    };
                }
                Outcome::Compared(had)
            }
            Command::Append { entry } => {
                self.entries.push_back(entry.clone());
                if self.entries.len() > MAX_APPENDED {
                    self.entries.pop_front();
                    self.first_entry += 1;
                }
                Outcome::Appended(self.first_entry + self.entries.len() as u64 - 1)
            }
        }
    }

    /// Forgets the client that has written nothing for the longest time. The same one at each replica.
    #[cold]
    fn forget_a_client(&mut self) {
        let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used);
        if let Some(client) = oldest.map(|(client, _)| *client) {
            self.sessions.remove(&client);
        }
    }

    /// What is there now.
    #[must_use]
    pub fn view(&self, query: &Query) -> View {
        match query {
            Query::Get(key) => View::Value(self.values.get(key).cloned()),
            Query::Entries(from, limit) => {
                let first = (*from).max(self.first_entry);
                let skip = usize::try_from(first - self.first_entry).unwrap_or(usize::MAX);
                let mut room = MAX_VIEW_BYTES;
                let entries = self.entries.iter().skip(skip).take(*limit as usize);
                let entries = entries.take_while(|entry| {
                    let fits = room > 0;
                    room = room.saturating_sub(entry.len());
                    fits
                });
                View::Entries(first, entries.cloned().collect())
            }
        }
    }

    /// Its bytes, for a replica that joins.
    #[must_use]
    pub fn snapshot(&self) -> Bytes {
        // It has no types that cannot be written.
        postcard::to_allocvec(self).unwrap_or_default().into()
    }

    /// Reads the bytes of a snapshot.
    #[must_use]
    pub fn from_snapshot(bytes: &[u8]) -> Option<Store> {
        postcard::from_bytes(bytes).ok()
    }
}

/// An answer with entries ends with the one that reaches this length.
const MAX_VIEW_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn put(client: u64, sequence: u64, value: &'static str) -> Request {
        let command = Command::Put { key: "k".into(), value: value.into() };
        Request { client, sequence, command }
    }

    fn append(client: u64, sequence: u64) -> Request {
        Request { client, sequence, command: Command::Append { entry: "e".into() } }
    }

    #[test]
    fn a_command_that_is_sent_again_is_applied_once() {
        let mut store = Store::default();
        assert_eq!(store.apply(Lsn(1), &append(1, 1)), Outcome::Appended(0));
        assert_eq!(store.apply(Lsn(2), &append(2, 1)), Outcome::Appended(1));
        assert_eq!(store.apply(Lsn(3), &append(1, 1)), Outcome::Appended(0));
        assert_eq!(store.apply(Lsn(4), &append(1, 2)), Outcome::Appended(2));
        assert_eq!(store.apply(Lsn(5), &append(1, 1)), Outcome::Superseded);
        // A snapshot has the results, too.
        let mut copy = Store::from_snapshot(&store.snapshot()).unwrap();
        assert_eq!(copy, store);
        assert_eq!(copy.apply(Lsn(6), &append(1, 2)), Outcome::Appended(2));
        assert_eq!(copy.view(&Query::Entries(1, 9)), View::Entries(1, vec!["e".into(); 2]));
    }

    #[test]
    fn a_key_is_swapped_only_if_it_has_what_was_expected() {
        let mut store = Store::default();
        store.apply(Lsn(1), &put(1, 1, "a"));
        let swap = |sequence, expected: Option<&'static str>, new: Option<&'static str>| Request {
            client: 1,
            sequence,
            command: Command::CompareAndSwap {
                key: "k".into(),
                expected: expected.map(Into::into),
                new: new.map(Into::into),
            },
        };
        let had = |value: &'static str| Outcome::Compared(Some(value.into()));
        assert_eq!(store.apply(Lsn(2), &swap(2, None, Some("b"))), had("a"));
        assert_eq!(store.apply(Lsn(3), &swap(3, Some("a"), Some("c"))), had("a"));
        assert_eq!(store.apply(Lsn(4), &swap(4, Some("c"), None)), had("c"));
        assert_eq!(store.view(&Query::Get("k".into())), View::Value(None));
    }

    #[test]
    fn the_longest_command_fits_into_a_record() {
        let value = Bytes::from(vec![1; MAX_VALUE_BYTES]);
        let key = Bytes::from(vec![1; MAX_KEY_BYTES]);
        let command =
            Command::CompareAndSwap { key, expected: Some(value.clone()), new: Some(value) };
        assert_eq!(command.check(), Ok(()));
        let request = Request { client: u64::MAX, sequence: u64::MAX, command };
        assert!(request.encode().len() <= MAX_PAYLOAD_BYTES);
        assert_eq!(Request::decode(&request.encode()), Some(request));
        let entry = Bytes::from(vec![1; MAX_VALUE_BYTES + 1]);
        assert!(Command::Append { entry }.check().is_err());
    }
}
