//! A queue pair as its NIC knows it.

use std::collections::VecDeque;

use super::event::QpId;
use super::memory::Place;
use super::nic::{Context, Line};
use super::receives::Receives;
use crate::{CompletionOpcode, QpState, QpType, SharedSlice, Status};

/// How often a message is sent again to a silent peer before that counts as gone: the most that the
/// specification allows.
pub(super) const RETRIES: u8 = 7;

/// Retries of a receiver that is not ready which mean: for ever.
pub(super) const RNR_FOR_EVER: u8 = 7;

/// A posted send work request.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) id: u64,
    pub(super) message: u32,
    pub(super) len: u32,
    /// It is answered by a message of its own, as READs, atomics and flushes are.
    pub(super) asks: bool,
    /// Where the answer's bytes go.
    pub(super) into: Option<Place>,
    /// Keeps shared memory that `into`, or the message's source, lies in.
    pub(super) held: Option<SharedSlice>,
    pub(super) opcode: CompletionOpcode,
    pub(super) signaled: bool,
    pub(super) done: bool,
    /// Cache lines that it has; the CPU has pushed them to the NIC.
    pub(super) lines: u8,
    /// It carries all its bytes.
    pub(super) inline: bool,
    pub(super) pushed: bool,
    /// It is the last one of its doorbell.
    pub(super) last: bool,
    /// Where the NIC keeps it.
    pub(super) line: Line,
}

/// What a queue pair is made of.
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

/// How its connection deals with a peer that is slow or gone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer_ns: u64,
    /// For one answer.
    pub(super) timeout_ns: u64,
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
    pub(super) patience: Patience,

    /// Work requests that are not done, the first of them with the number `base`.
    pub(super) sends: VecDeque<Wqe>,
    pub(super) base: u64,
    /// The next one that the NIC fetches, and the first that it has not heard of.
    pub(super) next: u64,
    pub(super) heard: u64,
    /// The first for which no doorbell was rung.
    pub(super) rung: u64,
    /// One more than the number of the last that a polled completion retired.
    pub(super) retired: u64,
    pub(super) max_send_wr: u64,
    /// Changes when what is on its way to the wire is to be forgotten.
    pub(super) epoch: u16,
    pub(super) last_launch_ns: u64,
    /// Where the NIC's cache has its context.
    pub(super) context: Context,
    /// It waits for its turn to send more.
    pub(super) has_turn: bool,
    /// The actor that has used it last, and until when.
    pub(super) user: Option<u32>,
    pub(super) used_until_ns: u64,
    /// When the last message comes to the peer: none behind it comes earlier.
    pub(super) last_arrival_ns: u64,
    /// READs and atomics that the NIC has fetched and that are not answered.
    pub(super) asking: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    /// The peer had no receive: nothing is sent until it is tried again.
    pub(super) holds_back: bool,
    /// The message whose missing answer was noticed by those behind it.
    pub(super) missed: Option<u64>,
    /// A refusal that waits for what was asked before.
    pub(super) refused: Option<(u64, Status)>,
    pub(super) timer_set: bool,
    pub(super) deadline_ns: u64,

    pub(super) receives: Receives,
    /// The number of the message that has to come next.
    pub(super) expected: u32,
    /// The peer has been told that something is missing.
    pub(super) complained: bool,
    /// When the last message's bytes are in memory: none behind it is carried out earlier.
    pub(super) landed_ns: u64,
    /// What the last atomics brought back, for a peer that asks again.
    pub(super) atomics: VecDeque<(u32, u64)>,
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
            patience: Patience::default(),
            sends: VecDeque::new(),
            base: 0,
            next: 0,
            heard: 0,
            rung: 0,
            retired: 0,
            max_send_wr: max_send_wr as u64,
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
            holds_back: false,
            missed: None,
            refused: None,
            timer_set: false,
            deadline_ns: 0,
            receives: Receives::new(max_recv_wr),
            expected: 0,
            complained: false,
            landed_ns: 0,
            atomics: VecDeque::new(),
        }
    }

    /// One more than the number of the last work request posted.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.base + self.sends.len() as u64
    }

    /// The number of the work request whose low bits are these, unless it is done with.
    #[inline]
    pub(super) fn number_of(&self, psn: u32) -> Option<u64> {
        let ahead = psn.wrapping_sub(self.base as u32);
        (ahead < 1 << 31).then(|| self.base + u64::from(ahead))
    }

    #[inline]
    pub(super) fn wqe(&mut self, number: u64) -> Option<&mut Wqe> {
        self.sends.get_mut(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    /// Something is on its way that the peer has to answer.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.next > self.base && self.state == QpState::ReadyToSend && !self.holds_back
    }

    /// The peer has seen all before `number`: what needs no bytes for an answer is done.
    pub(super) fn done_before(&mut self, number: u64) {
        let count = number.saturating_sub(self.base) as usize;
        for wqe in self.sends.iter_mut().take(count) {
            wqe.done |= !wqe.asks;
        }
    }

    /// Sends everything from `number` on again, or at last.
    pub(super) fn go_back(&mut self, number: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.last_launch_ns = 0; // What waited for its launch is forgotten.
        self.next = number.max(self.base);
        let before = (self.next - self.base) as usize;
        let asking = self.sends.iter().take(before).filter(|wqe| wqe.asks && !wqe.done);
        self.asking = asking.count() as u32;
    }

    /// Takes messages from its peer.
    #[inline]
    pub(super) fn hears(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
    }
}
