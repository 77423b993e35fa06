//! Many writers, one sync; futures; a queue that is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::story::{SEGMENT_BYTES, assert_error, options};
use crate::storage::sim::{Faults, SimDisk};
use crate::{Error, Level, Log, Options};

/// Far more than any of this takes.
const BOUND: Duration = Duration::from_secs(60);

struct Notify(mpsc::Sender<()>);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Runs a future on this thread.
fn block_on<F: Future<Output = Result<crate::Ack, Error>> + Unpin>(mut future: F) -> F::Output {
    let (sender, receiver) = mpsc::channel();
    let waker = Waker::from(Arc::new(Notify(sender)));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = std::pin::Pin::new(&mut future).poll(&mut context) {
            return outcome;
        }
        receiver.recv_timeout(BOUND).expect("a wake-up");
    }
}

fn log_in(directory: &tempfile::TempDir) -> Log {
    let options = Options::default().segment_bytes(64 << 10).queue_bytes(16 << 10);
    Log::open(directory.path(), options).unwrap()
}

#[test]
fn writers_share_syncs_and_each_record_is_there() {
    const WRITERS: u64 = 16;
    const EACH: u64 = 60;
    let directory = tempfile::tempdir().unwrap();
    let log = log_in(&directory);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let log = &log;
            scope.spawn(move || {
                for number in 0..EACH {
                    let payload = (writer * EACH + number).to_le_bytes().repeat(20);
                    let waiter = log.append(&payload, Level::Persistent).unwrap();
                    // Some block, some are futures.
                    let ack = if writer % 4 == 0 { block_on(waiter) } else { waiter.wait() };
                    let ack = ack.unwrap();
                    assert_eq!(ack.level, Level::Persistent);
                    assert_eq!(log.read(ack.lsn).unwrap().payload, payload);
                }
            });
        }
    });
    let stats = log.stats();
    assert!(stats.records >= WRITERS * EACH);
    assert!(stats.syncs * 2 < stats.records, "{stats:?}");
    drop(log);
    let log = log_in(&directory);
    let entries = log.records(None).map(Result::unwrap).filter(|r| r.kind() == crate::Kind::Entry);
    let mut numbers: Vec<_> =
        entries.map(|r| u64::from_le_bytes(r.payload[..8].try_into().unwrap())).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..WRITERS * EACH));
}

#[test]
fn one_write_and_then_silence_is_acknowledged() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk), options()).unwrap();
    for level in [Level::Received, Level::Visible, Level::Persistent] {
        assert!(block_on(log.append(b"alone", level).unwrap()).unwrap().level >= level);
        assert!(log.append(b"alone", level).unwrap().wait().unwrap().level >= level);
    }
}

#[test]
fn an_acknowledgement_says_no_more_than_what_was_reached() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk), options()).unwrap();
    let received = log.append(b"1", Level::Received).unwrap();
    assert_eq!(received.level_now(), Level::Received);
    let visible = log.append(b"2", Level::Visible).unwrap();
    assert_eq!(visible.wait().unwrap().level, Level::Visible);
    // The batch carried the first, too.
    assert_eq!(received.wait().unwrap().level, Level::Visible);
    log.flush(Level::Persistent).unwrap().wait().unwrap();
    assert_eq!(log.reached(Level::Persistent), log.end());
}

#[test]
fn futures_that_are_dropped_disturb_no_other() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk), options()).unwrap();
    let waker = Waker::noop();
    for _ in 0..100 {
        let mut dropped = log.append(b"dropped", Level::Persistent).unwrap();
        let _ = std::pin::Pin::new(&mut dropped).poll(&mut Context::from_waker(waker));
        let kept = log.append(b"kept", Level::Persistent).unwrap();
        drop(dropped);
        block_on(kept).unwrap();
    }
    let entries = log.records(None).filter(|r| r.as_ref().unwrap().kind() == crate::Kind::Entry);
    assert_eq!(entries.count(), 200);
}

#[test]
fn a_full_queue_is_told_to_those_who_do_not_wait_and_takes_records_again() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk), options().queue_bytes(1 << 10)).unwrap();
    let full = loop {
        match log.try_append(&[1; 200], Level::Received) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::QueueFull), "{full}");
    log.flush(Level::Visible).unwrap().wait().unwrap();
    log.try_append(&[1; 200], Level::Received).unwrap().wait().unwrap();
}

#[test]
fn waiters_of_a_log_that_is_dropped_are_told() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk), options()).unwrap();
    let waiters = [(); 2].map(|()| log.append(b"late", Level::Persistent).unwrap());
    drop(log);
    let [blocking, future] = waiters;
    assert_error(blocking.wait(), |error| matches!(error, Error::Closed));
    assert_error(block_on(future), |error| matches!(error, Error::Closed));
}

#[test]
fn readers_follow_a_writer_over_segments() {
    let directory = tempfile::tempdir().unwrap();
    let log = log_in(&directory);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..3000_u64 {
                let payload = number.to_le_bytes().repeat(8);
                log.append(&payload, Level::Visible).unwrap().wait().unwrap();
            }
            done.store(1, Ordering::Release);
        });
        let mut records =
            log.records(None).filter(|r| r.as_ref().unwrap().kind() == crate::Kind::Entry);
        let mut next = 0_u64;
        while next < 3000 {
            let is_done = done.load(Ordering::Acquire) == 1;
            match records.next() {
                Some(record) => {
                    assert_eq!(record.unwrap().payload, next.to_le_bytes().repeat(8));
                    next += 1;
                }
                None => assert!(!is_done, "{next} records"),
            }
        }
    });
}

#[test]
fn futures_wait_for_room_and_for_segments_without_blocking() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().segment_bytes(16 << 10).queue_bytes(1 << 10);
    let log = Log::open(directory.path(), options).unwrap();
    thread::scope(|scope| {
        for writer in 0..8_u8 {
            let log = &log;
            scope.spawn(move || {
                for number in 0..100 {
                    let level = if number % 2 == 0 { Level::Received } else { Level::Persistent };
                    let ack = block_on(log.append_async([writer; 400], level)).unwrap();
                    assert!(ack.level >= level);
                }
            });
        }
    });
    assert!(log.stats().segments > 10);
    log.flush(Level::Visible).unwrap().wait().unwrap();
    let entries = log.records(None).filter(|r| r.as_ref().unwrap().kind() == crate::Kind::Entry);
    assert_eq!(entries.count(), 800);
}

#[test]
fn a_future_on_a_full_disk_is_told_and_later_ones_go_on_when_there_is_room() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk.clone()), options()).unwrap();
    let full = Faults { capacity: Some(2 * SEGMENT_BYTES), ..Faults::default() };
    disk.set_faults(full);
    let error =
        (0..100).find_map(|_| block_on(log.append_async([1; 900], Level::Persistent)).err());
    let error = error.expect("the disk is full");
    assert!(error.to_string().contains("free space"), "{error}");
    let again = block_on(log.append_async([1; 900], Level::Persistent));
    assert_error(again, |error| matches!(error, Error::Io { .. }));
    disk.set_faults(Faults::default());
    for _ in 0..10 {
        block_on(log.append_async([1; 900], Level::Persistent)).unwrap();
    }
}

#[test]
fn futures_after_a_sync_that_failed_are_told() {
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk.clone()), options()).unwrap();
    disk.set_faults(Faults { failing_syncs: [2].into(), ..Faults::default() });
    let outcomes: Vec<_> =
        (0..5).map(|_| block_on(log.append_async([1; 100], Level::Persistent)).is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, false, false]);
}
