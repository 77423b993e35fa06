//! The frames in the bytes that arrive on one stream, however the network has cut them.

use super::wire::{HEADER_BYTES, Header, Kind, Rules};

/// What the bytes that have arrived say next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'b> {
    /// A frame, and its body.
    Frame(Header, &'b [u8]),
    /// A frame that came in several reads; [`Inbox::take_assembled`] gives its bytes.
    Assembled(Header),
    /// Some bytes of a large message.
    Bytes(Incoming, &'b [u8]),
    /// Nothing more for now.
    Nothing,
}

/// Whose bytes come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incoming {
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// Bytes of the part that are still to come.
    pub(super) left: usize,
}

/// The beginning of the frame that has not arrived whole.
#[derive(Debug)]
pub(super) struct Inbox {
    rules: Rules,
    /// The frame that is put together, if `filled` is not 0; its memory is kept.
    partial: Vec<u8>,
    filled: usize,
    needed: usize,
    part: Option<Incoming>,
}

/// The rule that the peer broke.
pub(super) type Misbehaved = &'static str;

impl Inbox {
    pub(super) fn new(rules: Rules) -> Inbox {
        Inbox { rules, partial: Vec::new(), filled: 0, needed: 0, part: None }
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The large message whose bytes come next, if it is one's turn.
    #[inline]
    pub(super) fn incoming(&self) -> Option<Incoming> {
        self.part
    }

    /// So many bytes of that message have been read past this inbox.
    pub(super) fn skip(&mut self, bytes: usize) {
        if let Some(part) = &mut self.part {
            part.left -= bytes;
            if part.left == 0 {
                self.part = None;
            }
        }
    }

    /// What the bytes say next; takes it out of them.
    ///
    /// # Errors
    /// The rule that the peer broke.
    #[inline]
    pub(super) fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Next<'b>, Misbehaved> {
        if self.filled > 0 || self.part.is_some() {
            return self.go_on(bytes);
        }
        let Some((header, rest)) = bytes.split_first_chunk() else { return Ok(self.keep(bytes)) };
        let header = self.rules.read(header)?;
        if header.kind == Kind::Part {
            *bytes = rest;
            self.begin_part(header);
            return self.go_on(bytes);
        }
        let Some((body, rest)) = rest.split_at_checked(header.len) else {
            let next = self.keep(bytes);
            self.needed = HEADER_BYTES + header.len;
            return Ok(next);
        };
        *bytes = rest;
        Ok(Next::Frame(header, body))
    }

    /// Keeps the beginning of a frame, if there is one.
    fn keep<'b>(&mut self, bytes: &mut &'b [u8]) -> Next<'b> {
        if bytes.is_empty() {
            return Next::Nothing;
        }
        self.partial.clear();
        // Once for all frames: the longest may be cut next.
        self.partial.reserve_exact(HEADER_BYTES + self.rules.max_whole);
        self.partial.extend_from_slice(bytes);
        (self.filled, self.needed) = (bytes.len(), HEADER_BYTES);
        *bytes = &[];
        Next::Nothing
    }

    fn begin_part(&mut self, header: Header) {
        let Header { slot, generation, len, .. } = header;
        self.part = Some(Incoming { slot, generation, left: len });
    }

    #[cold]
    fn go_on<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Next<'b>, Misbehaved> {
        loop {
            if let Some(part) = self.part {
                let (taken, rest) = bytes.split_at(part.left.min(bytes.len()));
                if taken.is_empty() {
                    return Ok(Next::Nothing);
                }
                *bytes = rest;
                self.skip(taken.len());
                return Ok(Next::Bytes(part, taken));
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(self.needed - self.filled));
            self.partial.extend_from_slice(taken);
            self.filled += taken.len();
            *bytes = rest;
            if self.filled < self.needed {
                return Ok(Next::Nothing);
            }
            let Some(header) = self.partial.first_chunk() else { return Err("no header") };
            let header = self.rules.read(header)?;
            if header.kind == Kind::Part {
                self.filled = 0;
                self.begin_part(header);
                continue;
            }
            self.needed = HEADER_BYTES + header.len;
            if self.filled == self.needed {
                self.filled = 0;
                return Ok(Next::Assembled(header));
            }
        }
    }

    /// The bytes of an assembled frame, with its header. To be [given back](Inbox::give_back), for the next.
    pub(super) fn take_assembled(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }

    /// The memory of an assembled frame is free.
    pub(super) fn give_back(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.partial = bytes;
    }
}
