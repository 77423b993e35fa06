//! Fuzz targets of grants, credits and chunks, which the peer sends as it likes.

use bolero::{TypeGenerator, check};
use farcall_verbs::RemoteRegion;

use super::*;
use crate::corpus::is_kept;

/// A grant, and what happens then.
#[derive(Clone, Debug, TypeGenerator)]
struct Draft {
    len: u64,
    region: u64,
    chunk: u32,
    credits: Vec<bool>,
}

/// Under any grant and any credits, each chunk lies in the message and in the region.
fn stays_inside(Draft { len, region, chunk, credits }: &Draft) {
    let grant = Grant { region: RemoteRegion::new(0, 0, *region).into(), chunk: (*chunk).into() };
    let Some(mut outgoing) = Outgoing::new(*len, &grant, *region) else { return };
    let mut next = 0;
    for is_credit in credits {
        if *is_credit && !outgoing.credit() {
            return;
        }
        let Some(Chunk { offset, ring_offset, len: bytes }) = outgoing.next() else { continue };
        assert!(bytes > 0 && offset == next && bytes <= len - offset);
        assert!(ring_offset <= *region && bytes <= region - ring_offset);
        next = offset + bytes;
        outgoing.sent();
    }
    assert_eq!(outgoing.is_done(), next == *len);
}

#[test]
fn any_grant_and_credits_stay_inside() {
    check!().with_type::<Draft>().for_each(stays_inside);
}

/// The same of lengths that differ less, with bytes as the steps.
#[test]
fn any_small_grant_and_credits_stay_inside() {
    check!().for_each(|bytes: &[u8]| {
        let [len, region, chunk, steps @ ..] = bytes else { return };
        let credits = steps.iter().map(|step| step % 2 == 1).collect();
        let (len, region, chunk) = (u64::from(*len), u64::from(*region), u32::from(*chunk));
        stays_inside(&Draft { len, region, chunk, credits });
    });
}

/// Chunks of any lengths land in turn, inside of the request, or are refused.
#[test]
fn any_chunks_land_inside_or_are_refused() {
    check!().with_type::<(u64, Vec<u64>)>().for_each(|(len, chunks)| {
        let len = len % (1 << 24);
        let Some(mut incoming) = Incoming::new(len, LONGEST_CHUNK_BYTES) else {
            return assert_eq!(len, 0);
        };
        let mut next = 0;
        let chunks = chunks.iter().map(|bytes| bytes % (2 * LONGEST_CHUNK_BYTES));
        for bytes in chunks.chain([LONGEST_CHUNK_BYTES; 64]) {
            let Some(chunk) = incoming.land(bytes) else { continue };
            assert!(chunk.offset == next && chunk.len == bytes && bytes <= len - next);
            assert!(chunk.ring_offset + bytes <= incoming.ring_bytes());
            next += bytes;
        }
        assert_eq!(incoming.is_done(), next == len);
    });
}

#[test]
fn the_corpus_has_transfers() {
    let steps = |steps: &[u8]| [&[100, 30, 10], steps].concat();
    let inputs = [
        ("in-turn", steps(&[0, 0, 0, 1, 1, 1, 1, 1, 1, 1])),
        ("too-early", steps(&[1, 0])),
        ("one-chunk", vec![10, 10, 16, 0]),
        ("no-room", vec![100, 5, 10]),
    ];
    let target = "rendezvous::chunks::fuzz::any_small_grant_and_credits_stay_inside";
    let inputs = inputs.map(|(name, bytes)| (name.to_owned(), bytes));
    is_kept("src/rendezvous/chunks", target, inputs);
}
