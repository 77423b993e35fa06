//! The way of an answer that is made outside of a poll: through the transport that brought its call.

use super::turn::Turn;
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

    /// Where answers to calls of this transport go, which the turn handles from now on.
    #[inline]
    pub(super) fn enter(&mut self, transport: u32, turn: &mut Turn) -> &mut dyn Replies {
        turn.transport = transport;
        match self {
            ReplyPaths::One(replies) => *replies,
            ReplyPaths::Several(transports) => transports[transport as usize].replies(),
        }
    }
}
