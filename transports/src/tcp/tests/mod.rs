//! What is sent, tested over streams that take as many bytes as a test says.

mod arrivals;
mod tricklers;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};

use super::Tcp;
use super::buffers::Buffers;
use super::inbox::{Inbox, Next};
use super::outbox::{Outbox, Written};
use super::wire::{HEADER_BYTES, Header, Kind, MAX_PART_BYTES, Rules};
use crate::contract::{Backend, ByteStream, Fabric, Stream, Terms};
use crate::kit::memory::Budget;

/// What was sent, and how much more is taken.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    room: usize,
    calls: usize,
}

struct Narrow(Arc<Mutex<Sent>>);

impl ByteStream for Narrow {
    fn receive(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut sent = self.0.lock().unwrap();
        sent.calls += 1;
        let before = sent.bytes.len();
        for slice in bytes {
            let taken = slice.len().min(sent.room);
            sent.room -= taken;
            sent.bytes.extend_from_slice(&slice[..taken]);
        }
        match sent.bytes.len() - before {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn arm(&mut self, _: bool) -> bool {
        true
    }
}

fn narrow(room: usize) -> (Stream, Arc<Mutex<Sent>>) {
    let sent = Arc::new(Mutex::new(Sent { room, ..Sent::default() }));
    (Stream::Custom(Box::new(Narrow(Arc::clone(&sent)))), sent)
}

fn whole(outbox: &mut Outbox, slot: u32, body: &[u8]) {
    outbox.stage(slot, body.len()).copy_from_slice(body);
    outbox.post(Header { kind: Kind::Whole, slot, generation: 1, len: body.len() });
}

/// Kind, slot and length of the frames in these bytes; those of one message's parts are added up.
fn frames(bytes: &[u8]) -> Vec<(Kind, u32, usize)> {
    let terms = Terms { window: 64, slot: 4096, max_message: 1 << 30 };
    let (mut inbox, mut rest) = (Inbox::new(Rules::new(&terms)), bytes);
    let mut found: Vec<(Kind, u32, usize)> = Vec::new();
    loop {
        match inbox.next(&mut rest).unwrap() {
            Next::Frame(header, _) => found.push((header.kind, header.slot, header.len)),
            Next::Bytes(part, bytes) => found.push((Kind::Part, part.slot, bytes.len())),
            Next::Assembled(_) => panic!("the bytes come at once"),
            Next::Nothing => return found,
        }
    }
}

#[test]
fn the_frames_of_a_turn_leave_with_one_system_call() {
    let (mut stream, sent) = narrow(usize::MAX);
    let mut outbox = Outbox::default();
    for slot in 0..32 {
        whole(&mut outbox, slot, &[slot as u8; 40]);
    }
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::All);
    assert_eq!(sent.lock().unwrap().calls, 1);
    let expected: Vec<_> = (0..32).map(|slot| (Kind::Whole, slot, 40)).collect();
    assert_eq!(frames(&sent.lock().unwrap().bytes), expected);
}

#[test]
fn a_stream_that_takes_any_number_of_bytes_loses_none() {
    let buffers = Buffers::new(&Budget::new(1 << 30));
    for room in [1, 7, HEADER_BYTES, 100, 4_000, MAX_PART_BYTES] {
        let (mut stream, sent) = narrow(0);
        let mut outbox = Outbox::default();
        let (mut expected, mut left) = (Vec::new(), 0);
        for slot in 0..3 {
            let len = 5_000 * (slot as usize + 1);
            let mut message = buffers.take(len).unwrap();
            message.bytes_mut().fill(slot as u8);
            outbox.push_large(slot, 1, message);
            expected.push((Kind::Part, slot, len));
        }
        for turn in 0..1_000_000 {
            if turn < 40 {
                whole(&mut outbox, 10 + turn, &[9; 30]);
                expected.push((Kind::Whole, 10 + turn, 30));
            }
            sent.lock().unwrap().room = room;
            outbox.write(&mut stream).unwrap();
            while outbox.next_left().is_some() {
                left += 1;
            }
            if outbox.is_empty() {
                break;
            }
        }
        let mut found = frames(&sent.lock().unwrap().bytes);
        let of_part = |(kind, _, _): &(Kind, u32, usize)| *kind == Kind::Part;
        let order: Vec<_> = found.iter().filter(|it| !of_part(it)).map(|it| it.1).collect();
        assert!(order.is_sorted(), "frames keep their order");
        found.sort_by_key(|(kind, slot, _)| (*kind as u8, *slot));
        expected.sort_by_key(|(kind, slot, _)| (*kind as u8, *slot));
        assert_eq!((found, left), (expected, 3), "{room} bytes at a time");
    }
}

#[test]
fn large_messages_take_turns_and_frames_overtake_them() {
    let buffers = Buffers::new(&Budget::new(1 << 30));
    let (mut stream, sent) = narrow(usize::MAX);
    let mut outbox = Outbox::default();
    for slot in 0..2 {
        let mut message = buffers.take(2 * MAX_PART_BYTES).unwrap();
        message.bytes_mut();
        outbox.push_large(slot, 1, message);
    }
    whole(&mut outbox, 5, b"first");
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::All);
    let part = |slot| (Kind::Part, slot, MAX_PART_BYTES);
    let expected = [(Kind::Whole, 5, 5), part(0), part(1), part(0), part(1)];
    assert_eq!(frames(&sent.lock().unwrap().bytes), expected);
}

