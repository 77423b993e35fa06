//! The fuzz target of segment headers: a disk may hold any bytes.

use bolero::check;

use super::*;
use crate::corpus;

const TARGET: &str = "segment::fuzz::any_bytes_are_a_header_or_none";

/// Any bytes are a header that is written as the same bytes, or none.
#[test]
fn any_bytes_are_a_header_or_none() {
    check!().for_each(|bytes: &[u8]| {
        if let Ok(header) = SegmentHeader::parse("file", bytes) {
            assert_eq!(header.encode()[COVERED_FROM..60], bytes[COVERED_FROM..60]);
        }
    });
}

/// So are bytes whose magic, version and checksum are right.
#[test]
fn any_fields_are_a_header_or_none() {
    check!().with_type::<[u8; 48]>().for_each(|fields| {
        let mut block = vec![0; 64];
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&crc32fast::hash(fields).to_le_bytes());
        block[COVERED_FROM..].copy_from_slice(fields);
        if let Ok(header) = SegmentHeader::parse("file", &block) {
            assert_eq!(header.encode()[COVERED_FROM..60], block[COVERED_FROM..60]);
        }
    });
}

#[test]
fn the_corpus_has_a_header() {
    let header = SegmentHeader {
        log_id: 1,
        number: 2,
        segment_bytes: 1 << 20,
        checkpoint: Lsn(1 << 20),
        epoch: 3,
    };
    let bytes = header.encode()[..size_of::<Raw>()].to_vec();
    corpus::is_kept("src/segment", TARGET, [("header".to_owned(), bytes)]);
}
