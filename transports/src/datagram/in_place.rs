//! Replies of idempotent calls that are answered in place, of which the server keeps nothing.
//!
//! A handler that answers at once writes its reply into the datagram that is built, and no slot knows of the call. While a
//! handler takes longer, the slot says that the call runs: otherwise copies of the request would start it again.

use farcall_core::transport::CallToken;

use super::port::Port;
use super::session::Session;
use super::wire::{Id, Kind};
use crate::kit::roster::Roster;
use crate::repair::window::LAST_COPY;

#[derive(Debug, Default)]
pub(crate) struct InPlaceReplies {
    /// The call that a handler has now, until it is answered.
    call: Option<CallToken>,
    /// Which copy of its request arrived.
    mark: u8,
    /// The client whose replies are in the datagram that is built.
    client: Option<u32>,
}

impl InPlaceReplies {
    /// A handler is about to get this call.
    #[inline]
    pub(crate) fn begin(&mut self, call: CallToken, mark: u8) {
        (self.call, self.mark) = (Some(call), mark);
    }

    /// The call cannot be answered in place any more. Gives its request, if it is still to be answered.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<Id> {
        let (call, mark) = (self.call.take()?, self.mark);
        Some(Id { slot: call.slot(), generation: call.generation(), mark })
    }

    /// Whether this call can be answered in place.
    #[inline]
    pub(crate) fn has(&self, call: &CallToken) -> bool {
        self.call.as_ref() == Some(call)
    }

    /// Makes room for the reply in a datagram. `false`: it is too long, or the send queue has no room.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        call: &CallToken,
        len: usize,
        roster: &mut Roster<Session>,
        port: &mut Port,
    ) -> bool {
        let client = call.client();
        if self.client != Some(client) {
            self.post_datagram(roster, port);
        }
        let Some(session) = roster.get(client) else { return false };
        let mark = self.mark & LAST_COPY;
        let id = Id { slot: call.slot(), generation: call.generation(), mark };
        let bounds = session.bounds;
        let is_small = len <= bounds.max_small && len as u64 <= bounds.max_message;
        let has_room = is_small && port.begin(&session.peer, Kind::Response, id, len);
        if has_room {
            self.client = Some(client);
        }
        has_room
    }

    /// The reply is written. Its datagram leaves with the others of the turn.
    #[inline]
    pub(crate) fn finish(&mut self, len: usize, port: &mut Port) {
        self.call = None;
        port.finish(len);
    }

    /// Replies wait in a datagram.
    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        self.client.is_some()
    }

    /// Posts the datagram, so that others can be built.
    #[inline]
    pub(crate) fn post_datagram(&mut self, roster: &mut Roster<Session>, port: &mut Port) {
        if let Some(client) = self.client.take()
            && let Some(session) = roster.get(client)
        {
            port.post(&session.peer);
        }
    }
}
