//! A write-ahead log in persistent memory: appended entries survive a power failure.
//!
//! Entries are consecutive. Each has a checksum over its bytes and the preceding checksum, so that a torn entry,
//! or one of a lost history, ends the log.

use farcall_verbs::{PersistentRegion, VerbsError};
use thiserror::Error;

/// Checksum, length of the key, and length of the value (or [`NO_VALUE`]).
const HEADER_BYTES: usize = 16;

/// The length that means that an entry has no value.
const NO_VALUE: u32 = u32::MAX;

/// An entry of the log: the new value of a key, or its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The key.
    pub(crate) key: Vec<u8>,
    /// Its new value; `None` if the key is deleted.
    pub(crate) value: Option<Vec<u8>>,
}

/// When an entry counts as appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledge {
    /// When it is durable.
    WhenDurable,
    /// When it is stored; the next one makes it durable. A bug, planted for the swarm to find.
    WhenStored,
}

/// Why an entry was not appended.
#[derive(Debug, Error)]
pub(crate) enum LogError {
    /// The log is full.
    #[error("an entry of {len} bytes does not fit the {left} that are left in the log")]
    Full {
        /// Bytes of the entry.
        len: usize,
        /// Free bytes in the log.
        left: usize,
    },
    /// The memory is gone.
    #[error(transparent)]
    Memory(#[from] VerbsError),
}

/// A log with a single writer.
#[derive(Debug)]
pub(crate) struct Log {
    region: PersistentRegion,
    acknowledge: Acknowledge,
    /// The offsets of the next entry and of the last one.
    end: usize,
    last: usize,
    checksum: u64,
}

impl Log {
    /// Opens the log in that memory. Returns its entries too.
    pub(crate) fn recover(region: PersistentRegion, acknowledge: Acknowledge) -> (Log, Vec<Entry>) {
        let mut log = Log { region, acknowledge, end: 0, last: 0, checksum: 0 };
        let mut entries = Vec::new();
        while let Some((entry, len, checksum)) = log.entry_at_end() {
            entries.push(entry);
            (log.last, log.end, log.checksum) = (log.end, log.end + len, checksum);
        }
        (log, entries)
    }

