//! The end of access to a lend, which takes a moment where clients have lanes.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Memory;
use super::host_lanes::HostLanes;

/// How long a thread waits for the clients of lanes to leave what is revoked. One access takes microseconds; a client that is stopped in
/// the midst of one may never leave.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A revoke that has begun: see [`Memory::start_revoke`]. Access has ended for certain when it has been awaited or [waited](Self::wait) for.
#[derive(Debug)]
#[must_use = "access has ended for certain when it has been awaited or waited for"]
pub struct Revoking {
    memory: Memory,
    lends: Vec<u32>,
    ended: usize,
    /// When somebody first waited for it.
    begun: Option<Instant>,
}

impl Revoking {
    pub(super) fn new(memory: Memory, lends: Vec<u32>, ended: usize) -> Revoking {
        Revoking { memory, lends, ended, begun: None }
    }

    /// How many lends it ends.
    pub fn lends(&self) -> usize {
        self.ended
    }

    /// Blocks this thread until access has ended. Returns whether something was lent: see [`Memory::revoke`], also for the bound.
    pub fn wait(mut self) -> bool {
        while !self.memory.with_lanes(|lanes| self.look(lanes)) {
            // In virtual time, nothing completes while something waits.
            if self.memory.is_simulated() || self.is_late() {
                self.end_lanes();
                break;
            }
            std::thread::yield_now();
        }
        self.ended > 0
    }

    /// It has been waited for as long as somebody waits.
    fn is_late(&mut self) -> bool {
        self.begun.get_or_insert_with(Instant::now).elapsed() > MAX_WAIT
    }

    /// Takes what has completed. Returns whether access has ended.
    fn look(&self, lanes: &mut HostLanes) -> bool {
        let is_ending = || self.lends.iter().any(|lend| lanes.is_ending(*lend));
        if !is_ending() {
            return true;
        }
        lanes.poll();
        !self.lends.iter().any(|lend| lanes.is_ending(*lend))
    }

    /// Destroys the queue pairs on which access goes on.
    #[cold]
    fn end_lanes(&self) {
        let ended: usize = self
            .memory
            .with_lanes(|lanes| self.lends.iter().map(|lend| lanes.end_all_of(*lend)).sum());
        if ended > 0 && self.memory.is_shared_memory() {
            tracing::error!(
                "a client is stopped within an access to lent memory; its lane ends, and it may still write there when it goes on"
            );
        }
    }
}

impl Future for Revoking {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        if !self.memory.with_lanes(|lanes| self.look(lanes)) {
            if self.memory.is_simulated() || !self.is_late() {
                // It takes microseconds, and the thread that drives the lanes may have ended.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.end_lanes();
        }
        Poll::Ready(self.ended > 0)
    }
}
