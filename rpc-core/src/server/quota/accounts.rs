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

impl Account {
    /// It is as good as a new one.
    fn is_full(&self, now: Instant) -> bool {
        self.calls.is_full(now) && self.cpu.is_full(now)
    }
}

/// The accounts of identities, for all threads of a server.
#[derive(Debug)]
pub(in crate::server) struct SharedAccounts {
    rates: Rates,
    /// Taken when a client connects.
    of_identities: Mutex<AccountsOfIdentities>,
}

/// Those of identities that have connections, or have used of their quota lately.
#[derive(Debug)]
struct AccountsOfIdentities {
    accounts: HashMap<Identity, Arc<Account>>,
    /// With so many, those that are not needed are dropped first.
    most: usize,
}

/// As many identities as a server with few clients may remember needlessly.
const FEW: usize = 1024;

impl AccountsOfIdentities {
    fn of(&mut self, identity: &Identity, now: Instant) -> Arc<Account> {
        if let Some(account) = self.accounts.get(identity) {
            return Arc::clone(account);
        }
        if self.accounts.len() >= self.most {
            self.accounts.retain(|_, it| Arc::strong_count(it) > 1 || !it.is_full(now));
            // So that each drop looks at no more accounts than were added since the last.
            self.most = FEW.max(2 * self.accounts.len());
        }
        Arc::clone(self.accounts.entry(identity.clone()).or_default())
    }
}

impl SharedAccounts {
    /// Those of a server with this quota; `None` if it limits neither calls nor CPU time.
    pub(in crate::server) fn new(quota: &ClientQuota) -> Option<Arc<SharedAccounts>> {
        let rates = quota.rates()?;
        let accounts = AccountsOfIdentities { accounts: HashMap::new(), most: FEW };
        Some(Arc::new(SharedAccounts { rates, of_identities: Mutex::new(accounts) }))
    }

    fn of(&self, identity: &Identity, now: Instant) -> Arc<Account> {
        self.of_identities.lock().unwrap_or_else(PoisonError::into_inner).of(identity, now)
    }

    /// Identities that it remembers.
    #[cfg(test)]
    pub(super) fn identities(&self) -> usize {
        self.of_identities.lock().unwrap_or_else(PoisonError::into_inner).accounts.len()
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
    /// By the number of the transport, and the index of the client.
    of_transports: Vec<Vec<Entry>>,
    /// The transport with calls of other threads, which have counted them.
    counted_elsewhere: Option<u32>,
}

impl Accounts {
    pub(in crate::server) fn new(shared: Arc<SharedAccounts>) -> Accounts {
        Accounts { shared, of_transports: Vec::new(), counted_elsewhere: None }
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
    pub(in crate::server) fn may_give_away(&self, identity: Option<&Identity>) -> bool {
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
    pub(in crate::server) fn identify(
        &mut self,
        client: Client,
        identity: Option<&Identity>,
        now: Instant,
    ) {
        let account = identity.map(|identity| self.shared.of(identity, now));
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
