//! Revokes while clients write.

use std::thread;
use std::time::{Duration, Instant};

use farcall::memory::{MemoryError, Remote, RemoteMemory, Rights, Until};

use crate::lender::{self, Lender, REGION_BYTES};

/// Writers go on across the revoke, some with a write that is under way; once it has returned, the memory is its owner's.
pub(crate) fn nothing_lands_after_a_revoke(
    address: &str,
    lender: &Lender,
    change: fn(RemoteMemory) -> RemoteMemory,
    rounds: u8,
) {
    let region = lender.region();
    for round in 0..rounds {
        let lent = region.lend(.., Rights::WRITE, Until::REVOKED).unwrap();
        thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| write_until_refused(address, &lent, change)))
                .collect();
            let begun = || region.load_u64(REGION_BYTES - 8) == u64::MAX;
            lender::wait_until(begun, "a write has landed");
            assert!(lender.memory.revoke(&lent));
            region.write(0, &vec![round; REGION_BYTES]);
            for writer in writers {
                assert_eq!(writer.join().unwrap(), MemoryError::Revoked, "{address}");
            }
        });
        let mut bytes = vec![0; REGION_BYTES];
        region.read(0, &mut bytes);
        let is_its_owners = bytes.iter().all(|byte| *byte == round);
        assert!(is_its_owners, "{address}: a late write in round {round}");
    }
}

fn write_until_refused(
    address: &str,
    lent: &Remote,
    change: fn(RemoteMemory) -> RemoteMemory,
) -> MemoryError {
    let memory = change(RemoteMemory::connect(address).wait().unwrap());
    let bytes = farcall::Bytes::from(vec![0xff; REGION_BYTES]);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(20), "a writer is never refused");
        if let Err(why) = memory.write(lent, bytes.clone()).wait() {
            return why;
        }
    }
}
