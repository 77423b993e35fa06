//! What waits to be sent on one stream: frames in their order, and large messages in turn, a part at a time.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use super::buffers::Buffer;
use super::wire::{HEADER_BYTES, Header, Kind, MAX_PART_BYTES};
use crate::contract::Stream;

/// System calls of one turn of one stream: some 500 KiB of large messages.
const WRITES_PER_TURN: usize = 4;

/// Frames and large messages that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Frames, from `start` to `end`; what follows is room.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// A frame that is filled after `end`: its slot, and the bytes of its body.
    staged: Option<(u32, usize)>,
    /// Bodies of frames that were staged when another frame had to be written.
    parked: Vec<(u32, Vec<u8>)>,
    /// Large messages, in turn.
    large: VecDeque<Sending>,
    /// Of the first large message: what is on its way.
    part: Option<Part>,
    /// Slots whose large message has left, and its length.
    left: Vec<(u32, usize)>,
    /// Bytes of large messages have left since the last question.
    has_moved: bool,
}

#[derive(Debug)]
struct Sending {
    slot: u32,
    generation: u32,
    content: Content,
    offset: usize,
}

/// What is sent of a large message.
#[derive(Debug)]
enum Content {
    Whole(Buffer),
    /// It was withdrawn: only the part on its way is still sent. Its memory is that of no message any more, however long the peer takes
    /// to read the part.
    Part(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Whole(buffer) => buffer.as_ref(),
            Content::Part(bytes) => bytes,
        }
    }

    fn is_withdrawn(&self) -> bool {
        matches!(self, Content::Part(_))
    }
}

#[derive(Debug)]
struct Part {
    header: [u8; HEADER_BYTES],
    len: usize,
    /// Bytes that have left, of header and body.
    sent: usize,
}

/// How far a write came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// Everything has left.
    All,
    /// There is more; the stream may have room.
    Some,
    /// The stream has no room.
    Blocked,
}

