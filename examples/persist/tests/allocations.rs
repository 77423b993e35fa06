//! Appending allocates nothing in the steady state: counted over all threads.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use farcall_persist::{Level, Log, Options, Waiter};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 200;
const WINDOW: usize = 8;

/// Far more than any of this takes.
const BOUND: Duration = Duration::from_secs(60);

struct Notify(SyncSender<()>);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        // One wake-up that is not taken yet is enough.
        let _ = self.0.try_send(());
    }
}

fn block_on(mut waiter: Waiter, waker: &Waker, woken: &Receiver<()>) {
    loop {
        match Pin::new(&mut waiter).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(outcome) => return assert!(outcome.is_ok()),
            Poll::Pending => woken.recv_timeout(BOUND).expect("a wake-up"),
        }
    }
}

/// Runs the work once to warm up, then counts.
fn allocations(mut work: impl FnMut()) -> usize {
    work();
    let region = Region::new(ALLOCATOR);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

/// One test, as all threads of the process count.
#[test]
fn appending_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(directory.path(), Options::default()).unwrap();
    let one_by_one = allocations(|| {
        for _ in 0..ROUNDS {
            log.append(&[1; 256], Level::Persistent).unwrap().wait().unwrap();
        }
    });
    assert_eq!(one_by_one, 0, "one writer that waits for each record");

    let window = allocations(|| {
        for _ in 0..ROUNDS / WINDOW {
            let waiters: [Waiter; WINDOW] =
                std::array::from_fn(|_| log.append(&[2; 256], Level::Persistent).unwrap());
            waiters.into_iter().for_each(|waiter| assert!(waiter.wait().is_ok()));
        }
    });
    assert_eq!(window, 0, "a window of records");

    let (sender, woken) = sync_channel(1);
    let waker = Waker::from(Arc::new(Notify(sender)));
    let futures = allocations(|| {
        for _ in 0..ROUNDS {
            block_on(log.append(&[3; 256], Level::Persistent).unwrap(), &waker, &woken);
        }
    });
    assert_eq!(futures, 0, "futures");
}
