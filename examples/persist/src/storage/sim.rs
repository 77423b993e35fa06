//! A simulated disk that forgets, tears and fails as real ones do.
//!
//! What is written is in a cache until a sync. A power cut keeps of each sector of 512 bytes that is not synced the old contents, the
//! newest, or any between. Names have a durability of their own. A sync that fails leaves the cache as it is and **forgets that anything
//! was to be written**, as Linux does: the next sync succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::{Access, File, Lock, Storage};

/// The unit that a disk writes whole or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Nothing,
    Everything,
    /// Any state of each sector, any of the names.
    Any,
}

/// What fails, and when.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The power fails during this operation that changes something, counted from 0.
    pub power_cut_at: Option<u64>,
    /// These syncs fail, counted from 0.
    pub failing_syncs: BTreeSet<u64>,
    /// How many bytes all files together may have.
    pub capacity: Option<u64>,
    /// Syncs of contents do nothing, and say that they succeeded.
    pub ignores_syncs: bool,
    /// Syncs of names do nothing, and say that they succeeded.
    pub ignores_name_syncs: bool,
    /// Nothing can be changed.
    pub read_only: bool,
}

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<World>>);

struct World {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names since the last sync of names.
    changes: Vec<Change>,
    faults: Faults,
    random: SmallRng,
    operations: u64,
    syncs: u64,
    power: bool,
    /// Handles of former boots do not work.
    boot: u64,
    locked: bool,
}

#[derive(Clone)]
enum Change {
    Add { name: String, inode: usize },
    Rename { from: String, to: String },
    Remove { name: String },
}

#[derive(Default)]
struct Inode {
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// Each state that a sector had since the last sync.
    dirty: BTreeMap<usize, Vec<[u8; SECTOR_BYTES]>>,
}

impl SimDisk {
    /// An empty disk. What it forgets is drawn from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(World {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            faults: Faults::default(),
            random: SmallRng::seed_from_u64(seed),
            operations: 0,
            syncs: 0,
            power: true,
            boot: 0,
            locked: false,
        })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what fails from now on. Operations and syncs are counted from 0 again.
    pub fn set_faults(&self, faults: Faults) {
        let mut world = self.world();
        world.faults = faults;
        (world.operations, world.syncs) = (0, 0);
    }

    /// How many operations that change something there were since the faults were set.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.world().operations
    }

    /// How many syncs of contents and names there were since the faults were set.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.world().syncs
    }

    /// Whether the power has failed.
    #[must_use]
    pub fn is_off(&self) -> bool {
        !self.world().power
    }

    /// Cuts the power, if it is not off already, and switches on again. Faults are over.
    pub fn power_cycle(&self) {
        let mut world = self.world();
        let keeps = *[Keeps::Nothing, Keeps::Everything, Keeps::Any, Keeps::Any]
            .choose(&mut world.random)
            .expect("there are four");
        world.lose(keeps);
        world.restart();
    }

    /// Ends the process: the operating system has everything still.
    pub fn kill_process(&self) {
        self.world().restart();
    }

    /// Flips one bit of a file, in the cache and on the disk.
    ///
    /// # Panics
    ///
    /// If there is no such file or byte.
    pub fn flip_bit(&self, name: &str, byte: usize, bit: u8) {
        let mut world = self.world();
        let inode = world.names[name];
        let inode = &mut world.inodes[inode];
        inode.cache[byte] ^= 1 << bit;
        inode.durable[byte] ^= 1 << bit;
    }

    /// The contents of a file, if there is one.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        world.names.get(name).map(|inode| world.inodes[*inode].cache.clone())
    }

    /// Puts a file there, durably.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let mut world = self.world();
        let inode = world.inodes.len();
        let (cache, durable) = (contents.to_vec(), contents.to_vec());
        world.inodes.push(Inode { cache, durable, dirty: BTreeMap::new() });
        world.names.insert(name.to_owned(), inode);
        world.durable_names.insert(name.to_owned(), inode);
    }

    /// Takes a file away, durably.
    pub fn take(&self, name: &str) {
        let mut world = self.world();
        world.names.remove(name);
        world.durable_names.remove(name);
    }
}

