//! Damage: bits that flip, files that are missing, of another log or another version.

use std::sync::Arc;

use super::story::{SEGMENT_BYTES, assert_error, options};
use crate::storage::Storage;
use crate::storage::sim::SimDisk;
use crate::{Error, Kind, Level, Log, Lsn, repair, verify};

const RECORDS: u64 = 30;
const LENGTH: usize = 300;

/// A disk with a log of several segments, and where its entries are.
fn a_log() -> (SimDisk, Vec<Lsn>) {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk.clone()), options()).unwrap();
    let append = |number: u64| {
        let payload = [number.to_le_bytes().to_vec(), vec![7; LENGTH - 8]].concat();
        log.append(&payload, Level::Persistent).unwrap().wait().unwrap().lsn
    };
    let lsns = (0..RECORDS).map(append).collect();
    drop(log);
    (disk, lsns)
}

fn storage(disk: &SimDisk) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

fn open(disk: &SimDisk) -> Result<Log, Error> {
    Log::open_on(storage(disk), options())
}

fn place(lsn: Lsn) -> (String, usize) {
    let name = crate::segment::name(lsn.0 / SEGMENT_BYTES);
    (name, usize::try_from(lsn.0 % SEGMENT_BYTES).unwrap())
}

fn flip(disk: &SimDisk, lsn: Lsn, byte: usize) {
    let (name, offset) = place(lsn);
    disk.flip_bit(&name, offset + byte, 3);
}

fn numbers(log: &Log) -> Vec<u64> {
    let entries = log.records(None).map(Result::unwrap).filter(|r| r.kind() == Kind::Entry);
    entries.map(|r| u64::from_le_bytes(r.payload[..8].try_into().unwrap())).collect()
}

#[test]
fn damage_of_any_record_but_the_last_is_refused_told_and_can_be_given_up() {
    for damaged in 0..RECORDS as usize - 1 {
        for byte in [0, 5, 9, 17, 25, 29, 31, 40, LENGTH] {
            let (disk, lsns) = a_log();
            flip(&disk, lsns[damaged], byte);
            let before = disk.contents(&place(lsns[damaged]).0);
            let error = assert_error(open(&disk).map(drop), |e| matches!(e, Error::Corrupt(_)));
            let Error::Corrupt(what) = error else { unreachable!("asserted") };
            assert_eq!(what.from, lsns[damaged]);
            assert!(what.until <= lsns[damaged + 1] && what.until > what.from, "{what}");
            assert_eq!(disk.contents(&what.file), before, "refusing changes nothing");

            let found = verify(&storage(&disk), |_| Ok(())).unwrap().damaged;
            assert_eq!(found, std::slice::from_ref(&what));
            assert_eq!(repair(&storage(&disk)).unwrap(), [what]);
            let log = open(&disk).unwrap();
            let kept: Vec<u64> = (0..RECORDS).filter(|n| *n != damaged as u64).collect();
            assert_eq!(numbers(&log), kept);
            drop(log);
            let report = verify(&storage(&disk), |_| Ok(())).unwrap();
            assert!(report.damaged.is_empty() && report.lost.len() == 1 && !report.is_sound());
        }
    }
}

#[test]
fn damage_of_several_records_in_several_segments_is_given_up_at_once() {
    let (disk, lsns) = a_log();
    for damaged in [2, 3, 14, 25] {
        flip(&disk, lsns[damaged], 50);
    }
    assert_eq!(repair(&storage(&disk)).unwrap().len(), 3);
    let kept: Vec<u64> = (0..RECORDS).filter(|n| ![2, 3, 14, 25].contains(n)).collect();
    assert_eq!(numbers(&open(&disk).unwrap()), kept);
}

#[test]
fn damage_after_a_clean_stop_is_refused_or_met_by_readers() {
    for damaged in 0..RECORDS as usize {
        let (disk, lsns) = a_log();
        open(&disk).unwrap().close().unwrap();
        flip(&disk, lsns[damaged], 40);
        // The index says that recovery need not look there.
        let log = open(&disk).unwrap();
        let read = log.read(lsns[damaged]);
        assert_error(read, |error| matches!(error, Error::NoRecord { .. }));
        let met = log.records(None).find_map(Result::err).unwrap();
        assert!(matches!(met, Error::Damaged { lsn, .. } if lsn == lsns[damaged]), "{met}");
        drop(log);
        // Without the index it looks.
        disk.take("index");
        assert_error(open(&disk).map(drop), |error| matches!(error, Error::Corrupt(_)));
    }
}

#[test]
fn an_index_that_is_missing_torn_or_wrong_changes_nothing() {
    let (disk, _) = a_log();
    open(&disk).unwrap().close().unwrap();
    let index = disk.contents("index").unwrap();
    for bit in 0..index.len() * 8 {
        let mut wrong = index.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        disk.put("index", &wrong);
        assert_eq!(numbers(&open(&disk).unwrap()).len() as u64, RECORDS);
    }
    for length in 0..index.len() {
        disk.put("index", &index[..length]);
        assert_eq!(numbers(&open(&disk).unwrap()).len() as u64, RECORDS);
    }
}