#[test]
fn a_message_that_is_taken_back_ends_with_the_part_on_its_way() {
    let buffers = Buffers::new(&Budget::new(1 << 30));
    let (mut stream, sent) = narrow(1_000);
    let mut outbox = Outbox::default();
    let message = || {
        let mut message = buffers.take(3 * MAX_PART_BYTES).unwrap();
        message.bytes_mut();
        message
    };
    outbox.push_large(0, 1, message());
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::Blocked);
    outbox.push_large(1, 1, message());
    assert_eq!(outbox.withdraw_large(0), Some(3 * MAX_PART_BYTES));
    assert_eq!(outbox.withdraw_large(0), None, "only once");
    assert_eq!(outbox.withdraw_large(1), Some(3 * MAX_PART_BYTES));
    outbox.push(Header::bare(Kind::Cancel, 0, 1), &[]);
    sent.lock().unwrap().room = usize::MAX;
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::All);
    let expected = [(Kind::Part, 0, MAX_PART_BYTES), (Kind::Cancel, 0, 0)];
    assert_eq!(frames(&sent.lock().unwrap().bytes), expected);
    assert_eq!(outbox.next_left(), None);
}

#[test]
fn a_message_whose_last_part_is_on_its_way_cannot_be_taken_back() {
    let buffers = Buffers::new(&Budget::new(1 << 30));
    let (mut stream, sent) = narrow(MAX_PART_BYTES + 100);
    let mut outbox = Outbox::default();
    let mut message = buffers.take(MAX_PART_BYTES + 1_000).unwrap();
    message.bytes_mut();
    outbox.push_large(0, 1, message);
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::Blocked);
    assert_eq!(outbox.withdraw_large(0), None);
    sent.lock().unwrap().room = usize::MAX;
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::All);
    assert_eq!(outbox.next_left(), Some((0, MAX_PART_BYTES + 1_000)), "the peer got all of it");
}

#[test]
fn a_frame_that_is_still_filled_lets_others_pass() {
    let (mut stream, sent) = narrow(usize::MAX);
    let mut outbox = Outbox::default();
    outbox.stage(1, 3).copy_from_slice(b"one");
    whole(&mut outbox, 2, b"second");
    outbox.stage(3, 3).copy_from_slice(b"not");
    outbox.push(Header::bare(Kind::Cancel, 4, 1), &[]);
    outbox.unstage(3);
    outbox.post(Header { kind: Kind::Whole, slot: 1, generation: 1, len: 3 });
    assert_eq!(outbox.write(&mut stream).unwrap(), Written::All);
    let expected = [(Kind::Whole, 2, 6), (Kind::Cancel, 4, 0), (Kind::Whole, 1, 3)];
    assert_eq!(frames(&sent.lock().unwrap().bytes), expected);
    assert!(sent.lock().unwrap().bytes.ends_with(b"one"));
}

#[test]
fn a_device_is_refused_with_the_address_that_would_do() {
    let device = farcall_verbs::Device::open("shm").unwrap();
    let refused = Tcp.check(&Fabric::Verbs(&device)).unwrap_err().to_string();
    assert!(refused.contains("tcp://HOST:PORT"), "{refused}");
    assert!(Tcp.check(&Fabric::Stream).is_ok());
}

/// One in many thousand frames is cut, at any byte; each end has memory for that at the first.
#[test]
fn frames_that_are_cut_take_memory_once() {
    let terms = Terms { window: 4, slot: 4096, max_message: 1 << 20 };
    let mut inbox = Inbox::new(Rules::new(&terms));
    let whole = Header::bare(Kind::Whole, 0, 1).to_bytes();
    let mut bytes = &whole[..];
    assert!(matches!(inbox.next(&mut bytes), Ok(Next::Frame(..))));
    assert_eq!(inbox.next(&mut bytes), Ok(Next::Nothing));
    assert_eq!(inbox.take_assembled().capacity(), 0, "none was cut");
    let mut memory = None;
    for cut in 1..HEADER_BYTES + 900 {
        let header = Header { kind: Kind::Whole, slot: 0, generation: 1, len: cut.max(900) };
        let frame = [&header.to_bytes()[..], &vec![7; header.len]].concat();
        let (mut front, mut rest) = frame.split_at(cut);
        assert_eq!(inbox.next(&mut front), Ok(Next::Nothing));
        assert!(matches!(inbox.next(&mut rest), Ok(Next::Assembled(_))));
        let bytes = inbox.take_assembled();
        assert_eq!(*memory.get_or_insert(bytes.as_ptr()), bytes.as_ptr(), "cut at {cut}");
        inbox.give_back(bytes);
    }
}
