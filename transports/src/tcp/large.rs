//! The large messages of one end: requests that wait to be granted, and messages that arrive.

use std::collections::VecDeque;

use bytes::Bytes;

use super::buffers::{Buffer, Buffers};
use crate::kit::memory::Budget;

/// A message that arrives in parts.
#[derive(Debug)]
pub(super) struct Arriving {
    len: usize,
    filled: usize,
    /// `None`: the call was given up.
    buffer: Option<Buffer>,
}

/// What the arrival of some bytes came to.
#[derive(Debug)]
pub(super) enum Arrived {
    /// More are to come.
    Partly,
    /// The message is whole; `None` if the call was given up.
    Whole(Option<Buffer>),
}

impl Arriving {
    pub(super) fn new(buffer: Buffer) -> Arriving {
        Arriving { len: buffer.len(), filled: 0, buffer: Some(buffer) }
    }

    /// Where the next `left` bytes go, as far as there is memory for them.
    pub(super) fn room(&mut self, left: usize) -> &mut [u8] {
        match &mut self.buffer {
            // More than the message has left is an error that `add` finds.
            Some(buffer) if left <= self.len - self.filled => {
                let room = buffer.room(self.filled);
                let end = room.len().min(left);
                &mut room[..end]
            }
            _ => &mut [],
        }
    }

    /// More bytes of the message; `None` if it has not so many left.
    pub(super) fn add(&mut self, mut bytes: &[u8]) -> Option<Arrived> {
        if bytes.len() > self.len - self.filled {
            return None;
        }
        if self.buffer.is_none() {
            return Some(self.add_landed(bytes.len()));
        }
        let mut arrived = Arrived::Partly;
        while !bytes.is_empty() {
            let room = self.room(bytes.len());
            let (now, rest) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            arrived = self.add_landed(now.len());
            bytes = rest;
        }
        Some(arrived)
    }

    /// So many bytes are in the [room](Arriving::room).
    pub(super) fn add_landed(&mut self, bytes: usize) -> Arrived {
        self.filled += bytes;
        if self.filled == self.len { Arrived::Whole(self.buffer.take()) } else { Arrived::Partly }
    }
}

/// A client's large message of a slot.
#[derive(Debug)]
enum Large {
    None,
    /// A request that its caller fills, or that the server has not granted.
    Request(Buffer),
    /// A response of this length that waits for memory.
    Waiting(usize),
    Arriving(Arriving),
}

/// The large messages of a client.
#[derive(Debug)]
pub(super) struct LargeMessages {
    requests: Buffers,
    /// Apart, so that requests which wait for the server never hold what a response needs, while the server waits for its
    /// response to be taken: neither would move again.
    responses: Buffers,
    /// By slot.
    large: Box<[Large]>,
    /// Slots whose response waits for memory, in order.
    waiting: VecDeque<u32>,
    /// Responses that arrive and hold memory.
    arriving: u32,
}

impl LargeMessages {
    pub(super) fn new(window: u32, memory: u64) -> LargeMessages {
        let half = || Buffers::new(&Budget::new(memory / 2));
        LargeMessages {
            requests: half(),
            responses: half(),
            large: (0..window).map(|_| Large::None).collect(),
            waiting: VecDeque::new(),
            arriving: 0,
        }
    }

    /// Memory for a request of this slot, if there is some now.
    pub(super) fn reserve_request(&mut self, slot: u32, len: usize) -> Option<&mut [u8]> {
        let buffer = self.requests.take(len)?;
        let large = &mut self.large[slot as usize];
        *large = Large::Request(buffer);
        match large {
            Large::Request(buffer) => Some(buffer.bytes_mut()),
            _ => None,
        }
    }

    /// The length of the slot's request.
    pub(super) fn request_len(&self, slot: u32) -> usize {
        match &self.large[slot as usize] {
            Large::Request(buffer) => buffer.len(),
            _ => 0,
        }
    }

