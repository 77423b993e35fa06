//! The sending half of a queue pair: what fits, what is signaled, when the doorbell rings, and whether it is broken.

use farcall_verbs::{Buffer, PostError, QueuePair, RemoteSlice, WorkRequest};

use super::send_queue::SendQueue;

/// Posts to a queue pair. What is posted leaves with the next [`ring`](Sender::ring).
#[derive(Debug)]
pub(crate) struct Sender {
    qp: QueuePair,
    queue: SendQueue,
    max_inline: usize,
    /// The high half of the ids of work requests.
    client: u32,
    /// Something was posted since the last doorbell.
    unrung: bool,
    broken: bool,
}

impl Sender {
    /// Sends over this queue pair, whose send queue has room for `depth` work requests; inline up to `max_inline` bytes. The
    /// ids of work requests [begin](work_id) with `client`.
    pub(crate) fn new(qp: QueuePair, depth: u32, max_inline: usize, client: u32) -> Sender {
        let queue = SendQueue::new(depth);
        Sender { qp, queue, max_inline, client, unrung: false, broken: false }
    }

    /// The same, where each work request is signaled.
    pub(crate) fn signaling_all(self) -> Sender {
        Sender { queue: self.queue.signaling_all(), ..self }
    }

    /// The queue pair.
    pub(crate) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    #[cfg(test)]
    pub(crate) fn qp_mut(&mut self) -> &mut QueuePair {
        &mut self.qp
    }

    /// A post failed, or a work request: nothing more will arrive.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// A work request has failed, and with it the queue pair.
    #[cold]
    pub(crate) fn mark_broken(&mut self) {
        self.broken = true;
    }

    /// Whether a message of so many bytes becomes part of its work request. Its memory is then free at once.
    #[inline]
    pub(crate) fn is_inline(&self, len: usize) -> bool {
        len <= self.max_inline
    }

    /// Work requests there is room for.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.queue.room()
    }

    /// Everything posted has left, or nothing will any more.
    pub(crate) fn has_left(&self) -> bool {
        self.broken || self.queue.is_empty()
    }

    /// The number of the last work request.
    pub(crate) fn posted(&self) -> u32 {
        self.queue.posted()
    }

    /// The work request with this number has completed.
    pub(crate) fn has_retired(&self, number: u32) -> bool {
        self.queue.has_retired(number)
    }

    /// Posts an inline WRITE_WITH_IMM. `false`: the queue pair is broken.
    #[inline]
    pub(crate) fn write_imm(
        &mut self,
        message: &[u8],
        remote: RemoteSlice,
        imm: u32,
        must_signal: bool,
    ) -> bool {
        let signal = self.queue.post(must_signal).map(|count| work_id(self.client, count));
        self.unrung = true;
        self.check(|qp| qp.post_write_imm(message, remote, imm, signal))
    }

    /// Posts an inline WRITE_WITH_IMM of the bytes of `front` and then those of `rest`, if the device can at once. `false`: nothing
    /// was posted.
    #[inline]
    pub(crate) fn try_write_imm_parts(
        &mut self,
        front: &[u8],
        rest: &[u8],
        remote: RemoteSlice,
        imm: u32,
    ) -> bool {
        let mut queue = self.queue.clone();
        let signal = queue.post(false).map(|count| work_id(self.client, count));
        let is_posted = self.qp.try_post_write_imm_parts(front, rest, remote, imm, signal);
        if is_posted {
            (self.queue, self.unrung) = (queue, true);
        }
        is_posted
    }

    /// Posts an inline SEND with an immediate. `false`: the queue pair is broken.
    #[inline]
    pub(crate) fn send_imm(&mut self, message: &[u8], imm: u32, must_signal: bool) -> bool {
        self.post(WorkRequest::send(message).imm(imm), must_signal)
    }

    /// Posts a request, signaled if that must be or if it is time. `false`: the queue pair is broken.
    #[inline]
    pub(crate) fn post<'a>(
        &mut self,
        request: impl Into<WorkRequest<'a>>,
        must_signal: bool,
    ) -> bool {
        let mut request = request.into();
        if let Some(count) = self.queue.post(must_signal) {
            request = request.signaled(work_id(self.client, count));
        }
        self.unrung = true;
        self.check(|qp| qp.post_unrung(request).map_err(|(error, _)| error))
    }

    /// Posts to the queue pair whatever the send queue does not count: receives. `false`: the queue pair is broken.
    #[inline]
    pub(crate) fn check(
        &mut self,
        post: impl FnOnce(&mut QueuePair) -> Result<(), PostError>,
    ) -> bool {
        match post(&mut self.qp) {
            Ok(()) => true,
            Err(error) => self.failed(error),
        }
    }

    #[cold]
    fn failed(&mut self, error: PostError) -> bool {
        tracing::debug!(%error, "a queue pair broke while posting");
        self.broken = true;
        false
    }

    /// One doorbell for all that was posted.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.qp.ring();
        }
    }

    /// The work request with this id has completed, and so have all before it.
    #[inline]
    pub(crate) fn retire(&mut self, id: u64) {
        self.queue.retire(id as u32);
    }

    /// Gives the buffers of the work requests that have completed, in the order of posting.
    #[inline]
    pub(crate) fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        self.qp.reclaim(into);
    }
}

/// The id of a work request: its completion leads back to the client whatever its status.
#[inline]
pub(crate) fn work_id(client: u32, count: u32) -> u64 {
    u64::from(client) << 32 | u64::from(count)
}
