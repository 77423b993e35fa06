//! The store: an ordered map of byte strings, shared by the server's threads.
//!
//! Keys are distributed over shards by their hash, so that threads rarely contend for a lock, however
//! skewed the keys are. Each shard is ordered, and a scan merges them. Values are [`Bytes`]: a read
//! takes a reference and releases the lock before anything is copied. No lock is held while a value is
//! copied in, encoded, or freed.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use foldhash::fast::FixedState;

use crate::limits::{KvError, PAGE_BYTES, PAGE_ENTRIES, check_key, check_value};

/// Enough that a few server threads rarely wait for each other, few enough that a scan's merge is
/// cheap.
const SHARDS: usize = 16;

type Map = BTreeMap<Bytes, Bytes>;

/// One shard in its own cache lines, so that readers of its lock do not slow down others.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    map: RwLock<Map>,
}

impl Shard {
    // Only an allocation can panic inside a map operation, which leaves the map intact, so poisoning is
    // ignored.
    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A concurrent, ordered map from byte strings to byte strings.
pub struct Store {
    shards: [Shard; SHARDS],
    hasher: FixedState,
    /// Bytes of the keys and values that are held or being added.
    weight: AtomicU64,
    weight_limit: u64,
}

/// Some entries of a scan, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// The keys and values.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Whether entries follow the last of these.
    pub more: bool,
}

/// The size of a store's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The number of keys.
    pub keys: u64,
    /// Bytes of all keys and values together.
    pub bytes: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// An empty store without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// An empty store whose keys and values may have `limit` bytes together.
    #[must_use]
    pub fn with_limit(limit: u64) -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            hasher: FixedState::default(),
            weight: AtomicU64::new(0),
            weight_limit: limit,
        }
    }

    fn shard(&self, key: &[u8]) -> &Shard {
        // The upper bits are the best mixed. The map does not hash, so there is no conflict.
        let hash = self.hasher.hash_one(key);
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// If the key is empty or too long.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        check_key(key)?;
        Ok(self.shard(key).read().get(key).cloned())
    }

    /// Sets the value of `key`. Returns whether it had one.
    ///
    /// # Errors
    /// If the key or value is empty or too long, or the store is full.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, KvError> {
        check_key(key)?;
        check_value(value)?;
        let value = Bytes::copy_from_slice(value);
        let shard = self.shard(key);

        let mut map = shard.write();
        if let Some(held) = map.get_mut(key) {
            self.reweigh(held.len(), value.len())?;
            let old = std::mem::replace(held, value);
            drop(map);
            drop(old); // Freed outside the lock.
            return Ok(true);
        }
        drop(map);

        // The key seems to be new: copy it outside the lock too, as it may be 16 MiB.
        let weight = key.len() + value.len();
        self.reweigh(0, weight)?;
        let owned = Bytes::copy_from_slice(key);
        let old = shard.write().insert(owned, value);
        let Some(old) = old else { return Ok(false) };
        // Another thread inserted it first: the map kept its key and dropped ours.
        self.reweigh(old.len() + key.len(), 0)?;
        Ok(true)
    }

    /// Deletes `key`. Returns whether it had a value.
    ///
    /// # Errors
    /// If the key is empty or too long.
    pub fn del(&self, key: &[u8]) -> Result<bool, KvError> {
        check_key(key)?;
        let removed = self.shard(key).write().remove_entry(key);
        if let Some((key, value)) = &removed {
            self.reweigh(key.len() + value.len(), 0)?;
        }
        Ok(removed.is_some())
    }

    /// The entries from `from` on (without `from` itself if `after`), in key order: at most `limit` of them
    /// and at most a page ([`PAGE_BYTES`], [`PAGE_ENTRIES`]), but at least one if there is one.
    ///
    /// A page is a consistent snapshot of the store.
    #[must_use]
    pub fn scan(&self, from: &[u8], after: bool, limit: u32) -> Entries {
        let limit = limit.clamp(1, PAGE_ENTRIES) as usize;
        let start = if after { Bound::Excluded(from) } else { Bound::Included(from) };
        // Shards are always locked in the same order, and writers lock one at a time: no deadlock.
        let guards: Vec<_> = self.shards.iter().map(Shard::read).collect();
        let mut cursors: Vec<Cursor<'_>> =
            guards.iter().filter_map(|map| Cursor::start(map, start)).collect();

        let mut page = Entries::default();
        let mut page_bytes = 0;
        // The merge compares the shards' first keys: SHARDS comparisons per entry, which is cheaper at this
        // width than a heap.
        while let Some(least) = (0..cursors.len()).min_by_key(|&i| cursors[i].key) {
            let cursor = &mut cursors[least];
            page_bytes += cursor.key.len() + cursor.value.len();
            let page_is_full = page_bytes > PAGE_BYTES && !page.entries.is_empty();
            if page.entries.len() == limit || page_is_full {
                page.more = true;
                break;
            }
            page.entries.push((cursor.key.clone(), cursor.value.clone()));
            if !cursor.advance() {
                cursors.swap_remove(least);
            }
        }
        page
    }

    /// The size of the store's content.
    #[must_use]
    pub fn size(&self) -> Size {
        let keys = self.shards.iter().map(|shard| shard.read().len() as u64).sum();
        Size { keys, bytes: self.weight.load(Ordering::Relaxed) }
    }

    /// Accounts for replacing `removed` bytes by `added`. Only growth can fail.
    fn reweigh(&self, removed: usize, added: usize) -> Result<(), KvError> {
        if added <= removed {
            self.weight.fetch_sub((removed - added) as u64, Ordering::Relaxed);
            return Ok(());
        }
        let growth = (added - removed) as u64;
        let before = self.weight.fetch_add(growth, Ordering::Relaxed);
        if before.saturating_add(growth) > self.weight_limit {
            self.weight.fetch_sub(growth, Ordering::Relaxed);
            return Err(KvError::Full { limit: self.weight_limit });
        }
        Ok(())
    }
}