#[test]
fn segments_that_are_missing_are_named() {
    let (disk, _) = a_log();
    let names: Vec<String> = disk.list().unwrap();
    let segments: Vec<&String> = names.iter().filter(|name| name.starts_with("segment-")).collect();
    assert!(segments.len() >= 3);
    for missing in &segments[..segments.len() - 1] {
        let (disk, _) = a_log();
        let number = crate::segment::number_in(missing).unwrap();
        disk.take(missing);
        let found = verify(&storage(&disk), |_| Ok(())).unwrap();
        assert!(found.missing.is_some_and(|(_, to)| to == number) && !found.is_sound());
        assert_error(
            open(&disk).map(drop),
            |error| matches!(error, Error::MissingSegments { to, .. } if *to == number),
        );
    }
    // The last one: the log says that it goes on there.
    let (disk, _) = a_log();
    disk.take(segments[segments.len() - 1]);
    assert!(!verify(&storage(&disk), |_| Ok(())).unwrap().is_sound());
    assert_error(open(&disk).map(drop), |error| matches!(error, Error::MissingSegments { .. }));
}

#[test]
fn a_log_that_was_truncated_is_sound_and_one_that_lost_more_is_not() {
    let (disk, lsns) = a_log();
    let log = open(&disk).unwrap();
    log.checkpoint(lsns[20], b"").unwrap();
    assert!(log.truncate(lsns[20]).unwrap() > 0);
    let first = log.first();
    drop(log);
    let report = verify(&storage(&disk), |_| Ok(())).unwrap();
    assert!(report.is_sound() && report.first == first, "{report:?}");
    disk.take(&place(first).0);
    let report = verify(&storage(&disk), |_| Ok(())).unwrap();
    assert!(!report.is_sound(), "{report:?}");
    assert_error(open(&disk).map(drop), |error| matches!(error, Error::MissingSegments { .. }));
}

#[test]
fn segments_of_another_log_another_version_or_another_number_are_refused() {
    let (disk, _) = a_log();
    let (other, _) = a_log();
    let name = crate::segment::name(2);
    disk.put(&name, &other.contents(&name).unwrap());
    assert_error(open(&disk).map(drop), |error| matches!(error, Error::NotASegment { .. }));

    let (disk, _) = a_log();
    let last = place(a_log().1[RECORDS as usize - 1]).0;
    let mut newer = disk.contents(&last).unwrap();
    newer[8] = 2;
    disk.put(&last, &newer);
    let error =
        assert_error(open(&disk).map(drop), |e| matches!(e, Error::Version { found: 2, .. }));
    assert!(error.to_string().contains("with the program that wrote it"), "{error}");

    let (disk, _) = a_log();
    disk.put(&last, &disk.contents(&name).unwrap());
    assert_error(open(&disk).map(drop), |error| matches!(error, Error::NotASegment { .. }));
}

/// A record that is copied over a later one, as by a disk that writes to the wrong place.
#[test]
fn a_record_that_is_copied_elsewhere_is_damage() {
    let (disk, lsns) = a_log();
    let ((from, at), (to, there)) = (place(lsns[3]), place(lsns[5]));
    assert_eq!(from, to);
    let mut contents = disk.contents(&from).unwrap();
    contents.copy_within(at..at + LENGTH + 32, there);
    disk.put(&from, &contents);
    assert_error(open(&disk).map(drop), |error| matches!(error, Error::Corrupt(_)));
}

#[test]
fn a_torn_tail_of_eight_records_is_cut_at_each_sector() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(storage(&disk), options()).unwrap();
    log.append(&[1; 64], Level::Persistent).unwrap().wait().unwrap();
    let waiters: Vec<_> =
        (0..8_u64).map(|n| log.append(&[n as u8; 300], Level::Visible).unwrap()).collect();
    let lsns: Vec<Lsn> = waiters.iter().map(crate::Waiter::lsn).collect();
    waiters.into_iter().for_each(|waiter| assert!(waiter.wait().is_ok()));
    drop(log);
    let (name, begin) = place(lsns[0]);
    let whole = disk.contents(&name).unwrap();
    let end = place(lsns[7]).1 + 332;
    for sector in begin / 512..=end / 512 {
        for and_after in [false, true] {
            let mut torn = whole.clone();
            let from = (sector * 512).max(begin);
            let to = if and_after { torn.len() } else { (sector + 1) * 512 };
            torn[from..to].fill(0);
            let disk = SimDisk::new(2);
            disk.put(&name, &torn);
            let log = open(&disk).unwrap();
            let kept = lsns.iter().filter(|lsn| place(**lsn).1 + 332 <= from.max(begin)).count();
            let there = log.records(None).map(Result::unwrap).filter(|r| r.payload.len() == 300);
            assert_eq!(there.count(), kept, "sector {sector}, and after: {and_after}");
        }
    }
}