impl Outbox {
    /// Nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end && self.large.is_empty()
    }

    /// Bytes of frames that wait, large messages apart.
    #[inline]
    pub(super) fn frame_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Room for the body of the slot's frame, which is [posted](Outbox::post) or [staged](Outbox::stage) again.
    #[inline]
    pub(super) fn stage(&mut self, slot: u32, len: usize) -> &mut [u8] {
        if self.staged.is_some_and(|(staged, _)| staged != slot) {
            self.park();
        }
        self.make_room(HEADER_BYTES + len);
        self.staged = Some((slot, len));
        let body = self.end + HEADER_BYTES;
        &mut self.bytes[body..body + len]
    }

    /// Drops the frame that is staged for the slot.
    pub(super) fn unstage(&mut self, slot: u32) {
        self.staged = self.staged.filter(|(staged, _)| *staged != slot);
        self.parked.retain(|(parked, _)| *parked != slot);
    }

    /// The slot's staged frame is filled, and waits to be sent from now on. The header may say fewer bytes than were staged.
    #[inline]
    pub(super) fn post(&mut self, header: Header) {
        match self.staged {
            Some((slot, _)) if slot == header.slot => self.staged = None,
            _ => return self.post_parked(header),
        }
        self.append_header(header);
        self.end += header.len;
    }

    #[cold]
    fn post_parked(&mut self, header: Header) {
        let Some(at) = self.parked.iter().position(|(slot, _)| *slot == header.slot) else {
            panic!("slot {} was posted and is not staged", header.slot);
        };
        let (_, body) = self.parked.swap_remove(at);
        self.push(header, &body[..header.len]);
    }

    /// Makes way for another frame.
    #[cold]
    fn park(&mut self) {
        if let Some((slot, len)) = self.staged.take() {
            let body = self.end + HEADER_BYTES;
            self.parked.retain(|(parked, _)| *parked != slot);
            self.parked.push((slot, self.bytes[body..body + len].to_vec()));
        }
    }

    /// A frame with this body waits from now on.
    pub(super) fn push(&mut self, header: Header, body: &[u8]) {
        if self.staged.is_some() {
            self.park();
        }
        self.make_room(HEADER_BYTES + body.len());
        self.append_header(header);
        self.bytes[self.end..self.end + body.len()].copy_from_slice(body);
        self.end += body.len();
    }

    #[inline]
    fn append_header(&mut self, header: Header) {
        let body = self.end + HEADER_BYTES;
        self.bytes[self.end..body].copy_from_slice(&header.to_bytes());
        self.end = body;
    }

    /// Room for so many bytes after `end`.
    #[inline]
    fn make_room(&mut self, len: usize) {
        if self.bytes.len() - self.end < len {
            self.make_more_room(len);
        }
    }

    #[cold]
    fn make_more_room(&mut self, len: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let needed = self.end + len;
        if self.bytes.len() < needed {
            self.bytes.resize(needed.next_power_of_two(), 0);
        }
    }

    /// A large message that the peer has granted waits for its turns from now on.
    pub(super) fn push_large(&mut self, slot: u32, generation: u32, buffer: Buffer) {
        let content = Content::Whole(buffer);
        self.large.push_back(Sending { slot, generation, content, offset: 0 });
    }

    /// Takes the slot's large message back, except for a part that is on its way. Gives its length; `None` if all of it has left,
    /// or its last part is on its way.
    pub(super) fn withdraw_large(&mut self, slot: u32) -> Option<usize> {
        let wanted = |sending: &Sending| sending.slot == slot && !sending.content.is_withdrawn();
        let at = self.large.iter().position(wanted)?;
        let len = self.large[at].content.bytes().len();
        let begun = self.part.as_ref().filter(|part| at == 0 && part.sent > 0);
        if let Some(part) = begun {
            let sending = &mut self.large[at];
            let end = sending.offset + part.len;
            if end == len {
                return None;
            }
            let rest = sending.content.bytes()[sending.offset..end].to_vec();
            (sending.content, sending.offset) = (Content::Part(rest), 0);
            return Some(len);
        }
        if at == 0 {
            self.part = None;
        }
        self.large.remove(at);
        Some(len)
    }

    /// A large message that has left since the last question: its slot, and its length.
    #[inline]
    pub(super) fn next_left(&mut self) -> Option<(u32, usize)> {
        self.left.pop()
    }

    /// Whether bytes of large messages have left since the last question.
    #[inline]
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Writes as much as a turn may.
    ///
    /// # Errors
    /// The stream is broken.
    #[inline]
    pub(super) fn write(&mut self, stream: &mut Stream) -> io::Result<Written> {
        for _ in 0..WRITES_PER_TURN {
            if self.is_empty() {
                return Ok(Written::All);
            }
            let (offered, sent) = self.write_once(stream)?;
            self.forget(sent);
            if sent < offered {
                return Ok(Written::Blocked);
            }
        }
        Ok(if self.is_empty() { Written::All } else { Written::Some })
    }

    /// Writes once. Gives the bytes that were offered, and those that were taken.
    #[inline]
    fn write_once(&mut self, stream: &mut Stream) -> io::Result<(usize, usize)> {
        let frames = &self.bytes[self.start..self.end];
        let sent = if self.large.is_empty() {
            stream.send(&[IoSlice::new(frames)]).map(|sent| (frames.len(), sent))
        } else {
            self.write_with_part(stream)
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((1, 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok((0, 0)),
            other => other,
        }
    }

    #[cold]
    fn write_with_part(&mut self, stream: &mut Stream) -> io::Result<(usize, usize)> {
        let Outbox { bytes, start, end, large, part, .. } = self;
        let frames = IoSlice::new(&bytes[*start..*end]);
        let Some(sending) = large.front() else { return Ok((0, 0)) };
        let part = part.get_or_insert_with(|| {
            let len = (sending.content.bytes().len() - sending.offset).min(MAX_PART_BYTES);
            let Sending { slot, generation, .. } = *sending;
            let header = Header { kind: Kind::Part, slot, generation, len }.to_bytes();
            Part { header, len, sent: 0 }
        });
        let header = IoSlice::new(&part.header[part.sent.min(HEADER_BYTES)..]);
        let body_sent = part.sent.saturating_sub(HEADER_BYTES);
        let body = &sending.content.bytes()[sending.offset..sending.offset + part.len];
        let body = IoSlice::new(&body[body_sent..]);
        // A part that has begun goes on; otherwise frames overtake it.
        let order = if part.sent > 0 { [header, body, frames] } else { [frames, header, body] };
        let offered = order.iter().map(|slice| slice.len()).sum();
        Ok((offered, stream.send(&order)?))
    }

    /// So many bytes have left.
    #[inline]
    fn forget(&mut self, sent: usize) {
        let mut sent = sent;
        if self.part.as_ref().is_some_and(|part| part.sent > 0) {
            sent = self.forget_part(sent);
        }
        let frames = sent.min(self.end - self.start);
        self.start += frames;
        if self.start == self.end && self.staged.is_none() {
            (self.start, self.end) = (0, 0);
        }
        if sent > frames {
            self.forget_part(sent - frames);
        }
    }

    /// So many bytes, or fewer, have left of the part. Gives the rest.
    fn forget_part(&mut self, sent: usize) -> usize {
        let Some(part) = &mut self.part else { return sent };
        let of_part = sent.min(HEADER_BYTES + part.len - part.sent);
        part.sent += of_part;
        self.has_moved |= of_part > 0;
        if part.sent == HEADER_BYTES + part.len {
            let len = part.len;
            self.part = None;
            self.end_part(len);
        }
        sent - of_part
    }

    /// A part has left: the next large message has its turn.
    fn end_part(&mut self, len: usize) {
        let Some(mut sending) = self.large.pop_front() else { return };
        sending.offset += len;
        if sending.content.is_withdrawn() {
            return;
        }
        let len = sending.content.bytes().len();
        if sending.offset < len {
            self.large.push_back(sending);
        } else {
            self.left.push((sending.slot, len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wait_until_their_bytes_have_left() {
        let mut outbox = Outbox::default();
        let header = Header { kind: Kind::Whole, slot: 0, generation: 1, len: 100 };
        outbox.push(header, &[7; 100]);
        outbox.forget(60);
        assert_eq!(outbox.frame_bytes(), HEADER_BYTES + 40);
        outbox.push(header, &[8; 100]);
        assert_eq!(outbox.frame_bytes(), 2 * HEADER_BYTES + 140);
        outbox.forget(2 * HEADER_BYTES + 140);
        assert!(outbox.is_empty() && outbox.frame_bytes() == 0);
    }
}
