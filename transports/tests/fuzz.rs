//! A fuzz target alone in its process, because it counts what the process allocates.
#![forbid(unsafe_code)]

use std::alloc::System;

use bolero::check;
use farcall_transports::handshake::{Frame, MAX_BODY_BYTES};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The most that a frame may allocate for each byte of its body: an empty string in a list takes one byte in the body and
/// 24 in memory, or twice as much when the list grows.
const MOST_PER_BYTE: usize = 64;

/// The bytes that the work allocates: the least of three runs, because the test program's main thread allocates too, once the
/// test has begun.
fn bytes_allocated(work: impl Fn()) -> usize {
    let once = || {
        let region = Region::new(GLOBAL);
        work();
        region.change().bytes_allocated
    };
    once().min(once()).min(once())
}

/// A frame allocates in proportion to its body, whatever lengths the body claims.
#[test]
fn a_frame_allocates_in_proportion_to_its_body() {
    // Discriminants, lengths that are there, and lengths that are not.
    const BYTES: [u8; 8] = [0, 1, 2, 3, 8, 0x7f, 0x80, 0xff];
    check!().with_max_len(MAX_BODY_BYTES).for_each(|input: &[u8]| {
        let body: Vec<u8> = input.iter().map(|byte| BYTES[usize::from(byte % 8)]).collect();
        let allocated = bytes_allocated(|| drop(Frame::from_body(&body)));
        assert!(allocated <= MOST_PER_BYTE * body.len(), "{allocated} bytes for {}", body.len());
    });
}