impl World {
    /// Counts an operation that changes something. The power may fail during it: it takes effect, but nothing is synced.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        self.check_power()?;
        if self.faults.read_only {
            return Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        }
        if self.faults.power_cut_at == Some(self.operations) {
            self.power = false;
        }
        self.operations += 1;
        let outcome = change(self);
        self.check_power()?;
        outcome
    }

    fn check_power(&self) -> io::Result<()> {
        if self.power { Ok(()) } else { Err(io::Error::other("the power is off")) }
    }

    /// Counts a sync. Returns whether it fails.
    fn sync_fails(&mut self) -> bool {
        let fails = self.faults.failing_syncs.contains(&self.syncs);
        self.syncs += 1;
        fails
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].cache.len() as u64).sum()
    }

    fn grow(&mut self, inode: usize, length: usize) -> io::Result<()> {
        let now = self.inodes[inode].cache.len();
        if length <= now {
            return Ok(());
        }
        let more = (length - now) as u64;
        if self.faults.capacity.is_some_and(|capacity| self.used() + more > capacity) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.inodes[inode].cache.resize(length, 0);
        Ok(())
    }

    fn write(&mut self, inode: usize, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.grow(inode, offset + bytes.len())?;
        self.inodes[inode].write(bytes, offset);
        Ok(())
    }

    fn sync(&mut self, inode: usize) -> io::Result<()> {
        let fails = self.sync_fails();
        if !self.power || self.faults.ignores_syncs {
            return Ok(());
        }
        let dirty = std::mem::take(&mut self.inodes[inode].dirty);
        let length = self.inodes[inode].cache.len();
        self.inodes[inode].durable.resize(length, 0);
        for (sector, states) in dirty {
            if !fails || self.random.random() {
                let last = states.last().expect("a dirty sector has a state");
                self.inodes[inode].put_durable(sector, last);
            }
        }
        if fails { Err(io::Error::other("input/output error")) } else { Ok(()) }
    }

    fn sync_names(&mut self) -> io::Result<()> {
        if self.sync_fails() {
            return Err(io::Error::other("input/output error"));
        }
        if self.power && !self.faults.ignores_name_syncs {
            self.changes.clear();
            self.durable_names = self.names.clone();
        }
        Ok(())
    }

    fn lose(&mut self, keeps: Keeps) {
        let random = &mut self.random;
        for inode in &mut self.inodes {
            inode.lose(keeps, random);
        }
        for change in std::mem::take(&mut self.changes) {
            if keeps == Keeps::Everything || keeps == Keeps::Any && random.random() {
                apply(&mut self.durable_names, change);
            }
        }
        self.names = self.durable_names.clone();
    }

    fn restart(&mut self) {
        self.faults = Faults::default();
        self.power = true;
        self.boot += 1;
        self.locked = false;
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: Change) {
    match change {
        Change::Add { name, inode } => {
            names.insert(name, inode);
        }
        Change::Rename { from, to } => {
            if let Some(inode) = names.remove(&from) {
                names.insert(to, inode);
            }
        }
        Change::Remove { name } => {
            names.remove(&name);
        }
    }
}

impl Inode {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        self.cache[offset..offset + bytes.len()].copy_from_slice(bytes);
        if bytes.is_empty() {
            return;
        }
        for sector in offset / SECTOR_BYTES..=(offset + bytes.len() - 1) / SECTOR_BYTES {
            let mut state = [0; SECTOR_BYTES];
            let at = sector * SECTOR_BYTES;
            let end = (at + SECTOR_BYTES).min(self.cache.len());
            state[..end - at].copy_from_slice(&self.cache[at..end]);
            self.dirty.entry(sector).or_default().push(state);
        }
    }

    fn put_durable(&mut self, sector: usize, state: &[u8; SECTOR_BYTES]) {
        let at = sector * SECTOR_BYTES;
        let end = (at + SECTOR_BYTES).min(self.durable.len());
        if at < end {
            self.durable[at..end].copy_from_slice(&state[..end - at]);
        }
    }

    fn lose(&mut self, keeps: Keeps, random: &mut SmallRng) {
        let dirty = std::mem::take(&mut self.dirty);
        let keeps_length = match keeps {
            Keeps::Nothing => false,
            Keeps::Everything => true,
            Keeps::Any => random.random(),
        };
        if keeps_length {
            self.durable.resize(self.cache.len(), 0);
        }
        for (sector, states) in dirty {
            let state = match keeps {
                Keeps::Nothing => None,
                Keeps::Everything => states.last(),
                Keeps::Any if random.random() => states.choose(random),
                Keeps::Any => None,
            };
            if let Some(state) = state {
                self.put_durable(sector, state);
            }
        }
        self.cache = self.durable.clone();
    }
}

/// A handle of the current boot; as a storage, it is the disk.
#[derive(Clone)]
struct Handle {
    disk: SimDisk,
    boot: u64,
    inode: usize,
}

impl Handle {
    fn world(&self) -> io::Result<MutexGuard<'_, World>> {
        let world = self.disk.world();
        world.check_power()?;
        if world.boot == self.boot { Ok(world) } else { Err(io::Error::other("the process ended")) }
    }
}

