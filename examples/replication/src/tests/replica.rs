//! A replica of the simulated world: its memory, its disk, and what happens to it.

use std::collections::{BTreeMap, HashMap};

use crate::membership::ReplicaId;
use crate::node::{Lender, Node, Progress, SyncWork};
use crate::record::{Epoch, Lsn, Record};
use crate::ring::{RECORDS_OFFSET, RingMemory, Write};
use crate::store::Request;

/// Few records fit, so that rings become full.
pub(super) const RING_BYTES: usize = 2048;

/// What a replica lends.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: Vec<u8>,
    /// Which lend this is.
    pub(super) lend: u64,
    is_lent: bool,
    pub(super) progress: Progress,
}

impl Memory {
    pub(super) fn new() -> Memory {
        let bytes = vec![0; RECORDS_OFFSET + RING_BYTES];
        Memory { bytes, lend: 0, is_lent: false, progress: Progress::default() }
    }

    /// Whether a holder of this lend has access.
    pub(super) fn has_access(&self, lend: u64) -> bool {
        self.is_lent && self.lend == lend
    }

    pub(super) fn land(&mut self, write: &Write) {
        self.bytes[write.offset..write.offset + write.bytes.len()].copy_from_slice(&write.bytes);
    }
}

impl RingMemory for Memory {
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[offset..offset + into.len()]);
    }

    fn load(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes[offset..offset + 8].try_into().unwrap())
    }
}

impl Lender for Memory {
    fn fence(&mut self) {
        self.is_lent = false;
    }

    fn lend(&mut self) {
        // One who was not fenced writes into the same memory.
        if !self.is_lent {
            self.bytes.fill(0);
            self.lend += 1;
            self.progress = Progress::default();
        }
        self.is_lent = true;
    }

    fn publish(&mut self, progress: &Progress) {
        self.progress = *progress;
    }
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) node: Node,
    pub(super) memory: Memory,
    /// Which lends of others it was told of.
    pub(super) targets: HashMap<ReplicaId, u64>,
    /// Its disk has the state after this record, and later records.
    snapshot: Lsn,
    /// The last epoch that is noted there.
    epoch: Epoch,
    disk: BTreeMap<Lsn, Record>,
    pub(super) is_dead: bool,
    /// It is stopped until then.
    pub(super) stopped_until: u64,
}

impl Replica {
    pub(super) fn new(node: Node) -> Replica {
        Replica {
            node,
            memory: Memory::new(),
            targets: HashMap::new(),
            snapshot: Lsn(0),
            epoch: Epoch(0),
            disk: BTreeMap::new(),
            is_dead: false,
            stopped_until: 0,
        }
    }

    /// It joins, and has synced the state after this record.
    pub(super) fn sync_snapshot(&mut self, applied: Lsn) {
        self.snapshot = applied;
    }

    /// Whether the record survives a power cut here.
    pub(super) fn has_synced(&self, lsn: Lsn) -> bool {
        lsn <= self.snapshot || self.disk.contains_key(&lsn)
    }

    /// Of all disks, the one with the largest has everything.
    pub(super) fn rank(&self) -> (Epoch, Lsn) {
        let last = self.disk.last_key_value().map_or(self.snapshot, |(last, _)| *last);
        (self.epoch, last)
    }

    /// Whether this command is the one with this number on the disk. It is unknown of those in a snapshot.
    pub(super) fn has_command(&self, lsn: Lsn, client: u64, sequence: u64) -> bool {
        let Some(record) = self.disk.get(&lsn) else { return lsn <= self.snapshot };
        let request = Request::decode(&record.payload);
        request.is_some_and(|it| (it.client, it.sequence) == (client, sequence))
    }

    /// Records are synced: one replaces those with its lsn and later ones.
    pub(super) fn sync(&mut self, sync: &SyncWork) {
        if let Some(epoch) = sync.enters {
            self.epoch = epoch;
            self.disk.split_off(&sync.last.next());
        }
        for record in &sync.records {
            self.disk.split_off(&record.lsn);
            self.disk.insert(record.lsn, record.clone());
        }
    }
}
