//! A ring of records in the memory that a backup lends to the primary of its epoch.
//!
//! ```text
//!      0  heartbeat       u64   the primary counts its rounds here
//!      8  commit index    u64   the lsn up to which all members have the records
//!     16  its complement  u64   a reader that meets a write believes nothing else
//!     64  records         RING bytes, used again and again
//! ```
//!
//! A position counts bytes from the beginning of the epoch; it is at `position % RING` in the ring. A record does not wrap: if it does not
//! fit before the end of the ring, padding takes the rest.

use bytes::{Bytes, BytesMut};

use crate::planted::{Bug, is_planted};
use crate::record::{
    self, Epoch, HEADER_BYTES, Header, Lsn, MAX_RECORD_BYTES, Record, is_whole, size_of,
};

/// Where the records begin.
pub const RECORDS_OFFSET: usize = 64;

/// The words before the records, as the primary writes them.
pub(crate) fn words(heartbeat: u64, commit: Lsn) -> Bytes {
    [heartbeat, commit.0, !commit.0].map(u64::to_le_bytes).concat().into()
}

/// The primary's heartbeat, which only changes.
pub(crate) fn heartbeat(memory: &dyn RingMemory) -> u64 {
    memory.load(0)
}

/// The commit index, if it is whole: bytes of a write land in any order.
pub(crate) fn commit_index(memory: &dyn RingMemory) -> Option<Lsn> {
    let (commit, complement) = (memory.load(8), memory.load(16));
    // Before the first write all is zero.
    (commit == !complement).then_some(Lsn(commit))
}

/// The smallest ring: a few of the longest records.
pub const MIN_RING_BYTES: usize = 4 * MAX_RECORD_BYTES;

/// Whether a ring can have so many bytes, which a peer says: four of the shortest records, in words.
#[must_use]
pub(crate) fn is_possible(bytes: u64) -> bool {
    (4 * HEADER_BYTES as u64..=MAX_RING_BYTES).contains(&bytes) && bytes.is_multiple_of(8)
}

/// The largest ring.
const MAX_RING_BYTES: u64 = 1 << 40;

/// One WRITE has at most so many bytes, unless it is one record.
const MAX_WRITE_BYTES: usize = 32 << 10;

/// Memory that a backup has lent, as its owner sees it.
pub trait RingMemory {
    /// Copies out of it.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Loads the word at this offset, a multiple of 8.
    fn load(&self, offset: usize) -> u64;
}

/// A WRITE into a ring's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where, in the memory that is lent.
    pub offset: usize,
    /// What.
    pub bytes: Bytes,
}

/// The primary's end of a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingWriter {
    epoch: Epoch,
    size: u64,
    written: u64,
    taken: u64,
}

impl RingWriter {
    /// For an empty ring of so many bytes.
    pub(crate) fn new(epoch: Epoch, size: usize) -> RingWriter {
        RingWriter { epoch, size: size as u64, written: 0, taken: 0 }
    }

    /// How many bytes can be written before the backup has taken more out.
    pub(crate) fn free(&self) -> u64 {
        if is_planted(Bug::RingReusedEarly) {
            return self.size;
        }
        self.size - (self.written - self.taken)
    }

    /// The most bytes of a record: four fit into a small ring.
    pub(crate) fn max_record_bytes(&self) -> u64 {
        (self.size / 4).min(MAX_RECORD_BYTES as u64)
    }

