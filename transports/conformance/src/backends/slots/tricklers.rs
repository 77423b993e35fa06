//! Clients that hold memory for large messages and move on in small steps, so that they never stand still.

use std::collections::VecDeque;

use farcall::RefusalReason;

use super::{
    forge::{End, kind, message, op, request},
    hostile_clients::hostile_client_with_window,
};
use crate::{
    hostile::{LIMIT, assert_honest_clients_served, assert_served_after_message_limit, serve},
    service::method_id,
    world::World,
};

/// A client whose announced requests are granted, and what it has written of the first.
struct Writer {
    end: End,
    slot: u32,
    /// Where it may write.
    addr: u64,
    rkey: u32,
    /// Bytes of a chunk.
    chunk: usize,
    chunks: usize,
}

impl Writer {
    /// Announces requests as long as may be; `None` if none is granted.
    fn new(mut end: End) -> Option<Writer> {
        for slot in 0..end.terms.window {
            assert!(end.send(slot, &message(1, kind::ANNOUNCE, &LIMIT.to_le_bytes())));
        }
        while let Some((imm, bytes)) = end.next_message() {
            if bytes.get(4) == Some(&kind::GRANT) {
                let addr = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
                let rkey = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
                let chunk = u32::from_le_bytes(bytes[28..32].try_into().expect("four bytes"));
                let (slot, chunk) = (imm & 0x3ff, chunk as usize);
                return Some(Writer { end, slot, addr, rkey, chunk, chunks: 0 });
            }
        }
        None
    }

    /// Writes one more chunk.
    fn move_on(&mut self) {
        let at = self.addr + (self.chunks * self.chunk) as u64;
        self.chunks += 1;
        let imm = self.end.immediate(op::CHUNK, self.slot);
        self.end.write(at, self.rkey, &vec![7; self.chunk], Some(imm));
    }
}

/// Clients that write large requests chunk by chunk, and hold all memory meanwhile, are dropped when a message has taken too long.
pub(crate) fn clients_that_write_chunk_by_chunk_are_dropped(world: &World) {
    let (server, mut honest) = serve(world, 8);
    // Each gets memory for two requests.
    let mut hostile: Vec<_> =
        std::iter::from_fn(|| Writer::new(hostile_client_with_window(world, &server, 8))).collect();
    assert!(hostile.len() > 2, "{} clients hold all memory", hostile.len());
    assert_served_after_message_limit(world, &mut honest, || {
        hostile.iter_mut().for_each(Writer::move_on);
    });
    assert!(server.refused(RefusalReason::Stalled) > 0);
    assert!(hostile[0].end.has_failed(), "the server has not dropped it");
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client with a large response in each slot, which it releases one by one: what it gives back is less than what a large call of
/// another client needs. Where it is more, that client has it in its turn.
struct Reader {
    end: End,
    lent: VecDeque<u32>,
}

impl Reader {
    fn new(mut end: End) -> Reader {
        for slot in 0..end.terms.window {
            // Seed 1, 190,000 bytes.
            assert!(end.send(slot, &request(1, method_id("make"), &[1, 0xb0, 0xcc, 0x0b])));
        }
        let mut reader = Reader { end, lent: VecDeque::new() };
        reader.take_lent();
        let all = reader.end.terms.window as usize;
        assert!(reader.lent.len() > all / 2, "{} responses are lent", reader.lent.len());
        reader
    }

    fn take_lent(&mut self) {
        while let Some((imm, bytes)) = self.end.next_message() {
            if bytes.get(4) == Some(&kind::LENT) {
                self.lent.push_back(imm & 0x3ff);
            }
        }
    }

    /// Releases the response that it got last: it keeps the others.
    fn move_on(&mut self) {
        if let Some(slot) = self.lent.pop_back() {
            self.end.operate(op::RELEASE, slot);
            self.take_lent();
        }
    }
}

/// Clients that read large responses one by one, and hold all memory meanwhile, are dropped when a message has taken too long.
pub(crate) fn clients_that_read_one_by_one_are_dropped(world: &World) {
    let (server, mut honest) = serve(world, 64);
    // Each may hold half of the memory.
    let mut hostile = [(); 2].map(|()| Reader::new(hostile_client_with_window(world, &server, 64)));
    assert_served_after_message_limit(world, &mut honest, || {
        hostile.iter_mut().for_each(Reader::move_on);
    });
    assert!(server.refused(RefusalReason::Stalled) > 0);
    assert!(hostile[0].end.has_failed(), "the server has not dropped it");
    assert_honest_clients_served(world, &server, &mut honest);
}
