//! The service: the operations on a store.

use std::sync::Arc;

use bytes::Bytes;

use crate::limits::KvError;
use crate::store::Store;

/// An ordered store of byte strings.
///
/// Each key is a linearizable register: once a `put` or `del` has been answered, later requests see it
/// or something newer.
#[farcall::service]
pub trait Kv {
    /// The value of `key`, if it has one.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// Sets the value of `key`. Returns whether it had one.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, KvError>;

    /// Deletes `key`. Returns whether it had a value.
    fn del(&self, key: &[u8]) -> Result<bool, KvError>;

    /// Entries in key order, from `from` on (without `from` itself if `after`): at most `limit`, and at
    /// most a page (see [`crate::limits`]). An empty result means that there are no more.
    fn scan(&self, from: &[u8], after: bool, limit: u32) -> Result<Vec<(Bytes, Bytes)>, KvError>;
}

/// Serves a [`Store`].
#[derive(Clone)]
pub struct StoreService {
    store: Arc<Store>,
}

impl StoreService {
    /// Serves `store`, which the caller may also use directly.
    #[must_use]
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }
}

impl Kv for StoreService {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.store.get(key)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, KvError> {
        self.store.put(key, value)
    }

    fn del(&self, key: &[u8]) -> Result<bool, KvError> {
        self.store.del(key)
    }

    fn scan(&self, from: &[u8], after: bool, limit: u32) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        Ok(self.store.scan(from, after, limit).entries)
    }
}