/// The position in one shard.
struct Cursor<'a> {
    key: &'a Bytes,
    value: &'a Bytes,
    rest: Range<'a, Bytes, Bytes>,
}

impl<'a> Cursor<'a> {
    fn start(map: &'a Map, start: Bound<&[u8]>) -> Option<Self> {
        let mut rest = map.range::<[u8], _>((start, Bound::Unbounded));
        let (key, value) = rest.next()?;
        Some(Self { key, value, rest })
    }

    fn advance(&mut self) -> bool {
        let Some((key, value)) = self.rest.next() else { return false };
        self.key = key;
        self.value = value;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Put(Vec<u8>, Vec<u8>),
        Get(Vec<u8>),
        Del(Vec<u8>),
        Scan(Vec<u8>, bool, u32),
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Few letters and short keys, so that operations affect the same keys.
        prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', 0xff]), 1..4)
    }

    fn op() -> impl Strategy<Value = Op> {
        let value = prop::collection::vec(any::<u8>(), 1..8);
        prop_oneof![
            4 => (key(), value).prop_map(|(k, v)| Op::Put(k, v)),
            2 => key().prop_map(Op::Get),
            2 => key().prop_map(Op::Del),
            1 => (key(), any::<bool>(), 1u32..20).prop_map(|(k, a, n)| Op::Scan(k, a, n)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_an_ordered_map(ops in prop::collection::vec(op(), 0..200)) {
            let store = Store::new();
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Put(k, v) => {
                        let held = store.put(&k, &v).unwrap();
                        prop_assert_eq!(held, model.insert(k, v).is_some());
                    }
                    Op::Get(k) => {
                        let got = store.get(&k).unwrap();
                        prop_assert_eq!(got.as_deref(), model.get(&k).map(Vec::as_slice));
                    }
                    Op::Del(k) => {
                        prop_assert_eq!(store.del(&k).unwrap(), model.remove(&k).is_some());
                    }
                    Op::Scan(from, after, limit) => {
                        let page = store.scan(&from, after, limit);
                        let mut expected = model
                            .iter()
                            .filter(|(k, _)| if after { **k > from } else { **k >= from });
                        for (k, v) in &page.entries {
                            let (ek, ev) = expected.next().unwrap();
                            prop_assert_eq!((&k[..], &v[..]), (&ek[..], &ev[..]));
                        }
                        prop_assert_eq!(page.more, expected.next().is_some());
                        prop_assert!(page.entries.len() == limit as usize || !page.more);
                    }
                }
            }
            let bytes: usize = model.iter().map(|(k, v)| k.len() + v.len()).sum();
            prop_assert_eq!(store.size(), Size { keys: model.len() as u64, bytes: bytes as u64 });
        }
    }

