//! Files of a directory of the operating system.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use super::{Access, File, Lock, Storage};

/// The file that is locked.
const LOCK_NAME: &str = "lock";

/// Zeros are written in pieces of this size.
const ZEROS_BYTES: usize = 1 << 20;

/// A directory of the operating system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The directory at `path`, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if !path.is_dir() {
            fs::create_dir_all(&path)?;
            if let Some(parent) = path.parent().filter(|parent| parent.is_dir()) {
                fs::File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self { path })
    }

    /// The directory at `path`, which must exist.
    ///
    /// # Errors
    ///
    /// What the system says, if it is no directory.
    pub fn existing(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::read_dir(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Storage for Directory {
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(access != Access::Read).create(access == Access::Create);
        Ok(Arc::new(OpenFile(options.open(self.path.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        // Names that are no UTF-8 are not ours.
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn lock(&self) -> io::Result<Lock> {
        let path = self.path.join(LOCK_NAME);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let text = format!("{} is in use by process {holder}", self.path.display());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
            }
            Err(other) => return Err(other.into()),
        }
        // Only for the message above: a disk that is full may fail this.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Lock::new(file))
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

struct OpenFile(fs::File);

impl File for OpenFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    /// Writes zeros, rather than only reserving blocks: the first sync of a block that was only reserved has to write the file
    /// system's journal, too.
    fn preallocate(&self, length: u64) -> io::Result<()> {
        let now = self.0.metadata()?.len();
        if now >= length {
            return Ok(());
        }
        match fallocate(&self.0, FallocateFlags::empty(), now, length - now) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(other) => return Err(other.into()),
        }
        let zeros = vec![0; ZEROS_BYTES.min(usize::try_from(length - now).unwrap_or(ZEROS_BYTES))];
        let mut at = now;
        while at < length {
            let len = zeros.len().min(usize::try_from(length - at).unwrap_or(zeros.len()));
            self.0.write_all_at(&zeros[..len], at)?;
            at += len as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
