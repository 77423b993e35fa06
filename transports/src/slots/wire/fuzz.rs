//! Fuzz targets of immediates and slots, which the peer writes as it likes.

use crate::rendezvous::wire::{Announce, Grant, Here, Lent, OverLimit, WireRegion};
use bolero::{TypeGenerator, check};
use farcall_verbs::RemoteRegion;

use super::*;
use crate::corpus::is_kept;

/// An immediate of any operation.
#[derive(Clone, Debug, TypeGenerator)]
struct Fields {
    op: u32,
    client: u32,
    slot: u32,
}

const OPS: [Op; 8] = [
    Op::Message,
    Op::Chunk,
    Op::Cancel,
    Op::Release,
    Op::Goodbye,
    Op::Dropped,
    Op::Mode,
    Op::Credit,
];

const KINDS: [Kind; 7] = [
    Kind::Inline,
    Kind::Announce,
    Kind::Grant,
    Kind::Lent,
    Kind::OverLimit,
    Kind::RequestHere,
    Kind::ResponseHere,
];

/// Any 32 bits are an immediate that is written as the same bits.
#[test]
fn any_bits_are_an_immediate() {
    check!().with_type::<u32>().cloned().for_each(|wire| {
        let immediate = Immediate::from_wire(wire);
        assert_eq!(immediate.to_wire(), wire, "{immediate:?}");
    });
}

/// Every immediate is read back as it was written, and only messages are taken for messages.
#[test]
fn any_immediate_is_read_back() {
    check!().with_type::<Fields>().for_each(|fields| {
        let op = OPS[fields.op as usize % OPS.len()];
        let (client, slot) = (fields.client % MAX_CLIENTS, fields.slot % (1 << SLOT_BITS));
        let immediate = Immediate { op, client, slot };
        let wire = immediate.to_wire();
        assert_eq!(Immediate::from_wire(wire), immediate);
        assert_eq!(Immediate::message_of(client, wire), (op == Op::Message).then_some(slot));
        assert_eq!(Immediate::message_of(client ^ 1, wire), None);
    });
}

/// Any bytes of a slot are a message whose body is the rest of them, or nothing.
#[test]
fn any_bytes_are_a_message_or_nothing() {
    check!().for_each(|bytes: &[u8]| {
        let Some((generation, kind, body)) = split(bytes) else {
            let is_known = bytes.get(4).is_some_and(|kind| Kind::from_wire(*kind).is_some());
            return assert!(bytes.len() < HEADER_BYTES || !is_known, "{bytes:x?}");
        };
        assert!(std::ptr::eq(body, &bytes[HEADER_BYTES..]));
        assert_eq!((&bytes[..4], bytes[4]), (&generation.to_le_bytes()[..], kind as u8));
    });
}

/// Every header is read back as it was written, and touches no byte of the body.
#[test]
fn any_header_is_read_back() {
    check!().with_type::<(u32, u8, Vec<u8>)>().for_each(|(generation, kind, body)| {
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        let mut message = [&[0xaa; HEADER_BYTES][..], body].concat();
        put_header(&mut message, *generation, kind);
        assert_eq!(split(&message), Some((*generation, kind, &body[..])));
    });
}

/// Any bytes are a control message's body if there are exactly as many, and its region is written as the same bytes.
#[test]
fn any_control_message_is_read_whole_or_not_at_all() {
    check!().with_max_len(64).for_each(|body: &[u8]| {
        let is_whole = |size: usize| body.len() == size;
        assert_eq!(Announce::read_from_bytes(body).is_ok(), is_whole(size_of::<Announce>()));
        assert_eq!(OverLimit::read_from_bytes(body).is_ok(), is_whole(size_of::<OverLimit>()));
        assert_eq!(Lent::read_from_bytes(body).is_ok(), is_whole(size_of::<Lent>()));
        assert_eq!(Grant::read_from_bytes(body).is_ok(), is_whole(size_of::<Grant>()));
        assert_eq!(Here::read_from_bytes(body).is_ok(), is_whole(size_of::<Here>()));
        if let Ok((here, _)) = Here::read_from_prefix(body) {
            assert!(here.message_len() >= RemoteRegion::from(here.region).len);
        }
        if let Ok((Lent { region, part }, _)) = Lent::read_from_prefix(body) {
            let again = Lent { region: RemoteRegion::from(region).into(), part };
            assert_eq!(again.as_bytes(), &body[..size_of::<Lent>()]);
        }
    });
}

#[test]
fn the_corpora_have_a_message_of_each_kind() {
    let region = WireRegion::from(RemoteRegion::new(0x7f00_0000_1000, 9, 4096));
    let bodies = [
        (Kind::Inline, b"body".to_vec()),
        (Kind::Announce, Announce { len: 70_000.into() }.as_bytes().to_vec()),
        (Kind::Grant, Grant { region, chunk: 1024.into() }.as_bytes().to_vec()),
        (Kind::Lent, Lent { region, part: 1024.into() }.as_bytes().to_vec()),
        (Kind::OverLimit, OverLimit { len: 200.into(), max: 100.into() }.as_bytes().to_vec()),
        (Kind::RequestHere, Here { region, front: *b"in front" }.as_bytes().to_vec()),
        (Kind::ResponseHere, Here { region, front: *b"in front" }.as_bytes().to_vec()),
    ];
    let (mut messages, mut controls) = (Vec::new(), Vec::new());
    for (kind, body) in bodies {
        let mut message = [&[0; HEADER_BYTES][..], &body].concat();
        put_header(&mut message, 7, kind);
        put_note(&mut message, 3);
        assert_eq!(split(&message), Some((7, kind, &body[..])));
        let name = format!("{kind:?}").to_lowercase();
        messages.push((name.clone(), message));
        if kind != Kind::Inline {
            controls.push((name, body));
        }
    }
    let of = |target: &str| format!("slots::wire::fuzz::{target}");
    let folder = "src/slots/wire";
    is_kept(folder, &of("any_bytes_are_a_message_or_nothing"), messages);
    is_kept(folder, &of("any_control_message_is_read_whole_or_not_at_all"), controls);
}