    fn entry_at_end(&self) -> Option<(Entry, usize, u64)> {
        let room = self.region.len() - self.end;
        if room < HEADER_BYTES {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        self.region.copy_out(self.end, &mut header);
        let key_len = word(&header[8..12]) as usize;
        let value_len = Some(word(&header[12..16])).filter(|len| *len != NO_VALUE);
        let len = entry_len(key_len, value_len.unwrap_or(0) as usize);
        if len > room {
            return None;
        }
        let mut bytes = vec![0; len];
        self.region.copy_out(self.end, &mut bytes);
        let checksum = checksum(self.checksum, &bytes[8..]);
        if bytes[..8] != checksum.to_le_bytes() {
            return None;
        }
        let body = &bytes[HEADER_BYTES..];
        let key = body[..key_len].to_vec();
        let value = value_len.map(|len| body[key_len..key_len + len as usize].to_vec());
        Some((Entry { key, value }, len, checksum))
    }

    /// Appends an entry, which is durable when this returns.
    ///
    /// # Errors
    /// If the log is full or its memory is gone.
    pub(crate) fn append(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), LogError> {
        let len = entry_len(key.len(), value.map_or(0, <[u8]>::len));
        let left = self.region.len() - self.end;
        if len > left {
            return Err(LogError::Full { len, left });
        }
        let mut bytes = vec![0; 8];
        bytes.extend((key.len() as u32).to_le_bytes());
        bytes.extend(value.map_or(NO_VALUE, |value| value.len() as u32).to_le_bytes());
        bytes.extend(key);
        bytes.extend(value.unwrap_or_default());
        bytes.resize(len, 0);
        let checksum = checksum(self.checksum, &bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        self.region.copy_in(self.end, &bytes);
        let end = self.end + len;
        self.region.persist(match self.acknowledge {
            Acknowledge::WhenDurable => self.end..end,
            Acknowledge::WhenStored => self.last..self.end,
        })?;
        (self.last, self.end, self.checksum) = (self.end, end, checksum);
        Ok(())
    }
}

/// The length of an entry in bytes; a multiple of 8.
fn entry_len(key: usize, value: usize) -> usize {
    (HEADER_BYTES + key + value).next_multiple_of(8)
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// FNV-1a, 64 bits; never equal to the content of zeroed memory.
fn checksum(before: u64, bytes: &[u8]) -> u64 {
    let start = before ^ 0xcbf2_9ce4_8422_2325;
    let hash = bytes
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash | 1
}

#[cfg(test)]
mod tests {
    use farcall_verbs::Access;
    use farcall_verbs::sim::{NodeId, Sim};

    use super::*;

    const LEN: usize = 4096;

    fn open(sim: &Sim, node: NodeId, acknowledge: Acknowledge) -> (Log, Vec<Entry>) {
        let pd = sim.node(node).device().alloc_pd().unwrap();
        Log::recover(pd.open_persistent("log", LEN, Access::empty()).unwrap(), acknowledge)
    }

    fn entry(number: u8) -> Entry {
        let value = (!number.is_multiple_of(3)).then(|| vec![number; usize::from(number) * 5 % 90]);
        Entry { key: vec![number; 3], value }
    }

    /// Appends 20 entries with power failures in between. Returns the number of seeds that lost one.
    fn losses(acknowledge: Acknowledge) -> usize {
        let lost = (0..50).filter(|seed| {
            let mut sim = Sim::new(*seed);
            let node = sim.add_node();
            let (mut log, none) = open(&sim, node, acknowledge);
            assert_eq!(none, []);
            for number in 0..20 {
                let Entry { key, value } = entry(number);
                log.append(&key, value.as_deref()).unwrap();
                if number % 7 == 6 {
                    sim.node(node).power_loss();
                    sim.node(node).restart();
                    let (again, found) = open(&sim, node, acknowledge);
                    let wanted: Vec<_> = (0..=number).map(entry).collect();
                    if found != wanted {
                        assert!(wanted.starts_with(&found), "an entry that was never appended");
                        return true;
                    }
                    log = again;
                }
            }
            false
        });
        lost.count()
    }

    #[test]
    fn appended_entries_survive_a_power_failure() {
        assert_eq!(losses(Acknowledge::WhenDurable), 0);
        assert!(losses(Acknowledge::WhenStored) > 10, "the planted bug");
    }

    #[test]
    fn a_full_log_refuses_an_entry_and_stays_usable() {
        let mut sim = Sim::new(1);
        let node = sim.add_node();
        let (mut log, _) = open(&sim, node, Acknowledge::WhenDurable);
        log.append(b"key", Some(&[1; LEN - 100])).unwrap();
        assert!(matches!(log.append(b"key", Some(&[1; 90])), Err(LogError::Full { .. })));
        log.append(b"key", None).unwrap();
        drop(log);
        assert_eq!(open(&sim, node, Acknowledge::WhenDurable).1.len(), 2);
    }

    #[test]
    fn an_entry_of_a_lost_history_is_ignored() {
        let mut sim = Sim::new(1);
        let node = sim.add_node();
        let (mut log, _) = open(&sim, node, Acknowledge::WhenDurable);
        ["a", "b", "c"].iter().for_each(|key| log.append(key.as_bytes(), Some(b"1")).unwrap());
        // The second entry is torn: the third, which is whole, belongs to a lost history.
        log.region.copy_in(32, &[9]);
        drop(log);
        let (mut log, entries) = open(&sim, node, Acknowledge::WhenDurable);
        assert_eq!(entries.len(), 1);
        log.append(b"d", Some(b"1")).unwrap();
        drop(log);
        assert_eq!(open(&sim, node, Acknowledge::WhenDurable).1.len(), 2);
    }
}
