//! The accounts of one server thread's clients, and those that threads share.

use super::bucket::Bucket;
use super::limits::{ClientQuota, Rates};
use crate::identity::Identity;
use crate::time::Instant;
use crate::transport::CallToken;
use foldhash::{HashMap, HashMapExt};
use std::sync::{Arc, Mutex, PoisonError};

/// What one client has used of its quota.
#[derive(Debug, Default)]
struct Account {
    calls: Bucket,
    cpu: Bucket,
}

/// The accounts of identities, for all threads of a server. There are no more than the process has identities, which are bounded.
#[derive(Debug)]
pub(in crate::server) struct SharedAccounts {
    rates: Rates,
    /// Taken when a thread meets an identity for the first time.
    of_identities: Mutex<HashMap<Identity, Arc<Account>>>,
}

impl SharedAccounts {
    /// Those of a server with this quota; `None` if it limits neither calls nor CPU time.
    pub(in crate::server) fn new(quota: &ClientQuota) -> Option<Arc<SharedAccounts>> {
        let rates = quota.rates()?;
        Some(Arc::new(SharedAccounts { rates, of_identities: Mutex::new(HashMap::new()) }))
    }

    fn of(&self, identity: Identity) -> Arc<Account> {
        let mut accounts = self.of_identities.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(accounts.entry(identity).or_default())
    }
}

/// A client of a thread: the number of its transport, its index there, and which connection of that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Client {
    pub(in crate::server) transport: u32,
    pub(in crate::server) index: u32,
    pub(in crate::server) generation: u32,
}

impl Client {
    /// That of a call over this transport.
    #[inline]
    pub(in crate::server) fn of(transport: u32, call: &CallToken) -> Client {
        Client { transport, index: call.client(), generation: call.client_generation() }
    }
}

/// The account of a client. One that takes the index over has another generation.
#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    /// That of the connection.
    own: Account,
    /// That of its identity, if it has one.
    shared: Option<Arc<Account>>,
}

/// The accounts of one thread's clients.
pub(in crate::server) struct Accounts {
    shared: Arc<SharedAccounts>,
    /// The identities that this thread has met.
    known: HashMap<Identity, Arc<Account>>,
    /// By the number of the transport, and the index of the client.
    of_transports: Vec<Vec<Entry>>,
    /// The transport with calls of other threads, which have counted them.
    counted_elsewhere: Option<u32>,
}

impl Accounts {
    pub(in crate::server) fn new(shared: Arc<SharedAccounts>) -> Accounts {
        let known = HashMap::new();
        Accounts { shared, known, of_transports: Vec::new(), counted_elsewhere: None }
    }

    /// Calls of this transport count on the threads that gave them to this one.
    pub(in crate::server) fn counted_elsewhere(mut self, transport: Option<u32>) -> Accounts {
        self.counted_elsewhere = transport;
        self
    }

    /// CPU time is limited, so it must be measured.
    #[inline]
    pub(in crate::server) fn limits_cpu(&self) -> bool {
        self.shared.rates.cpu.is_some()
    }

    /// Whether another thread may run calls of this client: it must find the client's account.
    pub(in crate::server) fn may_give_away(&self, identity: Option<Identity>) -> bool {
        identity.is_some() || !self.limits_cpu()
    }

    /// A client makes a call. `false`: it is over its quota.
    #[inline]
    pub(in crate::server) fn admit(&mut self, client: Client, now: Instant) -> bool {
        if self.counted_elsewhere == Some(client.transport) {
            return true;
        }
        let Rates { calls, cpu } = self.shared.rates;
        let account = self.account(client);
        (cpu.is_none() || account.cpu.has_some(now))
            && calls.is_none_or(|rate| account.calls.take(rate.nanos(1), now))
    }

    /// The thread was busy with a client's call for so long.
    #[inline]
    pub(in crate::server) fn charge(&mut self, client: Client, nanos: u64, now: Instant) {
        if let Some(rate) = self.shared.rates.cpu {
            self.account(client).cpu.owe(rate.nanos(nanos), now);
        }
    }

    /// That is who this client is.
    pub(in crate::server) fn identify(&mut self, client: Client, identity: Option<Identity>) {
        let Accounts { shared, known, .. } = self;
        let account = identity.map(|identity| {
            Arc::clone(known.entry(identity).or_insert_with(|| shared.of(identity)))
        });
        self.entry(client).shared = account;
    }

    #[inline]
    fn account(&mut self, client: Client) -> &Account {
        let entry = self.entry(client);
        entry.shared.as_deref().unwrap_or(&entry.own)
    }

    /// The client's entry: a new one with its first call.
    #[inline]
    fn entry(&mut self, client: Client) -> &mut Entry {
        let Client { transport, index, generation } = client;
        let (transport, index) = (transport as usize, index as usize);
        if self.of_transports.get(transport).is_none_or(|entries| entries.len() <= index) {
            self.grow(transport, index);
        }
        let entry = &mut self.of_transports[transport][index];
        if entry.generation != generation {
            *entry = Entry { generation, ..Entry::default() };
        }
        entry
    }

    #[cold]
    fn grow(&mut self, transport: usize, index: usize) {
        if self.of_transports.len() <= transport {
            self.of_transports.resize_with(transport + 1, Vec::new);
        }
        self.of_transports[transport].resize_with(index + 1, Entry::default);
    }
}
