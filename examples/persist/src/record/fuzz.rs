//! Fuzz targets of records: a disk may hold any bytes.

use bolero::{TypeGenerator, check};

use super::*;
use crate::corpus;

const TARGET: &str = "record::fuzz::any_bytes_are_a_record_or_none";

/// Any bytes are a record that does not reach beyond them, or none.
#[test]
fn any_bytes_are_a_record_or_none() {
    check!().for_each(|bytes: &[u8]| {
        let lsn = RawHeader::ref_from_prefix(bytes).map_or(Lsn(8), |(raw, _)| Lsn(raw.lsn.get()));
        if let Ok((header, payload)) = parse(Seed::of(1), lsn, 0, bytes) {
            assert!(payload.len() <= bytes.len());
            assert!(header.synced <= lsn);
        }
    });
}

#[test]
fn the_corpus_has_a_record_of_each_kind() {
    let kinds =
        [1, 2, 3, 4, 5, 6, 7, 8].map(|kind| Kind::from_wire(kind).expect("there are eight"));
    let records = kinds.map(|kind| {
        let (lsn, synced) = (Lsn(8192), Lsn(8000));
        let mut bytes = Vec::new();
        if kind.skips() {
            bytes.extend(skip(Seed::of(1), lsn, 2, synced, (kind, 64)));
        } else {
            encode(&mut bytes, lsn, 2, Draft { transaction: 3, kind, payload: b"payload" });
            seal_batch(Seed::of(1), &mut bytes, synced);
        }
        assert!(parse(Seed::of(1), lsn, 2, &bytes).is_ok());
        (format!("{kind:?}"), bytes)
    });
    corpus::is_kept("src/record", TARGET, records);
}

#[derive(Debug, TypeGenerator)]
struct Any {
    lsn: u64,
    epoch: u32,
    transaction: u64,
    payload: Vec<u8>,
    unsynced: u32,
    change: (u16, u8),
}

/// A record comes back as it was; after a change of one byte it is none.
#[test]
fn a_record_is_read_as_it_was_written_or_not_at_all() {
    check!().with_type::<Any>().for_each(|any| {
        let lsn = Lsn((any.lsn >> 1).max(1));
        let synced = Lsn(lsn.0.saturating_sub(u64::from(any.unsynced)));
        let draft =
            Draft { transaction: any.transaction, kind: Kind::Entry, payload: &any.payload };
        let mut bytes = Vec::new();
        encode(&mut bytes, lsn, any.epoch, draft);
        seal_batch(Seed::of(9), &mut bytes, synced);
        let (header, payload) = parse(Seed::of(9), lsn, any.epoch, &bytes).expect("it is whole");
        assert_eq!((header.transaction, payload), (any.transaction, &any.payload[..]));
        assert!(header.synced <= synced);
        let (at, with) = any.change;
        let covered = HEADER_BYTES + any.payload.len();
        bytes[usize::from(at) % covered] ^= with;
        assert_eq!(parse(Seed::of(9), lsn, any.epoch, &bytes).is_ok(), with == 0);
    });
}
