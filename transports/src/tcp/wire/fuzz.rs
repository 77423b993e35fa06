//! Fuzz targets of frames, which the peer writes as it likes.

use bolero::{TypeGenerator, check};

use super::*;
use crate::corpus::is_kept;
use crate::tcp::inbox::{Inbox, Next};

fn rules() -> Rules {
    Rules::new(&Terms { window: 8, slot: 256, max_message: 1 << 20 })
}

/// The fields of a header, right or wrong.
#[derive(Clone, Debug, TypeGenerator)]
struct Fields {
    kind: u8,
    slot: u16,
    generation: u32,
    len: u32,
}

/// Any twelve bytes are a header that is written as the same bytes, or break a rule.
#[test]
fn any_bytes_are_a_header_or_nothing() {
    check!().with_type::<[u8; HEADER_BYTES]>().for_each(|bytes| {
        if let Ok(header) = rules().read(bytes) {
            assert_eq!(header.to_bytes(), *bytes);
            assert!(header.slot < 8 && header.len <= MAX_PART_BYTES);
        }
    });
}

/// Every header that keeps the rules is read back as it was written.
#[test]
fn any_header_is_read_back() {
    check!().with_type::<Fields>().for_each(|fields| {
        let kind = Kind::ALL[usize::from(fields.kind) % Kind::ALL.len()];
        let len = match kind {
            Kind::Whole => fields.len as usize % (256 - HEADER_BYTES + 1),
            Kind::Begin => BEGIN_BYTES,
            Kind::Part => 1 + fields.len as usize % MAX_PART_BYTES,
            Kind::Grant | Kind::Cancel | Kind::Dropped | Kind::Goodbye => 0,
        };
        let slot = u32::from(fields.slot % 8);
        let header = Header { kind, slot, generation: fields.generation, len };
        assert_eq!(rules().read(&header.to_bytes()), Ok(header));
    });
}

/// What the frames of these bytes say, read in pieces that end after these numbers of bytes; `None` after a broken rule.
fn read_in_pieces(bytes: &[u8], pieces: &[u8]) -> Vec<Option<(Header, Vec<u8>)>> {
    let mut inbox = Inbox::new(rules());
    let mut said: Vec<Option<(Header, Vec<u8>)>> = Vec::new();
    let mut rest = bytes;
    let mut pieces = pieces.iter().map(|piece| usize::from(*piece) + 1).chain([usize::MAX]);
    while !rest.is_empty() {
        let piece = pieces.next().unwrap_or(usize::MAX).min(rest.len());
        let mut now;
        (now, rest) = rest.split_at(piece);
        loop {
            match inbox.next(&mut now) {
                Ok(Next::Frame(header, body)) => said.push(Some((header, body.to_vec()))),
                Ok(Next::Assembled(header)) => {
                    let frame = inbox.take_assembled();
                    said.push(Some((header, frame[HEADER_BYTES..].to_vec())));
                    inbox.give_back(frame);
                }
                Ok(Next::Bytes(part, bytes)) => {
                    // Pieces of one part are one.
                    let header = Header {
                        kind: Kind::Part,
                        len: 0,
                        slot: part.slot,
                        generation: part.generation,
                    };
                    match said.last_mut() {
                        Some(Some((last, body))) if *last == header => body.extend(bytes),
                        _ => said.push(Some((header, bytes.to_vec()))),
                    }
                }
                Ok(Next::Nothing) => break,
                Err(_) => {
                    said.push(None);
                    return said;
                }
            }
        }
    }
    said
}

/// However the network cuts any bytes, they say the same.
#[test]
fn any_cut_of_any_bytes_says_the_same() {
    check!().with_type::<(Vec<Fields>, Vec<u8>, Vec<u8>)>().for_each(|(frames, tail, pieces)| {
        let mut bytes = Vec::new();
        for Fields { kind, slot, generation, len } in frames {
            let kind = Kind::ALL[usize::from(*kind) % Kind::ALL.len()];
            let len = match kind {
                Kind::Whole | Kind::Part => 1 + *len as usize % 200,
                Kind::Begin => BEGIN_BYTES,
                Kind::Grant | Kind::Cancel | Kind::Dropped | Kind::Goodbye => 0,
            };
            let header = Header { kind, slot: u32::from(slot % 9), generation: *generation, len };
            bytes.extend(header.to_bytes());
            bytes.extend((0..len).map(|at| at as u8));
        }
        bytes.extend(tail);
        let whole = read_in_pieces(&bytes, &[]);
        assert_eq!(read_in_pieces(&bytes, pieces), whole);
        assert_eq!(read_in_pieces(&bytes, &vec![0; bytes.len()]), whole, "byte by byte");
    });
}

/// A large message has a length that is too long for one frame, and not longer than agreed.
#[test]
fn any_announced_length_is_within_the_limits() {
    check!().with_type::<u64>().for_each(|len| {
        let fits = (256 - HEADER_BYTES as u64 + 1..=1 << 20).contains(len);
        assert_eq!(rules().read_begin(&len.to_le_bytes()).is_ok(), fits, "{len}");
    });
}

/// Any bytes are frames and perhaps a broken rule, and the same byte by byte.
#[test]
fn any_bytes_are_frames_or_break_a_rule() {
    check!().with_max_len(1024).for_each(|bytes: &[u8]| {
        let whole = read_in_pieces(bytes, &[]);
        assert_eq!(read_in_pieces(bytes, &vec![0; bytes.len()]), whole);
    });
}

#[test]
fn the_corpus_has_a_frame_of_each_kind() {
    let frames = Kind::ALL.map(|kind| {
        let body = match kind {
            Kind::Whole | Kind::Part => b"body".to_vec(),
            Kind::Begin => 70_000_u64.to_le_bytes().to_vec(),
            Kind::Grant | Kind::Cancel | Kind::Dropped | Kind::Goodbye => Vec::new(),
        };
        let header = Header { kind, slot: 3, generation: 9, len: body.len() };
        let bytes = [&header.to_bytes()[..], &body].concat();
        assert!(!read_in_pieces(&bytes, &[]).contains(&None), "{kind:?}");
        (format!("{kind:?}").to_lowercase(), bytes)
    });
    let all = frames.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let target = "tcp::wire::fuzz::any_bytes_are_frames_or_break_a_rule";
    is_kept("src/tcp/wire", target, frames.into_iter().chain([("all".to_owned(), all)]));
}
