//! Many writers, checkpoints, truncations and flushes at the same time, when the power fails. The order is another each time; what is promised is not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::story::options;
use crate::storage::sim::{Faults, SimDisk};
use crate::{Error, Kind, Level, Log, Lsn};

const WRITERS: u64 = 4;

/// What was acknowledged as persistent.
type Acked = Mutex<BTreeMap<Lsn, Vec<u8>>>;

fn write(log: &Log, writer: u64, acked: &Acked) -> Result<(), Error> {
    for number in 0..400_u64 {
        let payload = (writer << 32 | number).to_le_bytes().repeat(1 + (number % 40) as usize);
        let level = if number % 7 == 0 { Level::Visible } else { Level::Persistent };
        let ack = log.append(&payload, level)?.wait()?;
        if ack.level == Level::Persistent {
            acked.lock().unwrap().insert(ack.lsn, payload);
        }
    }
    Ok(())
}

fn maintain(log: &Log, acked: &Acked, done: &AtomicBool) -> Result<(), Error> {
    while !done.load(Ordering::Relaxed) {
        let middle = {
            let acked = acked.lock().unwrap();
            acked.keys().nth(acked.len() / 2).copied()
        };
        if let Some(restart) = middle {
            log.checkpoint(restart, b"")?;
            log.truncate(restart)?;
        }
        log.flush(Level::Persistent)?.wait()?;
    }
    Ok(())
}

#[test]
fn what_is_acknowledged_survives_whatever_runs_at_the_same_time() {
    for seed in 0..24 {
        let disk = SimDisk::new(seed);
        let log = Log::open_on(Arc::new(disk.clone()), options()).unwrap();
        disk.set_faults(Faults { power_cut_at: Some(40 + seed * 37), ..Faults::default() });
        let (acked, done) = (Acked::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let keeper = scope.spawn(|| maintain(&log, &acked, &done));
            let writers: Vec<_> = (0..WRITERS)
                .map(|w| {
                    scope.spawn({
                        let (log, acked) = (&log, &acked);
                        move || write(log, w, acked)
                    })
                })
                .collect();
            // Those that end before the power fails are done.
            writers.into_iter().for_each(|writer| drop(writer.join().unwrap()));
            done.store(true, Ordering::Relaxed);
            drop(keeper.join().unwrap());
        });
        drop(log);
        disk.power_cycle();
        let log = Log::open_on(Arc::new(disk), options()).unwrap();
        let first = log.first();
        let there: BTreeMap<Lsn, Vec<u8>> = log
            .records(None)
            .map(Result::unwrap)
            .filter(|record| record.kind() == Kind::Entry)
            .map(|record| (record.lsn(), record.payload))
            .collect();
        let acked = acked.into_inner().unwrap();
        assert!(acked.len() > 8, "{} records, seed {seed}", acked.len());
        for (lsn, payload) in acked.range(first..) {
            assert_eq!(there.get(lsn), Some(payload), "seed {seed}, {lsn}");
        }
        for payload in there.values() {
            let stamp = &payload[..8];
            assert!(payload.chunks(8).all(|chunk| chunk == stamp), "seed {seed}");
        }
    }
}
