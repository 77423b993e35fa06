//! The way of an answer that is made outside of a poll: through the transport that brought its call.

use crate::transport::{Replies, ServerTransport};

/// The transports of one thread, by their numbers.
pub(super) enum ReplyPaths<'a> {
    /// The usual case: found once, not once per answer.
    One(&'a mut dyn Replies),
    Several(&'a mut [Box<dyn ServerTransport>]),
}

impl<'a> ReplyPaths<'a> {
    pub(super) fn new(transports: &'a mut [Box<dyn ServerTransport>]) -> Self {
        match transports {
            [only] => ReplyPaths::One(only.replies()),
            several => ReplyPaths::Several(several),
        }
    }

    /// Where answers to calls of this transport go.
    #[inline]
    pub(super) fn of(&mut self, transport: u32) -> &mut dyn Replies {
        match self {
            ReplyPaths::One(replies) => *replies,
            ReplyPaths::Several(transports) => transports[transport as usize].replies(),
        }
    }
}