    /// Whether there is room for so many bytes of records, wherever the ring ends: padding is shorter than the record after it.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.free() >= bytes + self.max_record_bytes()
    }

    /// The backup has taken everything before this position out. What it says is not believed beyond what was written.
    pub(crate) fn set_taken(&mut self, taken: u64) {
        self.taken = self.taken.max(taken.min(self.written));
    }

    /// Writes a record, if there is room: WRITEs that follow each other become one.
    pub(crate) fn push(&mut self, record: &Record, writes: &mut Writes) -> bool {
        let size = size_of(record.payload.len()) as u64;
        let left = self.size - self.written % self.size;
        let padding = if size > left { left } else { 0 };
        if self.free() < padding + size {
            return false;
        }
        if padding > 0 {
            // What is shorter than a header is padding in any case.
            if padding >= HEADER_BYTES as u64 {
                let (epoch, written) = (self.epoch, self.written);
                writes.at(self.offset(), |into| record::encode_padding(epoch, written, into));
            }
            self.written += padding;
        }
        let (epoch, written) = (self.epoch, self.written);
        writes.at(self.offset(), |into| record.encode(epoch, written, into));
        self.written += size;
        true
    }

    fn offset(&self) -> usize {
        RECORDS_OFFSET + (self.written % self.size) as usize
    }
}

/// WRITEs that are being put together.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    done: Vec<Write>,
    offset: usize,
    bytes: BytesMut,
}

impl Writes {
    fn at(&mut self, offset: usize, encode: impl FnOnce(&mut BytesMut)) {
        if self.offset + self.bytes.len() != offset || self.bytes.len() >= MAX_WRITE_BYTES {
            self.finish();
            self.offset = offset;
        }
        encode(&mut self.bytes);
    }

    fn finish(&mut self) {
        if !self.bytes.is_empty() {
            let bytes = self.bytes.split().freeze();
            self.done.push(Write { offset: self.offset, bytes });
        }
    }

    /// All of them.
    pub(crate) fn take(mut self) -> Vec<Write> {
        self.finish();
        self.done
    }

    /// How many there are, the unfinished one included.
    pub(crate) fn len(&self) -> usize {
        self.done.len() + usize::from(!self.bytes.is_empty())
    }
}

/// The backup's end of a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingReader {
    epoch: Epoch,
    size: u64,
    at: u64,
}

impl RingReader {
    /// For an empty ring of so many bytes.
    pub(crate) fn new(epoch: Epoch, size: usize) -> RingReader {
        RingReader { epoch, size: size as u64, at: 0 }
    }

    /// Everything before this was taken out.
    pub(crate) fn taken(&self) -> u64 {
        self.at
    }

