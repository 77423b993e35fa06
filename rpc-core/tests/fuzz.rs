//! A fuzz target alone in its process, because it counts what the process allocates.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::any::type_name;
use std::collections::{BTreeMap, HashMap};

use bolero::check;
use bytes::Bytes;
use farcall_core::codec::{Decode, Opt, Raw, Reader, Seq, Serde, decode};
use serde::Deserialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The most that decoding may allocate for each byte of a message. A map of one entry takes some 400 bytes in memory and
/// three in a message.
const MOST_PER_BYTE: usize = 256;

/// What even the shortest message may cost: an error's text.
const MOST_FOR_NOTHING: usize = 512;

/// Decoding takes a byte or two for each level of these.
#[derive(Deserialize)]
struct Tree(#[expect(dead_code, reason = "only allocated")] Vec<Tree>);

#[derive(Deserialize)]
struct Directory(#[expect(dead_code, reason = "only allocated")] BTreeMap<u8, Directory>);

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

fn decode_within_bounds<F: for<'m> Decode<'m, T>, T>(message: &[u8]) {
    let allocated = bytes_allocated(|| drop(decode::<F, T>(Reader::borrowed(message))));
    let most = MOST_FOR_NOTHING + MOST_PER_BYTE * message.len();
    assert!(allocated <= most, "{allocated} bytes for {} of {}", message.len(), type_name::<T>());
}

/// Decoding allocates in proportion to the message, whatever lengths the message claims.
#[test]
fn decoding_allocates_in_proportion_to_the_message() {
    // Lengths that are there, lengths that are not, and numbers of many bytes.
    const BYTES: [u8; 8] = [0, 1, 2, 3, 0x3f, 0x7f, 0x80, 0xff];
    check!().with_max_len(2048).for_each(|input: &[u8]| {
        let message: Vec<u8> = input.iter().map(|byte| BYTES[usize::from(byte % 8)]).collect();
        decode_within_bounds::<Serde, Tree>(&message);
        decode_within_bounds::<Serde, Directory>(&message);
        decode_within_bounds::<Serde, Vec<Vec<[u64; 4]>>>(&message);
        decode_within_bounds::<Serde, HashMap<u16, String>>(&message);
        decode_within_bounds::<Seq<Opt<(Raw, Serde)>>, Vec<Option<(Bytes, String)>>>(&message);
        decode_within_bounds::<Seq<Seq<Raw>>, Vec<Vec<Vec<u8>>>>(&message);
    });
}
