use bytes::{BufMut, Bytes};
use std::io::Write;

use super::*;

const MIB: u64 = 1 << 20;

fn buffers(limit: u64) -> Buffers {
    Buffers::with_limit(limit).expect("shared memory")
}

#[test]
fn a_buffer_is_filled_like_a_slice_and_frozen_without_a_copy() {
    let buffers = buffers(MIB);
    let mut buffer = buffers.buffer(100_000).unwrap();
    assert_eq!(buffer.len(), 100_000);
    let mut rest = &mut buffer[..];
    rest.put_u64(7);
    rest.write_all(b"bytes").unwrap();
    buffer.truncate(13);
    let start = buffer.as_ptr();
    let bytes: Bytes = buffer.into();
    assert_eq!((&bytes[..8], &bytes[8..]), (&7_u64.to_be_bytes()[..], &b"bytes"[..]));
    assert_eq!(bytes.as_ptr(), start);
}

#[test]
fn memory_comes_back_when_the_last_part_of_it_is_dropped() {
    let buffers = buffers(MIB);
    let bytes = buffers.buffer(5000).unwrap().freeze();
    let part = bytes.slice(100..200);
    drop(bytes);
    assert_eq!(buffers.snapshot().used, 8192);
    drop(part);
    let BuffersSnapshot { used, bytes, taken, .. } = buffers.snapshot();
    assert_eq!((used, bytes, taken), (0, MIB, 1), "it is kept for the next");
    buffers.trim();
    assert_eq!(buffers.snapshot().bytes, 0);
}

#[test]
fn a_pool_has_a_bound_and_says_what_to_do() {
    let buffers = buffers(MIB);
    let long = buffers.buffer(2 << 20).unwrap_err();
    assert!(matches!(long, BufferError::TooLong { len: 0x20_0000, limit: MIB }), "{long}");
    assert!(matches!(buffers.buffer(0), Err(BufferError::Empty)));
    let held: Vec<_> = (0..16).map(|_| buffers.buffer(60_000).unwrap()).collect();
    let full = buffers.buffer(60_000).unwrap_err();
    assert!(matches!(full, BufferError::Exhausted { used: MIB, limit: MIB, .. }), "{full}");
    drop(held);
    assert!(buffers.buffer(1 << 20).is_ok(), "what is free is used for other sizes");
}

#[test]
fn a_buffer_outlives_its_pool() {
    let mut buffer = buffers(MIB).buffer(10).unwrap();
    buffer.fill(3);
    assert!(Slab::find(&buffer).is_some(), "it can still be sent");
    assert_eq!(buffer.freeze(), [3; 10][..]);
}

#[test]
fn bytes_are_found_in_their_slab_and_no_others() {
    let buffers = buffers(4 * MIB);
    let (one, other) = (buffers.buffer(5000).unwrap(), buffers.buffer(1 << 20).unwrap());
    let found = |bytes: &[u8]| Slab::find(bytes).map(|slab| slab.buffer_size());
    assert_eq!((found(&one), found(&one[4999..])), (Some(8192), Some(8192)));
    assert_eq!(found(&other[100..]), Some(1 << 20));
    assert_eq!(found(&[0; 100]), None);
}

/// NIXL issue 1392: an index that is not cleaned makes each cycle slower.
#[test]
fn a_hundred_thousand_cycles_take_constant_time_and_memory() {
    const BLOCKS: usize = 100;
    const CYCLES: usize = 1000;
    let buffers = buffers(64 * MIB);
    let block = |_| {
        let begin = std::time::Instant::now();
        for at in 0..CYCLES {
            let mut buffer = buffers.buffer(5000 + at * 100).unwrap();
            buffer[0] = 1;
            drop(buffer.freeze());
        }
        (begin.elapsed(), buffers.snapshot().bytes)
    };
    let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
    assert!(blocks.iter().all(|(_, bytes)| *bytes == blocks[0].1), "{blocks:?}");
    let after = buffers.snapshot();
    assert_eq!((after.taken as usize, after.used), (BLOCKS * CYCLES, 0));
    // The quickest of some: others run on this machine.
    let quickest = |blocks: &[(std::time::Duration, u64)]| blocks.iter().map(|it| it.0).min();
    let (first, last) = (quickest(&blocks[..BLOCKS / 4]), quickest(&blocks[3 * BLOCKS / 4..]));
    assert!(last.unwrap() < 3 * first.unwrap(), "{last:?} after {first:?}");
}

/// The same where slabs are freed and allocated each time.
#[test]
fn slabs_that_come_and_go_leave_nothing_behind() {
    let buffers = buffers(MIB);
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    for _ in 0..2000 {
        drop(buffers.buffer(1 << 20).unwrap());
        buffers.trim();
    }
    // Other tests of this process have some, too.
    assert!(files() < before + 1000, "{before}, then {}", files());
    assert_eq!(buffers.snapshot().bytes, 0);
}
