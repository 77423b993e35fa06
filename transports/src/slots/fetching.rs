//! Responses that the client fetches, for carriers whose server leaves them in its memory.

use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{Message, ReplySink};

use super::carrier::{ClientCarrier, Fetched, Found};
use super::window::{Broken, Window};
use super::wire::Op;

impl<C: ClientCarrier> Window<C> {
    /// Calls without a response.
    #[inline]
    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Something is to be read at once.
    #[inline]
    pub(super) fn must_fetch(&self) -> bool {
        self.link.carrier.must_fetch()
    }

    #[inline]
    pub(super) fn fetch(&mut self, now: Instant) {
        let outstanding = self.outstanding();
        if outstanding > 0 {
            self.arrived.make_room(self.slots.len());
        }
        self.link.carrier.look(outstanding, now);
        self.link.fetch_responses();
    }

    /// Mends what was lost of what is fetched, while nothing comes. Gives when to look again.
    pub(super) fn look_for_lost(&mut self) -> PollAt {
        let next = self.link.carrier.look_for_lost();
        self.link.fetch_responses();
        next
    }

    /// Handles the responses that have been read. Answers how many READs have brought nothing.
    #[inline]
    pub(super) fn take_responses(&mut self, sink: &mut dyn ReplySink) -> Result<u32, Broken> {
        let mut in_vain = 0;
        while let Some((what, mut bytes)) = self.arrived.responses.pop() {
            let messages = match what {
                Fetched::Ready => self.take_ready(&mut bytes, sink)?,
                Fetched::Long { slot } => {
                    self.handle_bytes(slot, Message::Borrowed(&bytes), sink)?;
                    1
                }
                Fetched::Nothing => 0,
            };
            self.link.give_back(bytes);
            let outstanding = self.outstanding();
            let has_brought = self.link.carrier.fetched(what, messages, outstanding);
            in_vain += u32::from(!has_brought);
            if !self.dropped.is_empty() {
                self.end_dropped();
            }
        }
        if self.is_left && !self.link.carrier.fetches() {
            return Err(Broken::Goodbye);
        }
        while let Some(argument) = self.link.carrier.take_request_of_mode() {
            self.link.post_op(Op::Mode, argument);
        }
        Ok(in_vain)
    }

    fn take_ready(&mut self, bytes: &mut [u8], sink: &mut dyn ReplySink) -> Result<usize, Broken> {
        let (mut at, mut messages) = (0, 0);
        loop {
            let next = self.link.carrier.next_message(bytes, &mut at);
            match next.map_err(Broken::PeerMisbehaved)? {
                Some(Found::Message { slot, bytes: range }) => {
                    self.handle_bytes(slot, Message::Borrowed(&bytes[range]), sink)?;
                }
                Some(Found::Elsewhere) => {}
                None => return Ok(messages),
            }
            messages += 1;
        }
    }
}
