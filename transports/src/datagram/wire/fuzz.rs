//! Fuzz targets of datagrams, which any program on the network may send to a queue pair whose key it guessed.

use bolero::{TypeGenerator, check};
use zerocopy::IntoBytes;

use crate::corpus::is_kept;

use super::{HEADER_BYTES, Header, Id, Kind, MESSAGE_BYTES, Message, MessageHeader};

/// Kinds of messages.
const KINDS: u8 = Kind::Challenge as u8;

/// A message to be written.
#[derive(Clone, Debug, TypeGenerator)]
struct Draft {
    kind: u8,
    slot: u16,
    generation: u32,
    mark: u8,
    body: Vec<u8>,
}

impl Draft {
    fn kind(&self) -> Kind {
        Kind::from_wire(self.kind % KINDS + 1).expect("kinds have numbers from 1 on")
    }

    fn write(&self, datagram: &mut Vec<u8>) {
        let Message { kind, id, body } = self.message();
        datagram.extend_from_slice(MessageHeader::new(kind, id, body.len()).as_bytes());
        datagram.extend_from_slice(body);
    }

    fn message(&self) -> Message<'_> {
        let Draft { slot, generation, mark, ref body, .. } = *self;
        Message { kind: self.kind(), id: Id { slot: slot.into(), generation, mark }, body }
    }
}

fn datagram(session: u32, epoch: u64, drafts: &[Draft]) -> Vec<u8> {
    let mut bytes = Header::new(session, epoch).as_bytes().to_vec();
    drafts.iter().for_each(|draft| draft.write(&mut bytes));
    bytes
}

/// Reads all of a datagram: bodies lie in it one after the other, with a header in front of each.
fn read(datagram: &[u8]) {
    let Some((_, _, messages)) = Header::split(datagram) else { return };
    let mut at = HEADER_BYTES;
    for message in messages {
        let body = at + MESSAGE_BYTES..at + MESSAGE_BYTES + message.body.len();
        assert!(std::ptr::eq(message.body, &datagram[body.clone()]), "the bytes {body:?}");
        at = body.end;
        let _ = (message.len(), message.range(), message.over_limit());
        if let Some((_, part)) = message.part() {
            assert!(part.len() < message.body.len());
        }
    }
}

/// Any bytes are no datagram, or messages that lie inside of them.
#[test]
fn any_bytes_are_messages_or_nothing() {
    check!().for_each(|bytes: &[u8]| {
        read(bytes);
        read(&[Header::new(1, 2).as_bytes(), bytes].concat());
    });
}

/// The messages of a datagram are read back as they were written.
#[test]
fn any_messages_are_read_back() {
    check!().with_type::<(u32, u64, Vec<Draft>)>().for_each(|(session, epoch, drafts)| {
        let bytes = datagram(*session, *epoch, drafts);
        let (read_session, read_epoch, messages) = Header::split(&bytes).expect("our own header");
        assert_eq!((read_session, read_epoch), (*session, *epoch));
        assert!(messages.eq(drafts.iter().map(Draft::message)), "{drafts:?}");
        read(&bytes);
    });
}

/// A datagram with a changed byte, and one that is cut short, are no datagram or messages inside of it.
#[test]
fn a_datagram_with_a_changed_byte_is_messages_or_nothing() {
    check!().with_type::<(Vec<Draft>, usize, u8, usize)>().for_each(|(drafts, at, value, cut)| {
        let mut bytes = datagram(7, 8, drafts);
        let (at, cut) = (at % bytes.len(), cut % bytes.len());
        read(&bytes[..cut]);
        bytes[at] = *value;
        read(&bytes);
    });
}

#[test]
fn the_corpus_has_messages_of_each_kind() {
    let draft = |kind: u8| {
        let body = match Kind::from_wire(kind + 1) {
            Some(Kind::Announce | Kind::Lent | Kind::Challenge) => vec![7; 8],
            Some(Kind::Ask | Kind::Progress) => vec![1; 12],
            Some(Kind::OverLimit) => vec![2; 16],
            Some(Kind::Part) => vec![0, 0, 0, 0, 1, 2, 3],
            _ => b"body".to_vec(),
        };
        Draft { kind, slot: 3, generation: 9, mark: 1, body }
    };
    let drafts: Vec<_> = (0..KINDS).map(draft).collect();
    let each =
        drafts.chunks(1).enumerate().map(|(number, one)| (format!("kind-{}", number + 1), one));
    let datagrams = each.chain([("all".to_owned(), &drafts[..])]).map(|(name, drafts)| {
        let bytes = datagram(7, 8, drafts);
        let (_, _, messages) = Header::split(&bytes).expect("our own header");
        assert_eq!(messages.count(), drafts.len(), "{name}");
        (name, bytes)
    });
    let target = "datagram::wire::fuzz::any_bytes_are_messages_or_nothing";
    is_kept("src/datagram/wire", target, datagrams);
}
