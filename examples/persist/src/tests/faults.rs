//! A disk that fails syncs, is full, read-only, or in use.

use std::sync::Arc;

use super::story::{End, SEGMENT_BYTES, Story, assert_error, options};
use crate::storage::sim::{Faults, SimDisk};
use crate::{Error, Level, Log, Options};

#[test]
fn after_any_sync_that_failed_nothing_is_acknowledged_until_the_log_is_opened_again() {
    for failing in 0..12 {
        for seed in 0..20 {
            let mut story = Story::new(seed);
            story.open().unwrap();
            story.append(100, Level::Persistent).unwrap();
            story.wait().unwrap();
            story.disk.set_faults(Faults { failing_syncs: [failing].into(), ..Faults::default() });
            let outcome = (0..40).try_for_each(|_| {
                story.append(700, Level::Persistent)?;
                story.wait()
            });
            let error = outcome.unwrap_err();
            if matches!(error, Error::Io { .. }) {
                // The header or name of a new segment: no record was lost, so the log goes on.
                story.append(700, Level::Persistent).unwrap();
                story.wait().unwrap();
            } else {
                assert!(matches!(error, Error::Poisoned(_)), "{error}");
                for _ in 0..3 {
                    let again = story.append(8, Level::Persistent).and_then(|()| story.wait());
                    assert_error(again, |error| matches!(error, Error::Poisoned(_)));
                }
                story.check(None).unwrap();
            }
            story.end(End::Killed);
            // The next process finds records in the cache that the disk does not have.
            story.recover(End::PowerCut).unwrap();
            story.end(End::PowerCut);
            story.recover(End::PowerCut).unwrap();
        }
    }
}

#[test]
fn a_full_disk_fails_the_append_that_needs_room_and_is_used_again_when_there_is_some() {
    let mut story = Story::new(1);
    story.open().unwrap();
    let full = Faults { capacity: Some(2 * SEGMENT_BYTES + 100), ..Faults::default() };
    story.disk.set_faults(full);
    let mut appended = 0;
    let error = loop {
        match story.append(500, Level::Persistent).and_then(|()| story.wait()) {
            Ok(()) => appended += 1,
            Err(error) => break error,
        }
    };
    assert!(appended > 4);
    assert!(error.to_string().contains("free space"), "{error}");
    for _ in 0..3 {
        let again = story.append(500, Level::Persistent);
        assert_error(again, |error| matches!(error, Error::Io { .. }));
    }
    // Records that fit are still taken.
    story.check(None).unwrap();
    story.disk.set_faults(Faults::default());
    for _ in 0..20 {
        story.append(500, Level::Persistent).unwrap();
        story.wait().unwrap();
    }
    story.end(End::PowerCut);
    story.recover(End::PowerCut).unwrap();
}

#[test]
fn a_disk_that_is_read_only_is_told_as_such() {
    let mut story = Story::new(1);
    story.open().unwrap();
    story.end(End::Killed);
    story.disk.set_faults(Faults { read_only: true, ..Faults::default() });
    let error = story.open().unwrap_err();
    assert!(error.to_string().contains("mount the file system for writing"), "{error}");
    story.disk.set_faults(Faults::default());
    story.recover(End::Killed).unwrap();
}

#[test]
fn two_logs_on_one_disk_are_refused() {
    let disk = SimDisk::new(1);
    let open = || Log::open_on(Arc::new(disk.clone()), options());
    let log = open().unwrap();
    let error = open().map(drop).unwrap_err();
    assert!(matches!(&error, Error::Locked(_)), "{error}");
    drop(log);
    open().unwrap();
}

#[test]
fn two_logs_on_one_directory_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(directory.path(), options()).unwrap();
    let error = Log::open(directory.path(), options()).map(drop).unwrap_err();
    let process = std::process::id().to_string();
    assert!(matches!(&error, Error::Locked(text) if text.contains(&process)), "{error}");
    drop(log);
    Log::open(directory.path(), options()).unwrap();
}

#[test]
fn options_that_cannot_work_are_refused() {
    for wrong in [
        Options::default().segment_bytes(4096),
        Options::default().segment_bytes(1 << 31),
        Options::default().segment_bytes((1 << 20) + 1),
        Options::default().queue_bytes(10),
    ] {
        let opened = Log::open_on(Arc::new(SimDisk::new(1)), wrong).map(drop);
        assert_error(opened, |error| matches!(error, Error::Option(_)));
    }
}

#[test]
fn a_record_that_is_too_large_is_refused_and_the_largest_is_taken() {
    let disk = SimDisk::new(1);
    let options = options().queue_bytes(1 << 20);
    let log = Log::open_on(Arc::new(disk), options).unwrap();
    let most = log.max_payload();
    let error = log.append(&vec![1; most + 1], Level::Persistent).map(drop);
    assert_error(error, |error| matches!(error, Error::TooLarge { limit, .. } if *limit == most));
    for _ in 0..3 {
        let lsn = log.append(&vec![1; most], Level::Persistent).unwrap().wait().unwrap().lsn;
        assert_eq!(log.read(lsn).unwrap().payload.len(), most);
    }
}

#[test]
fn a_log_that_failed_is_opened_again_in_the_same_process_and_one_that_did_not_is_not() {
    let mut story = Story::new(1);
    story.open().unwrap();
    assert_error(story.log().open_again().map(drop), |error| matches!(error, Error::Option(_)));
    story.disk.set_faults(Faults { failing_syncs: [1].into(), ..Faults::default() });
    for _ in 0..2 {
        let _ = story.append(100, Level::Persistent).and_then(|()| story.wait());
    }
    assert!(story.log().failure().is_some());
    story.open_again().unwrap();
    story.append(100, Level::Persistent).unwrap();
    story.wait().unwrap();
    let second = Log::open_on(Arc::new(story.disk.clone()), options()).map(drop);
    assert_error(second, |error| matches!(error, Error::Locked(_)));
    story.end(End::PowerCut);
    story.recover(End::PowerCut).unwrap();
}
