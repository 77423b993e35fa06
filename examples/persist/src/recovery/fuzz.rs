//! The fuzz target of recovery: any bytes of a log may be any others.

use bolero::{TypeGenerator, check};

use super::*;
use crate::storage::sim::SimDisk;
use crate::{Kind, Level, Log, Options, repair, verify};

const SEGMENT_BYTES: u64 = 8 << 10;

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// A log of two segments and an index, and what was appended.
fn a_log() -> (Files, Vec<Vec<u8>>) {
    let disk = SimDisk::new(1);
    let options = Options::default().segment_bytes(SEGMENT_BYTES).queue_bytes(2 << 10);
    let log = Log::open_with(Arc::new(disk.clone()), options, 1).expect("a log");
    let payloads: Vec<Vec<u8>> = (0..24_u8).map(|n| vec![n; 20 * usize::from(n)]).collect();
    for payload in &payloads {
        log.append(payload, Level::Persistent).and_then(|waiter| waiter.wait()).expect("it works");
    }
    log.close().expect("it works");
    drop(log);
    let names = disk.list().expect("it works");
    let files = names.into_iter().map(|name| (disk.contents(&name).expect("it is there"), name));
    (files.map(|(contents, name)| (name, contents)).collect(), payloads)
}

#[derive(Debug, TypeGenerator)]
struct Change {
    file: u8,
    at: u16,
    with: [u8; 3],
}

/// Whatever changes in the files, recovery ends with a log or an error, and a log has nothing that was not appended. So have the offline check
/// and the repair.
#[test]
fn any_changes_of_files_are_an_error_or_a_log_of_what_was_appended() {
    let (files, payloads) = a_log();
    check!().with_type::<Vec<Change>>().for_each(|changes| {
        let mut files = files.clone();
        for change in changes {
            let file = usize::from(change.file) % files.len();
            let (_, contents) = &mut files[file];
            let at = usize::from(change.at) % contents.len();
            let end = (at + change.with.len()).min(contents.len());
            contents[at..end].copy_from_slice(&change.with[..end - at]);
        }
        let disk = SimDisk::new(2);
        files.iter().for_each(|(name, contents)| disk.put(name, contents));
        let storage: Arc<dyn Storage> = Arc::new(disk);
        let _ = verify(&storage, |_| Ok(()));
        for is_repaired in [false, true] {
            if is_repaired && repair(&storage).is_err() {
                return;
            }
            let Ok(log) = Log::open_on(storage.clone(), Options::default()) else { continue };
            let mut expected = payloads.iter();
            for record in log.records(None).map_while(Result::ok) {
                if record.kind() == Kind::Entry {
                    let is_next = expected.any(|payload| *payload == record.payload);
                    assert!(is_next, "{record:?} was not appended, or not after the one before");
                }
            }
        }
    });
}
