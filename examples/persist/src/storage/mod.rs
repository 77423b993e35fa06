//! What a log needs of the storage below it: files in one directory, by name.
//!
//! [`Directory`] is the real one. [`sim::SimDisk`] is a simulated disk that forgets, tears and fails as real ones do, for tests of programs
//! that must survive that.

mod directory;
pub mod sim;

use std::io;
use std::sync::Arc;

pub use self::directory::Directory;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    Write,
    /// For reading and writing; it is made if it does not exist.
    Create,
}

/// The files of one directory.
///
/// A name is durable only after [`sync_names`](Self::sync_names), and contents only after [`File::sync`].
pub trait Storage: Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// What the system says, [`io::ErrorKind::NotFound`] among others.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, in one step. A file that had the name before is removed.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all files, in any order.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all changes of names durable.
    ///
    /// # Errors
    ///
    /// What the system says. Changes may be lost then.
    fn sync_names(&self) -> io::Result<()>;

    /// Keeps other processes, and other logs of this one, from using the directory until the lock is dropped or the process ends.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if another has it, with a text that says who.
    fn lock(&self) -> io::Result<Lock>;

    /// Where this is, for messages.
    fn describe(&self) -> String;
}

/// Keeps others out of a [`Storage`] until it is dropped.
pub struct Lock(#[expect(dead_code, reason = "dropping it is its use")] Box<dyn Send + Sync>);

impl Lock {
    /// A lock that lasts until `guard` is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads from `offset` on until `into` is full or the file ends. Returns how many bytes were read.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    ///
    /// What the system says. Any part may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the file at least `length` bytes long, with room on the disk for all of them. New bytes are zeros.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::StorageFull`] if there is no room.
    fn preallocate(&self, length: u64) -> io::Result<()>;

    /// Makes contents and length durable (`fdatasync`).
    ///
    /// # Errors
    ///
    /// What the system says. What was written since the last sync may be lost, **and a later sync does not tell**.
    fn sync(&self) -> io::Result<()>;
}
