//! What a handler answers, and a client must make use of.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use farcall_core::shape::{Node, Shape};
use farcall_transports::remote_memory::Remote;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::transfer::{BulkClient, Transfer};

/// Where data lie that the caller is to read, and a value about them, which only [`read`](Self::read) gives out.
///
/// A handler makes it with [`Bulk::offer`](super::Bulk::offer). If it is dropped, the memory is lent until its lease ends.
#[derive(Serialize, Deserialize)]
#[must_use = "the data are read by `read`"]
pub struct Download<T> {
    pub(super) parts: Vec<Remote>,
    pub(super) value: T,
}

/// Where the caller is to put data. Its value is made of them at the server, and only [`write`](Self::write) gives it out.
///
/// A handler makes it with [`Bulk::accept`](super::Bulk::accept). If it is dropped, the memory is lent until its lease ends.
#[derive(Serialize, Deserialize)]
#[must_use = "the data are put by `write`"]
pub struct Upload<T> {
    pub(super) parts: Vec<Remote>,
    #[serde(skip)]
    pub(super) value: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> Download<T> {
    /// The bytes of each part.
    pub fn lens(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().map(Remote::len)
    }

    /// Reads all parts, tells the server that they are read, and gives the value and the bytes of each part.
    ///
    /// # Errors
    /// When it has ended: [`BulkError`](super::BulkError).
    pub fn read(self, with: &BulkClient) -> Transfer<(T, Vec<Bytes>)> {
        let Download { parts, value } = self;
        Transfer::reading(with, &parts, move |bytes| (value, bytes))
    }

    /// Reads nothing, tells the server so, and gives the value.
    ///
    /// # Errors
    /// When it has ended: [`BulkError`](super::BulkError).
    pub fn skip(self, with: &BulkClient) -> Transfer<T> {
        let Download { parts, value } = self;
        Transfer::skipping(with, &parts, move || value)
    }
}

impl<T: DeserializeOwned + Send + 'static> Upload<T> {
    /// The bytes of each part.
    pub fn lens(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().map(Remote::len)
    }

    /// Writes each part, tells the server that they are there, and gives the value that it makes of them.
    ///
    /// # Errors
    /// When it has ended: [`BulkError`](super::BulkError).
    pub fn write<B: Into<Bytes>>(
        self,
        with: &BulkClient,
        parts: impl IntoIterator<Item = B>,
    ) -> Transfer<T> {
        let bytes = parts.into_iter().map(Into::into).collect();
        Transfer::writing(with, &self.parts, bytes)
    }

    /// Writes nothing, and tells the server so. There is no value then.
    ///
    /// # Errors
    /// When it has ended: [`BulkError`](super::BulkError).
    pub fn skip(self, with: &BulkClient) -> Transfer<()> {
        Transfer::skipping(with, &self.parts, || ())
    }
}

impl<T: Shape> Shape for Download<T> {
    const SHAPE: &'static Node = <(Vec<Remote>, T)>::SHAPE;
}

impl<T: Shape> Shape for Upload<T> {
    const SHAPE: &'static Node = <(Vec<Remote>, T)>::SHAPE;
}

impl<T> fmt::Debug for Download<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download").field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Upload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("parts", &self.parts).finish_non_exhaustive()
    }
}
