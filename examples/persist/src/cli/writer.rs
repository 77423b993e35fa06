//! A process of the demo that writes until it is killed. It prints each acknowledgement after it came.

use std::io::{self, Read, Write};
use std::thread;

use anyhow::{Context, Result};
use farcall_persist::{Ack, Level, Log};

use super::args::WriterArgs;
use super::demo;
use super::stamp::Stamp;

/// How many threads write; each waits for its record, but for those that only want it visible.
const WRITERS: u32 = 4;

pub(crate) fn run(args: &WriterArgs) -> Result<bool> {
    // The demo holds this open. A demo that is killed leaves no writer behind.
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let log = Log::open(&args.dir, demo::options()).context("cannot open the log")?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                scope.spawn({
                    let log = &log;
                    move || write(log, args.round, w)
                })
            })
            .collect();
        for writer in writers {
            writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        Ok(true)
    })
}

/// Every fifth record need only survive a killed process.
fn level_of(sequence: u64) -> Level {
    if sequence % 5 == 4 { Level::Visible } else { Level::Persistent }
}

fn write(log: &Log, round: u32, writer: u32) -> Result<()> {
    for sequence in 0.. {
        let stamp = Stamp { round, writer, sequence };
        let Ack { lsn, level } = log.append(&stamp.payload(), level_of(sequence))?.wait()?;
        let level = u8::from(level == Level::Persistent);
        let line = format!("{lsn} {writer} {sequence} {level}\n");
        // One write each, so that a killed process leaves whole lines or none.
        io::stdout().lock().write_all(line.as_bytes())?;
        io::stdout().flush()?;
    }
    Ok(())
}