    #[test]
    fn a_page_is_bounded_by_bytes_but_never_empty() {
        let store = Store::new();
        store.put(b"a", &vec![1; 3 * PAGE_BYTES]).unwrap();
        store.put(b"b", &vec![2; PAGE_BYTES / 2]).unwrap();
        store.put(b"c", &vec![3; PAGE_BYTES / 2 - 2]).unwrap();
        store.put(b"d", b"4").unwrap();

        let first = store.scan(b"", false, u32::MAX);
        assert_eq!(first.entries.len(), 1);
        assert!(first.more);
        let second = store.scan(b"a", true, u32::MAX);
        assert_eq!(second.entries.len(), 2);
        assert!(second.more);
        let third = store.scan(b"c", true, u32::MAX);
        assert_eq!(third.entries.len(), 1);
        assert!(!third.more);
    }

    #[test]
    fn a_page_is_bounded_by_entries() {
        let store = Store::new();
        for i in 0..2 * PAGE_ENTRIES {
            store.put(&i.to_be_bytes(), b"v").unwrap();
        }
        let page = store.scan(b"", false, u32::MAX);
        assert_eq!(page.entries.len(), PAGE_ENTRIES as usize);
        assert!(page.more);
    }

    #[test]
    fn empty_and_oversized_keys_and_values_are_refused() {
        use crate::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
        let store = Store::new();
        assert_eq!(store.get(b""), Err(KvError::EmptyKey));
        assert_eq!(store.put(b"k", b""), Err(KvError::EmptyValue));
        let long = vec![0; MAX_KEY_BYTES + 1];
        assert_eq!(store.del(&long), Err(KvError::KeyTooLong { len: long.len() as u64 }));
        let long = vec![0; MAX_VALUE_BYTES + 1];
        assert_eq!(store.put(b"k", &long), Err(KvError::ValueTooLong { len: long.len() as u64 }));
        assert!(!store.put(&long[..MAX_KEY_BYTES], &long[..MAX_VALUE_BYTES]).unwrap());
    }

    #[test]
    fn a_full_store_refuses_writes_and_keeps_its_content() {
        let store = Store::with_limit(10);
        store.put(b"k", b"12345").unwrap();
        assert_eq!(store.put(b"l", b"12345"), Err(KvError::Full { limit: 10 }));
        assert_eq!(store.put(b"l", b"1234"), Err(KvError::Full { limit: 10 }));
        assert_eq!(store.size(), Size { keys: 1, bytes: 6 });
        store.put(b"l", b"123").unwrap();
        store.put(b"k", b"54321").unwrap();
        assert!(store.del(b"k").unwrap());
        assert_eq!(store.size(), Size { keys: 1, bytes: 4 });
    }

    #[test]
    fn concurrent_threads_lose_nothing_and_the_size_is_right() {
        let store = Store::new();
        std::thread::scope(|scope| {
            for writer in 0..4u32 {
                let store = &store;
                scope.spawn(move || {
                    for i in 0..500u32 {
                        store
                            .put(
                                &[b"own", &writer.to_be_bytes()[..], &i.to_be_bytes()].concat(),
                                b"v",
                            )
                            .unwrap();
                        store
                            .put(&(i % 7).to_be_bytes(), &vec![b's'; (i % 50) as usize + 1])
                            .unwrap();
                        if i % 3 == 0 {
                            store.del(&(i % 7).to_be_bytes()).unwrap();
                        }
                    }
                });
            }
        });
        let mut from = Vec::new();
        let mut keys = 0;
        let mut bytes = 0;
        loop {
            let page = store.scan(&from, true, u32::MAX);
            keys += page.entries.len() as u64;
            bytes += page.entries.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum::<u64>();
            if !page.more {
                break;
            }
            from = page.entries.last().unwrap().0.to_vec();
        }
        assert!(keys >= 2000);
        assert_eq!(store.size(), Size { keys, bytes });
    }
}
