//! A queue pair as its NIC sees it.

use std::collections::VecDeque;

use super::dynamic::Dynamic;
use super::event::QpId;
use super::memory::LocalAddress;
use super::nic::{Arrival, Context};
use super::receives::Receives;
use crate::{CompletionOpcode, ConnectOptions, QpState, QpType, SharedSlice, Status};

/// How often a message is retransmitted to a silent peer before that counts as dead: the most that the
/// specification allows.
pub(super) const RETRIES: u8 = 7;

/// The `rnr_retry` value that means: retry forever.
pub(super) const RNR_RETRY_FOREVER: u8 = 7;

/// A posted send work request.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) id: u64,
    pub(super) message: u32,
    /// Where it was posted to.
    pub(super) to: QpId,
    pub(super) len: u32,
    /// Whether it has a response message, as READs, atomics and flushes have.
    pub(super) asks: bool,
    /// Where the response's bytes go.
    pub(super) into: Option<LocalAddress>,
    /// Keeps the shared memory of `into` or of the message's source alive.
    pub(super) held: Option<SharedSlice>,
    pub(super) opcode: CompletionOpcode,
    pub(super) signaled: bool,
    pub(super) done: bool,
    /// Its length in cache lines if the CPU has pushed it to the NIC.
    pub(super) lines: u8,
    /// Whether all its bytes are inline.
    pub(super) inline: bool,
    pub(super) pushed: bool,
    /// Whether it is the last of its doorbell.
    pub(super) last: bool,
    /// When it arrived in the NIC's buffer.
    pub(super) arrival: Arrival,
}

/// The parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairParts {
    pub(super) ty: QpType,
    pub(super) pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) max_send_wr: usize,
    pub(super) max_recv_wr: usize,
}

/// How its connection treats a slow or dead peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryPolicy {
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer_ns: u64,
    /// The timeout of one answer.
    pub(super) timeout_ns: u64,
}

impl RetryPolicy {
    pub(super) fn of(options: &ConnectOptions) -> RetryPolicy {
        RetryPolicy {
            rnr_retry: options.rnr_retry,
            rnr_timer_ns: options.rnr_timer_ns,
            // A message is sent once, and then retransmitted up to the number of retries.
            timeout_ns: (options.retry_timeout_ns / (u64::from(RETRIES) + 1)).max(1),
        }
    }
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) ty: QpType,
    pub(super) pd: u32,
    pub(super) state: QpState,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) peer: Option<QpId>,
    pub(super) qkey: u32,
    pub(super) retry_policy: RetryPolicy,

    /// Work requests that are not done. The first has the number `base`.
    pub(super) sends: VecDeque<Wqe>,
    pub(super) base: u64,
    /// The next one that the NIC fetches, and the first one of which it has not been notified.
    pub(super) next: u64,
    pub(super) notified: u64,
    /// The first one for which no doorbell was rung.
    pub(super) rung: u64,
    /// One more than the number of the last one retired by a polled completion.
    pub(super) retired: u64,
    pub(super) max_send_wr: u64,
    /// Work requests posted since the last message that stay in the NIC.
    pub(super) skipped: u32,
    /// Whether there has been one.
    pub(super) has_skipped: bool,
    /// Changes to cancel messages on their way to the wire.
    pub(super) epoch: u16,
    pub(super) last_launch_ns: u64,
    /// Where the NIC caches its context.
    pub(super) context: Context,
    /// Whether it waits for its turn to send more.
    pub(super) has_turn: bool,
    /// The actor that used it last, and until when.
    pub(super) user: Option<u32>,
    pub(super) used_until_ns: u64,
    /// When the last message reaches the peer: none behind it arrives earlier.
    pub(super) last_arrival_ns: u64,
    /// READs and atomics that the NIC has fetched and that are not answered.
    pub(super) asking: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    /// The peer had no receive: nothing is sent until the retry.
    pub(super) rnr_wait: bool,
    /// The message whose missing answer was detected by later ones.
    pub(super) missed: Option<u64>,
    /// A refusal that is reported after earlier responses.
    pub(super) refused: Option<(u64, Status)>,
    pub(super) timer_set: bool,
    pub(super) deadline_ns: u64,

    pub(super) receives: Receives,
    /// The number of the next message in order.
    pub(super) expected: u32,
    /// The peer has been told that a message is missing.
    pub(super) nak_sent: bool,
    /// When the last message's bytes are in memory: none behind it is executed earlier.
    pub(super) landed_ns: u64,
    /// The WRITE that is landing.
    pub(super) landing: Option<u32>,
    /// When the last response has its bytes: none behind it leaves earlier.
    pub(super) last_reply_ns: u64,
    /// The results of the last atomics, for a peer that retries.
    pub(super) atomics: VecDeque<(u32, u64)>,
    /// What it is to dynamic connections, if it takes part in them.
    pub(super) dynamic: Option<Box<Dynamic>>,
}