impl Storage for SimDisk {
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        let mut world = self.world();
        world.check_power()?;
        let boot = world.boot;
        if let Some(inode) = world.names.get(name).copied() {
            return Ok(Arc::new(Handle { disk: self.clone(), boot, inode }));
        }
        if access != Access::Create {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let inode = world.change(|world| {
            let inode = world.inodes.len();
            world.inodes.push(Inode::default());
            world.names.insert(name.to_owned(), inode);
            world.changes.push(Change::Add { name: name.to_owned(), inode });
            Ok(inode)
        })?;
        Ok(Arc::new(Handle { disk: self.clone(), boot, inode }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.world().change(|world| {
            if !world.names.contains_key(from) {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            }
            let change = Change::Rename { from: from.to_owned(), to: to.to_owned() };
            apply(&mut world.names, change.clone());
            world.changes.push(change);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.world().change(|world| {
            if !world.names.contains_key(name) {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            }
            let change = Change::Remove { name: name.to_owned() };
            apply(&mut world.names, change.clone());
            world.changes.push(change);
            Ok(())
        })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let world = self.world();
        world.check_power()?;
        Ok(world.names.keys().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        self.world().change(World::sync_names)
    }

    fn lock(&self) -> io::Result<Lock> {
        let mut world = self.world();
        world.check_power()?;
        if world.locked {
            let text = "the simulated disk is in use by another log";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        world.locked = true;
        let boot = world.boot;
        Ok(Lock::new(Unlock(Handle { disk: self.clone(), boot, inode: 0 })))
    }

    fn describe(&self) -> String {
        "the simulated disk".to_owned()
    }
}

struct Unlock(Handle);

impl Drop for Unlock {
    fn drop(&mut self) {
        if let Ok(mut world) = self.0.world() {
            world.locked = false;
        }
    }
}

impl File for Handle {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let world = self.world()?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = world.inodes[self.inode].cache.get(from..).unwrap_or_default();
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.world()?.change(|world| world.write(self.inode, bytes, offset))
    }

    fn preallocate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        self.world()?.change(|world| world.grow(self.inode, length))
    }

    fn sync(&self) -> io::Result<()> {
        self.world()?.change(|world| world.sync(self.inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(disk: &SimDisk, sectors: usize) -> Arc<dyn File> {
        let file = disk.open("file", Access::Create).unwrap();
        file.preallocate((sectors * SECTOR_BYTES) as u64).unwrap();
        file.sync().unwrap();
        disk.sync_names().unwrap();
        file.write_at(&vec![1; sectors * SECTOR_BYTES], 0).unwrap();
        file
    }

    fn sectors_with(disk: &SimDisk, byte: u8) -> usize {
        disk.contents("file")
            .unwrap()
            .chunks(SECTOR_BYTES)
            .filter(|s| s.iter().all(|b| *b == byte))
            .count()
    }

    #[test]
    fn a_power_cut_tears_what_is_not_synced_and_nothing_else() {
        let mut torn = 0;
        for seed in 0..64 {
            let disk = SimDisk::new(seed);
            written(&disk, 8);
            disk.power_cycle();
            let kept = sectors_with(&disk, 1);
            assert_eq!(kept + sectors_with(&disk, 0), 8);
            torn += usize::from(kept > 0 && kept < 8);

            let disk = SimDisk::new(seed);
            written(&disk, 8).sync().unwrap();
            disk.power_cycle();
            assert_eq!(sectors_with(&disk, 1), 8);
        }
        assert!(torn > 16, "{torn} of 64");
    }

    #[test]
    fn a_killed_process_loses_nothing_that_is_written() {
        let disk = SimDisk::new(1);
        let file = written(&disk, 8);
        disk.kill_process();
        assert_eq!(sectors_with(&disk, 1), 8);
        assert!(file.sync().is_err(), "a handle of the former process");
    }

    #[test]
    fn a_name_that_is_not_synced_may_be_lost_although_the_contents_are() {
        let lost = (0..64).filter(|seed| {
            let disk = SimDisk::new(*seed);
            disk.open("file", Access::Create).unwrap().sync().unwrap();
            disk.power_cycle();
            disk.contents("file").is_none()
        });
        assert!((8..56).contains(&lost.count()));
    }

    #[test]
    fn a_sync_after_one_that_failed_succeeds_and_the_data_are_lost() {
        let mut lost = 0;
        for seed in 0..64 {
            let disk = SimDisk::new(seed);
            let file = written(&disk, 8);
            disk.set_faults(Faults { failing_syncs: [0].into(), ..Faults::default() });
            assert!(file.sync().is_err());
            assert!(file.sync().is_ok());
            assert_eq!(sectors_with(&disk, 1), 8, "the cache has it still");
            disk.power_cycle();
            lost += usize::from(sectors_with(&disk, 1) < 8);
        }
        assert!(lost > 32, "{lost} of 64");
    }

    #[test]
    fn a_full_disk_says_so() {
        let disk = SimDisk::new(1);
        disk.set_faults(Faults { capacity: Some(1000), ..Faults::default() });
        let file = disk.open("file", Access::Create).unwrap();
        assert!(file.write_at(&[1; 1000], 0).is_ok());
        let error = file.write_at(&[1; 2], 999).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn the_power_fails_at_the_operation_that_was_named() {
        let disk = SimDisk::new(1);
        disk.set_faults(Faults { power_cut_at: Some(1), ..Faults::default() });
        let file = disk.open("file", Access::Create).unwrap();
        assert!(file.write_at(b"x", 0).is_err());
        assert!(disk.is_off());
        assert!(disk.list().is_err());
    }
}
