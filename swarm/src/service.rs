//! The server under test: the key-value store's service with a write-ahead log in persistent memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use farcall_kv::limits::KvError;
use farcall_kv::service::{Kv, StoreService};
use farcall_kv::store::Store;
use farcall_verbs::sim::Node;
use farcall_verbs::{Access, VerbsError};

use crate::log::{Acknowledge, Entry, Log};
use crate::value;

/// Room for all writes of a run: some 300 values, most of them short.
const LOG_BYTES: usize = 2 << 20;

/// How often each value was put; must be at most once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executions(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Executions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often this value was put.
    pub(crate) fn of(&self, value: u64) -> u32 {
        self.lock().get(&value).copied().unwrap_or(0)
    }

    /// A value that was put more than once.
    pub(crate) fn repeated(&self) -> Option<(u64, u32)> {
        self.lock().iter().find(|(_, times)| **times > 1).map(|(value, times)| (*value, *times))
    }
}

/// A store that acknowledges only durable writes.
pub(crate) struct DurableKv {
    store: StoreService,
    log: Mutex<Log>,
    executions: Executions,
}

impl DurableKv {
    /// Recovers the store of a node.
    pub(crate) fn recover(
        node: &Node,
        acknowledge: Acknowledge,
        executions: &Executions,
    ) -> Result<DurableKv, VerbsError> {
        let pd = node.device().alloc_pd()?;
        let region = pd.open_persistent("kv", LOG_BYTES, Access::empty())?;
        let (log, entries) = Log::recover(region, acknowledge);
        let store = Store::new();
        for Entry { key, value } in entries {
            let done = match value {
                Some(value) => store.put(&key, &value),
                None => store.del(&key),
            };
            debug_assert!(done.is_ok(), "it was there before");
        }
        let store = StoreService::new(Arc::new(store));
        Ok(DurableKv { store, log: Mutex::new(log), executions: executions.clone() })
    }

    fn append(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), KvError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.append(key, value).map_err(|_| KvError::Full { limit: LOG_BYTES as u64 })
    }
}

impl Kv for DurableKv {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.store.get(key)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, KvError> {
        if let Some(number) = value::number(value) {
            *self.executions.lock().entry(number).or_default() += 1;
        }
        self.append(key, Some(value))?;
        self.store.put(key, value)
    }

    fn del(&self, key: &[u8]) -> Result<bool, KvError> {
        self.append(key, None)?;
        self.store.del(key)
    }

    fn scan(&self, from: &[u8], after: bool, limit: u32) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        self.store.scan(from, after, limit)
    }
}