impl Pair {
    pub(super) fn new(parts: PairParts) -> Pair {
        let PairParts { ty, pd, send_cq, recv_cq, srq, max_send_wr, max_recv_wr } = parts;
        Pair {
            ty,
            pd,
            state: QpState::Init,
            send_cq,
            recv_cq,
            srq,
            peer: None,
            qkey: 0,
            retry_policy: RetryPolicy::default(),
            sends: VecDeque::new(),
            base: 0,
            next: 0,
            notified: 0,
            rung: 0,
            retired: 0,
            max_send_wr: max_send_wr as u64,
            skipped: 0,
            has_skipped: false,
            epoch: 0,
            last_launch_ns: 0,
            context: Context::default(),
            has_turn: false,
            user: None,
            used_until_ns: 0,
            last_arrival_ns: 0,
            asking: 0,
            retries_left: RETRIES,
            rnr_left: 0,
            rnr_wait: false,
            missed: None,
            refused: None,
            timer_set: false,
            deadline_ns: 0,
            receives: Receives::new(max_recv_wr),
            expected: 0,
            nak_sent: false,
            landed_ns: 0,
            landing: None,
            last_reply_ns: 0,
            atomics: VecDeque::new(),
            dynamic: None,
        }
    }

    /// Where work that is posted now goes.
    #[inline]
    pub(super) fn destination(&self) -> Option<QpId> {
        match self.dynamic.as_deref() {
            Some(dynamic) => dynamic.named(),
            None => self.peer,
        }
    }

    /// One more than the number of the last work request posted.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.base + self.sends.len() as u64
    }

    /// The number of the work request with these low bits, unless it is done.
    #[inline]
    pub(super) fn number_of(&self, psn: u32) -> Option<u64> {
        let ahead = psn.wrapping_sub(self.base as u32);
        (ahead < 1 << 31).then(|| self.base + u64::from(ahead))
    }

    #[inline]
    pub(super) fn wqe(&mut self, number: u64) -> Option<&mut Wqe> {
        self.sends.get_mut(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    /// Whether a message in flight needs an answer.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        let connects = || self.dynamic.as_deref().is_some_and(Dynamic::is_connecting);
        (self.next > self.base || connects())
            && self.state == QpState::ReadyToSend
            && !self.rnr_wait
    }

    /// Completes requests before `number` that need no response bytes: the peer has executed all of them.
    pub(super) fn done_before(&mut self, number: u64) {
        let count = number.saturating_sub(self.base) as usize;
        for wqe in self.sends.iter_mut().take(count) {
            wqe.done |= !wqe.asks;
        }
    }

    /// Sends or resends everything from `number` on.
    pub(super) fn go_back(&mut self, number: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.last_launch_ns = 0; // Requests that waited for their launch are cancelled.
        self.next = number.max(self.base);
        let before = (self.next - self.base) as usize;
        let asking = self.sends.iter().take(before).filter(|wqe| wqe.asks && !wqe.done);
        self.asking = asking.count() as u32;
    }

    /// Whether it accepts messages from its peer.
    #[inline]
    pub(super) fn accepts_messages(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
    }
}
