//! The sinks of threads whose clients have quotas, and of threads that steal.

use super::{Refusing, Sink, may_give};
use crate::server::call_index::Cancel;
use crate::server::clients::ClientKey;
use crate::server::stealing::Giver;
use crate::transport::{
    CallToken, ClientEvent, ClientId, Message, Replies, RequestLayer, RequestSink,
};
use crate::wire::RequestHeader;

impl Sink<'_> {
    /// The client of a call.
    #[inline]
    fn client_of(&self, call: &CallToken) -> ClientKey {
        ClientKey::of(self.turn.transport, call)
    }

    /// Handles a request that is within its client's quota, and charges the time that it takes. Returns that in nanoseconds, if
    /// it is limited.
    #[inline]
    pub(super) fn handle_metered(
        &mut self,
        call: CallToken,
        message: Message<'_>,
        replies: &mut dyn Replies,
    ) -> Option<u64> {
        let client = self.client_of(&call);
        self.turn.begin_work();
        self.request(call, message, replies);
        self.turn.end_work(client)
    }

    /// Refuses a request of a client that is over its quota.
    #[cold]
    fn refuse_over_quota(
        &mut self,
        call: CallToken,
        message: Message<'_>,
        replies: &mut dyn Replies,
    ) {
        let before = self.services.refusing.replace(Refusing::OverQuota);
        self.request(call, message, replies);
        self.services.refusing.set(before);
    }
}

/// Takes the requests of one transport from clients that have quotas. A type of its own, so that threads without quotas have nothing to
/// decide.
pub(super) struct MeteredSink<'a> {
    pub(super) sink: Sink<'a>,
}

impl RequestLayer for MeteredSink<'_> {
    fn inner(&self) -> &dyn RequestSink {
        &self.sink
    }

    fn inner_mut(&mut self) -> &mut dyn RequestSink {
        &mut self.sink
    }

    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        if self.sink.turn.admit(self.sink.client_of(&call)) {
            let _ = self.sink.handle_metered(call, message, replies);
        } else {
            self.sink.refuse_over_quota(call, message, replies);
        }
    }
}

/// Takes the requests of one transport, and gives some to idle threads. A type of its own, so that threads that do not steal
/// have nothing to decide.
pub(super) struct StealingSink<'a> {
    pub(super) sink: Sink<'a>,
    pub(super) giver: &'a mut Giver,
}

impl RequestLayer for StealingSink<'_> {
    fn inner(&self) -> &dyn RequestSink {
        &self.sink
    }

    fn inner_mut(&mut self) -> &mut dyn RequestSink {
        &mut self.sink
    }

    /// Gives a call to an idle thread, if this one is behind; otherwise handles it, and notes how long that takes.
    fn request(&mut self, mut call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.giver.set_idle(false);
        if !self.sink.turn.admit(self.sink.client_of(&call)) {
            return self.sink.refuse_over_quota(call, message, replies);
        }
        let Sink { services, turn, .. } = &mut self.sink;
        let method = RequestHeader::read(&message).map_or(0, RequestHeader::method);
        let Some(target) = services.methods.find(method) else {
            return self.sink.request(call, message, replies);
        };
        let is_refused = services.refusing.get() != Refusing::No;
        let waited_ns = turn.nanos_so_far();
        if !is_refused && may_give(self.giver, target, &call, turn, waited_ns) {
            let identity = turn.clients.identity(turn.transport, &call).cloned();
            match self.giver.give(call, &message, (turn.transport, identity)) {
                None => return turn.counters.stolen(target.row),
                Some(kept) => call = kept,
            }
        }
        let kept = self.sink.turn.kept;
        let measured = self.sink.handle_metered(call, message, replies);
        let nanos = measured.unwrap_or_else(|| self.sink.turn.read_clock());
        if self.sink.turn.kept == kept {
            self.giver.ran(target.row, nanos);
        }
    }

    fn client(&mut self, client: ClientId, event: ClientEvent) {
        let key = ClientKey { transport: self.sink.turn.transport, id: client };
        match event {
            ClientEvent::Joined(_) => {}
            ClientEvent::Cancelled { slot, generation } => {
                self.giver.cancel(&Cancel::of_call(key, (slot, generation)));
            }
            ClientEvent::Left => self.giver.cancel(&Cancel::of_client(key)),
        }
        self.sink.client(client, event);
    }
}
