//! The accounts of connections, and those that the connections of an identity share.

use super::bucket::Bucket;
use super::limits::{ClientQuota, Rates};
use crate::identity::Identity;
use crate::time::Instant;
use foldhash::{HashMap, HashMapExt};
use std::sync::{Arc, Mutex, PoisonError};

/// What one client has left of its quota.
#[derive(Debug, Default)]
struct Buckets {
    calls: Bucket,
    cpu: Bucket,
}

impl Buckets {
    /// They are as good as new ones.
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
    accounts: HashMap<Identity, Arc<Buckets>>,
    /// With so many, those that are not needed are dropped first.
    most: usize,
}

/// As many identities as a server with few clients may remember needlessly.
const FEW: usize = 1024;

impl AccountsOfIdentities {
    fn of(&mut self, identity: &Identity, now: Instant) -> Arc<Buckets> {
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

    fn of(&self, identity: &Identity, now: Instant) -> Arc<Buckets> {
        self.of_identities.lock().unwrap_or_else(PoisonError::into_inner).of(identity, now)
    }

    /// Identities that it remembers.
    #[cfg(test)]
    pub(super) fn identities(&self) -> usize {
        self.of_identities.lock().unwrap_or_else(PoisonError::into_inner).accounts.len()
    }
}

/// The account of one connection.
#[derive(Debug, Default)]
pub(in crate::server) struct Account {
    own: Buckets,
    /// Those of its identity, if it has one.
    shared: Option<Arc<Buckets>>,
}

impl Account {
    #[inline]
    fn buckets(&self) -> &Buckets {
        self.shared.as_deref().unwrap_or(&self.own)
    }
}

/// The rules of the accounts of one thread's clients.
pub(in crate::server) struct Accounts {
    shared: Arc<SharedAccounts>,
    /// The transport with calls of other threads, which have counted them.
    counted_elsewhere: Option<u32>,
}

impl Accounts {
    pub(in crate::server) fn new(shared: Arc<SharedAccounts>) -> Accounts {
        Accounts { shared, counted_elsewhere: None }
    }

    /// Calls of this transport count on the threads that gave them to this one.
    pub(in crate::server) fn counted_elsewhere(mut self, transport: Option<u32>) -> Accounts {
        self.counted_elsewhere = transport;
        self
    }

    /// Whether calls of this transport count on this thread.
    #[inline]
    pub(in crate::server) fn count(&self, transport: u32) -> bool {
        self.counted_elsewhere != Some(transport)
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

    /// The account of a new connection of this identity.
    pub(in crate::server) fn open(&self, identity: Option<&Identity>, now: Instant) -> Account {
        let shared = identity.map(|identity| self.shared.of(identity, now));
        Account { own: Buckets::default(), shared }
    }

    /// A call is made. `false`: its client is over its quota.
    #[inline]
    pub(in crate::server) fn admit(&self, account: &Account, now: Instant) -> bool {
        let Rates { calls, cpu } = self.shared.rates;
        let buckets = account.buckets();
        (cpu.is_none() || buckets.cpu.has_some(now))
            && calls.is_none_or(|rate| buckets.calls.take(rate.nanos(1), now))
    }

    /// The thread was busy with a call for so long.
    #[inline]
    pub(in crate::server) fn charge(&self, account: &Account, nanos: u64, now: Instant) {
        if let Some(rate) = self.shared.rates.cpu {
            account.buckets().cpu.owe(rate.nanos(nanos), now);
        }
    }
}