    /// The slot's request, to be sent.
    pub(super) fn take_request(&mut self, slot: u32) -> Option<Buffer> {
        match std::mem::replace(&mut self.large[slot as usize], Large::None) {
            Large::Request(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// A whole response, for the program.
    pub(super) fn hand_over(&self, response: Buffer) -> Bytes {
        self.responses.hand_over(response)
    }

    /// The slot's response of `len` bytes waits for memory.
    pub(super) fn wait_for_memory(&mut self, slot: u32, len: usize) {
        self.large[slot as usize] = Large::Waiting(len);
        self.waiting.push_back(slot);
    }

    /// Some response waits for memory, which comes back without an event.
    #[inline]
    pub(super) fn wants_memory(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives memory to the response that has waited longest. Gives its slot.
    ///
    /// One response always arrives, even beyond the budget: answers that came in another order than their caller takes them may
    /// hold all of it, and the caller waits for this one.
    pub(super) fn admit(&mut self) -> Option<u32> {
        let slot = *self.waiting.front()?;
        let Large::Waiting(len) = self.large[slot as usize] else {
            self.waiting.pop_front();
            return None;
        };
        let must = self.arriving == 0;
        let beyond = || must.then(|| self.responses.take_beyond(len)).flatten();
        let buffer = self.responses.take(len).or_else(beyond)?;
        self.large[slot as usize] = Large::Arriving(Arriving::new(buffer));
        self.waiting.pop_front();
        self.arriving += 1;
        Some(slot)
    }

    /// Where the next bytes of the slot's response go, as far as there is memory for them; none if the call was given up.
    pub(super) fn room_for(&mut self, slot: u32, left: usize) -> &mut [u8] {
        match &mut self.large[slot as usize] {
            Large::Arriving(arriving) => arriving.room(left),
            _ => &mut [],
        }
    }

    /// More bytes of the slot's response; `None` if it has not so many left.
    pub(super) fn add(&mut self, slot: u32, bytes: &[u8]) -> Option<Arrived> {
        let Large::Arriving(arriving) = &mut self.large[slot as usize] else { return None };
        let arrived = arriving.add(bytes);
        self.note_arrival(arrived.as_ref());
        arrived
    }

    /// So many bytes are in the [room](LargeMessages::room_for).
    pub(super) fn add_landed(&mut self, slot: u32, bytes: usize) -> Arrived {
        let Large::Arriving(arriving) = &mut self.large[slot as usize] else {
            return Arrived::Partly;
        };
        let arrived = arriving.add_landed(bytes);
        self.note_arrival(Some(&arrived));
        arrived
    }

    fn note_arrival(&mut self, arrived: Option<&Arrived>) {
        if let Some(Arrived::Whole(Some(_))) = arrived {
            self.arriving -= 1;
        }
    }

    /// The slot's call was given up; what still arrives of it needs no memory.
    pub(super) fn forget_response(&mut self, slot: u32) {
        if let Large::Arriving(arriving) = &mut self.large[slot as usize]
            && arriving.buffer.take().is_some()
        {
            self.arriving -= 1;
        }
    }

    /// The slot has no large message any more.
    pub(super) fn forget(&mut self, slot: u32) {
        match std::mem::replace(&mut self.large[slot as usize], Large::None) {
            Large::Arriving(arriving) => self.arriving -= u32::from(arriving.buffer.is_some()),
            Large::Waiting(_) => self.waiting.retain(|waiting| *waiting != slot),
            Large::Request(_) | Large::None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 5000;

    /// Whichever way it ends, and whoever keeps what has arrived.
    #[test]
    fn one_response_at_a_time_arrives_beyond_the_memory() {
        let mut large = LargeMessages::new(5, 0);
        for slot in 0..5 {
            large.wait_for_memory(slot, LEN);
        }
        assert_eq!((large.admit(), large.admit()), (Some(0), None));
        let copied = large.add(0, &[7; LEN]);
        assert!(matches!(copied, Some(Arrived::Whole(Some(_)))), "{copied:?}");
        assert_eq!((large.admit(), large.admit()), (Some(1), None));
        large.room_for(1, LEN).fill(7);
        let landed = large.add_landed(1, LEN);
        assert!(matches!(landed, Arrived::Whole(Some(_))), "{landed:?}");
        assert_eq!((large.admit(), large.admit()), (Some(2), None));
        large.forget_response(2);
        assert_eq!((large.admit(), large.admit()), (Some(3), None));
        // What still comes of one that was given up ends nothing again.
        assert!(matches!(large.add(2, &[7; LEN]), Some(Arrived::Whole(None))));
        assert_eq!(large.admit(), None);
        large.forget(3);
        assert_eq!(large.admit(), Some(4));
    }
}
