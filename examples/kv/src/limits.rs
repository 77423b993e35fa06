//! Size limits of a key, a value and a page of a scan.

use farcall::Shape;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest key. Keys are any byte string of at least one byte.
pub const MAX_KEY_BYTES: usize = 16 << 20;

/// The longest value. Values are any byte string of at least one byte.
pub const MAX_VALUE_BYTES: usize = 16 << 20;

/// The largest page of a scan, unless its first entry alone is larger. It bounds what a server thread
/// copies for one answer, so that a scan delays the thread's other clients no longer than a large `put`
/// would.
pub const PAGE_BYTES: usize = 1 << 20;

/// The most entries of a page. It bounds how long the shards are locked.
pub const PAGE_ENTRIES: u32 = 1024;

/// The longest message of the service: a `put` of the longest key and value, or a page of one
/// such entry, and room for framing.
pub const MAX_MESSAGE_BYTES: u64 = (MAX_KEY_BYTES + MAX_VALUE_BYTES + (64 << 10)) as u64;

/// Why the store refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize, Shape)]
#[non_exhaustive]
pub enum KvError {
    /// The key is empty.
    #[error("the key is empty; a key has 1 byte to 16 MiB")]
    EmptyKey,
    /// The value is empty.
    #[error("the value is empty; a value has 1 byte to 16 MiB (to forget a key, delete it)")]
    EmptyValue,
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("the key has {len} bytes; a key has 1 byte to {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Its length.
        len: u64,
    },
    /// The value is longer than [`MAX_VALUE_BYTES`].
    #[error("the value has {len} bytes; a value has 1 byte to {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// Its length.
        len: u64,
    },
    /// The entry would exceed the store's memory limit.
    #[error(
        "the store is full: {limit} bytes of keys and values; delete some, or serve with a larger --memory-limit"
    )]
    Full {
        /// The limit in bytes.
        limit: u64,
    },
}

/// Checks a key's length.
///
/// # Errors
/// [`KvError::EmptyKey`] or [`KvError::KeyTooLong`].
pub fn check_key(key: &[u8]) -> Result<(), KvError> {
    match key.len() {
        0 => Err(KvError::EmptyKey),
        1..=MAX_KEY_BYTES => Ok(()),
        len => Err(KvError::KeyTooLong { len: len as u64 }),
    }
}

/// Checks a value's length.
///
/// # Errors
/// [`KvError::EmptyValue`] or [`KvError::ValueTooLong`].
pub fn check_value(value: &[u8]) -> Result<(), KvError> {
    match value.len() {
        0 => Err(KvError::EmptyValue),
        1..=MAX_VALUE_BYTES => Ok(()),
        len => Err(KvError::ValueTooLong { len: len as u64 }),
    }
}
