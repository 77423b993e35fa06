//! The format, byte by byte: files of version 1 that are kept in the tree.
//!
//! `FARCALL_WRITE_CORPUS=1 cargo test -p farcall-persist golden` writes them again after a change of the format, which needs another version.

use std::path::PathBuf;
use std::sync::Arc;

use crate::storage::Storage;
use crate::storage::sim::SimDisk;
use crate::{Kind, Level, Log, Lsn, Options, verify};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/version-1").join(name)
}

fn options() -> Options {
    Options::default().segment_bytes(8 << 10).queue_bytes(1 << 10)
}

const FILES: [&str; 3] = ["segment-0000000000000001.log", "segment-0000000000000002.log", "index"];

/// Every kind of record, in two segments, with a clean stop.
fn write() -> SimDisk {
    let disk = SimDisk::new(1);
    let log = Log::open_with(Arc::new(disk.clone()), options(), 0x0123_4567_89ab_cdef).unwrap();
    for number in 0..8_u8 {
        let payload = vec![number; 90 * usize::from(number)];
        log.append(&payload, Level::Persistent).unwrap().wait().unwrap();
    }
    log.append_in(9, b"of a transaction", Level::Received).unwrap().wait().unwrap();
    log.commit(9, Level::Persistent).unwrap().wait().unwrap();
    log.append_in(10, b"of another", Level::Visible).unwrap().wait().unwrap();
    log.abort(10, Level::Visible).unwrap().wait().unwrap();
    let restart = log.append(&[0xee; 900], Level::Persistent).unwrap().wait().unwrap().lsn;
    log.checkpoint(restart, b"what the program keeps").unwrap();
    log.append(&[0xff; 400], Level::Persistent).unwrap().wait().unwrap();
    log.close().unwrap();
    disk
}

#[test]
fn files_are_written_as_they_were_in_version_1() {
    let disk = write();
    for name in FILES {
        let written = disk.contents(name).unwrap();
        if std::env::var_os("FARCALL_WRITE_CORPUS").is_some() {
            std::fs::create_dir_all(golden("")).unwrap();
            std::fs::write(golden(name), &written).unwrap();
        }
        let kept = std::fs::read(golden(name)).unwrap_or_default();
        let at = written.iter().zip(&kept).position(|(a, b)| a != b);
        assert!(at.is_none() && written.len() == kept.len(), "{name} differs, at byte {at:?}");
    }
    let mut names = disk.list().unwrap();
    names.sort_unstable_by_key(|name| FILES.iter().position(|file| file == name));
    assert_eq!(names, FILES);
}

/// A log of version 1 is opened, read, continued, and read again.
#[test]
fn files_of_version_1_are_read() {
    let disk = SimDisk::new(2);
    for name in FILES {
        disk.put(name, &std::fs::read(golden(name)).unwrap());
    }
    let storage: Arc<dyn Storage> = Arc::new(disk);
    let mut kinds = Vec::new();
    let report = verify(&storage, |record| {
        kinds.push(record.kind());
        Ok(())
    });
    let report = report.unwrap();
    assert!(report.is_sound() && report.torn.is_none(), "{report:?}");
    for kind in [
        Kind::Entry,
        Kind::Commit,
        Kind::Abort,
        Kind::Checkpoint,
        Kind::Open,
        Kind::Next,
        Kind::Close,
    ] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    let log = Log::open_on(storage, options()).unwrap();
    assert_eq!(log.epoch(), 2);
    let checkpoint = log.last_checkpoint().unwrap().unwrap();
    assert_eq!(checkpoint.payload, b"what the program keeps");
    assert_eq!(log.read(checkpoint.restart).unwrap().payload, [0xee; 900]);
    assert_eq!(log.read(Lsn((8 << 10) + 4096 + 32)).unwrap().payload, []);
    log.append(b"more", Level::Persistent).unwrap().wait().unwrap();
}