    /// Takes the next record out, if it is there as a whole and has this lsn.
    pub(crate) fn take(&mut self, memory: &dyn RingMemory, expected: Lsn) -> Option<Record> {
        loop {
            let left = self.size - self.at % self.size;
            if left < HEADER_BYTES as u64 {
                self.at += left;
                continue;
            }
            let offset = RECORDS_OFFSET + (self.at % self.size) as usize;
            let mut bytes = [0; HEADER_BYTES];
            memory.read(offset, &mut bytes);
            match record::header(&bytes, self.epoch)? {
                Header::Padding => {
                    if !is_whole(&bytes, b"", self.at) {
                        return None;
                    }
                    self.at += left;
                }
                Header::Record { lsn, origin, length } => {
                    let size = size_of(length) as u64;
                    if size > left || lsn != expected {
                        return None;
                    }
                    // Copied before it is checked: the primary may still write.
                    let mut payload = vec![0; length];
                    memory.read(offset + HEADER_BYTES, &mut payload);
                    if !is_whole(&bytes, &payload, self.at) {
                        return None;
                    }
                    self.at += size;
                    return Some(Record { lsn, origin, payload: payload.into() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain(Vec<u8>);

    impl RingMemory for Plain {
        fn read(&self, offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0[offset..offset + into.len()]);
        }

        fn load(&self, offset: usize) -> u64 {
            u64::from_le_bytes(self.0[offset..offset + 8].try_into().unwrap())
        }
    }

    impl Plain {
        fn write(&mut self, writes: &[Write]) {
            for Write { offset, bytes } in writes {
                self.0[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    const SIZE: usize = 1024;
    const EPOCH: Epoch = Epoch(3);

    fn record(lsn: u64) -> Record {
        let payload = vec![lsn as u8; (lsn as usize * 37) % 200].into();
        Record { lsn: Lsn(lsn), origin: Epoch(lsn % 3), payload }
    }

    #[test]
    fn records_go_around_and_a_full_ring_takes_no_more() {
        let mut memory = Plain(vec![0; RECORDS_OFFSET + SIZE]);
        let (mut writer, mut reader) = (RingWriter::new(EPOCH, SIZE), RingReader::new(EPOCH, SIZE));
        let (mut sent, mut taken, mut was_full) = (1, 1, false);
        for step in 0..2000 {
            let mut writes = Writes::default();
            while sent < 1000 && writer.push(&record(sent), &mut writes) {
                sent += 1;
            }
            was_full |= sent < 1000;
            memory.write(&writes.take());
            for _ in 0..=step % 3 {
                if let Some(found) = reader.take(&memory, Lsn(taken)) {
                    assert_eq!(found, record(taken));
                    taken += 1;
                }
            }
            writer.set_taken(reader.taken());
        }
        assert_eq!((taken, was_full), (1000, true));
        assert!(reader.take(&memory, Lsn(1000)).is_none());
    }

    #[test]
    fn what_is_torn_old_or_of_another_epoch_is_no_record() {
        let whole = {
            let mut writes = Writes::default();
            assert!(RingWriter::new(EPOCH, SIZE).push(&record(5), &mut writes));
            writes.take()
        };
        let take = |memory: &Plain, epoch, lsn| {
            RingReader::new(epoch, SIZE).take(memory, Lsn(lsn)).is_some()
        };
        let mut memory = Plain(vec![0; RECORDS_OFFSET + SIZE]);
        assert!(!take(&memory, EPOCH, 5), "zeros");
        assert!(!take(&memory, Epoch(0), 0), "zeros of the epoch zero");
        memory.write(&whole);
        assert!(take(&memory, EPOCH, 5));
        assert!(!take(&memory, EPOCH.next(), 5), "another epoch");
        assert!(!take(&memory, EPOCH, 6), "another lsn");
        let length = whole[0].bytes.len();
        for byte in 0..length {
            let mut torn = Plain(memory.0.clone());
            torn.0[RECORDS_OFFSET + byte] ^= 0x10;
            let is_unused = (36..HEADER_BYTES).contains(&byte)
                || byte >= HEADER_BYTES + record(5).payload.len();
            assert_eq!(take(&torn, EPOCH, 5), is_unused, "byte {byte}");
        }
        // One round later, these bytes are not at the position that they name.
        let mut later = RingReader { epoch: EPOCH, size: SIZE as u64, at: SIZE as u64 };
        assert!(later.take(&memory, Lsn(5)).is_none());
    }

    #[test]
    fn a_commit_index_that_is_torn_is_not_believed() {
        let mut memory = Plain(vec![0; RECORDS_OFFSET]);
        assert_eq!(commit_index(&memory), None);
        let (before, after) = (words(1, Lsn(255)), words(2, Lsn(256)));
        for landed in 0..=after.len() {
            memory.write(&[Write { offset: 0, bytes: before.clone() }]);
            memory.write(&[Write { offset: landed, bytes: after.slice(landed..) }]);
            let found = commit_index(&memory);
            assert!(found.is_none_or(|it| it == Lsn(255) || it == Lsn(256)), "{landed}: {found:?}");
        }
        assert_eq!(commit_index(&memory), Some(Lsn(255)));
    }

    #[test]
    fn a_backup_that_says_more_than_was_written_frees_nothing_more() {
        let mut writer = RingWriter::new(EPOCH, SIZE);
        assert!(writer.push(&record(5), &mut Writes::default()));
        writer.set_taken(u64::MAX);
        assert_eq!(writer.free(), SIZE as u64);
        writer.set_taken(0);
        assert_eq!(writer.free(), SIZE as u64);
    }
}
