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
    const CYCLES: usize = 100_000;
    let buffers = buffers(64 * MIB);
    let cycle = |count: usize| {
        let begin = std::time::Instant::now();
        for at in 0..count {
            let mut buffer = buffers.buffer(5000 + at % 1000 * 100).unwrap();
            buffer[0] = 1;
            drop(buffer.freeze());
        }
        begin.elapsed()
    };
    cycle(CYCLES / 10);
    let (before, first) = (buffers.snapshot().bytes, cycle(CYCLES / 10));
    let all = cycle(CYCLES);
    let after = buffers.snapshot();
    assert_eq!((after.bytes, after.used), (before, 0));
    assert_eq!(after.taken as usize, CYCLES + CYCLES / 5);
    // Ten times as many; three times that on a busy machine.
    assert!(all < 30 * first, "{all:?} after {first:?}");
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
