//! How a channel behaves.

use crate::idle::IdlePolicy;
use crate::transport::DialOptions;
use core::time::Duration;

/// How a channel behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// The deadline of calls that are given none. Default 10 s.
    pub deadline: Duration,
    /// Most calls at once, those that wait for room in the window included; further ones end in
    /// [`RpcError::Overloaded`](crate::RpcError::Overloaded). Default 4096.
    pub max_calls: usize,
    /// What the I/O thread does when there is nothing to do.
    pub idle: IdlePolicy,
    /// How to dial.
    pub dial: DialOptions,
    /// What to do when the server is gone.
    pub reconnect: ReconnectPolicy,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions {
            deadline: Duration::from_secs(10),
            max_calls: 4096,
            idle: IdlePolicy::default(),
            dial: DialOptions::default(),
            reconnect: ReconnectPolicy::default(),
        }
    }
}

impl ChannelOptions {
    /// Sets the deadline of calls that are given none.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how many calls there may be at once.
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.max_calls = calls;
        self
    }

    /// Sets what the I/O thread does when there is nothing to do.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// Sets how to dial.
    pub fn dial(mut self, dial: DialOptions) -> Self {
        self.dial = dial;
        self
    }

    /// Sets what to do when the server is gone.
    pub fn reconnect(mut self, reconnect: ReconnectPolicy) -> Self {
        self.reconnect = reconnect;
        self
    }
}

/// What a channel does when the server is gone. It dials when the next call comes, not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconnectPolicy {
    /// The pause after the first failed attempt; it doubles with each further one. Default 10 ms.
    pub first_pause: Duration,
    /// The longest pause. Default 1 s.
    pub longest_pause: Duration,
    /// A call that waits for the server longer than this ends in [`RpcError::PeerGone`](crate::RpcError::PeerGone),
    /// even if its deadline is later. Default 3 s. Zero: never dial again.
    pub give_up_after: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        ReconnectPolicy {
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_secs(1),
            give_up_after: Duration::from_secs(3),
        }
    }
}

impl ReconnectPolicy {
    /// Never dials again.
    pub const NEVER: ReconnectPolicy = ReconnectPolicy {
        first_pause: Duration::ZERO,
        longest_pause: Duration::ZERO,
        give_up_after: Duration::ZERO,
    };

    /// Sets how long a call waits for the server to come back.
    pub fn give_up_after(mut self, bound: Duration) -> Self {
        self.give_up_after = bound;
        self
    }

    /// Sets the first and the longest pause between attempts.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_pause, self.longest_pause) = (first, longest);
        self
    }
}
