//! How a channel behaves.

use super::endpoint::Endpoint;
use crate::idle::IdlePolicy;
use crate::transport::DialOptions;
use core::time::Duration;

/// How a channel behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// The deadline of calls without one of their own. Default 10 s.
    pub deadline: Duration,
    /// The limit of calls at once, including those that wait for room in the window; further ones end in
    /// [`RpcError::Overloaded`](crate::RpcError::Overloaded). Default 4096.
    pub max_calls: usize,
    /// The endpoint whose thread drives the channel. Default: a thread for this channel alone.
    pub endpoint: Option<Endpoint>,
    /// What the channel's own I/O thread does when there is nothing to do. An [`endpoint`](Self::endpoint) has its own
    /// policy.
    pub idle: IdlePolicy,
    /// How to dial.
    pub dial: DialOptions,
    /// Whether to reconnect when the server is gone.
    pub reconnect: ReconnectPolicy,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions {
            deadline: Duration::from_secs(10),
            max_calls: 4096,
            endpoint: None,
            idle: IdlePolicy::default(),
            dial: DialOptions::default(),
            reconnect: ReconnectPolicy::default(),
        }
    }
}

impl ChannelOptions {
    /// Sets the deadline of calls without one of their own.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the limit of calls at once.
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.max_calls = calls;
        self
    }

    /// Puts the channel on the thread of this endpoint.
    pub fn endpoint(mut self, endpoint: &Endpoint) -> Self {
        self.endpoint = Some(endpoint.clone());
        self
    }

    /// Sets what the channel's own I/O thread does when there is nothing to do.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// Sets how to dial.
    pub fn dial(mut self, dial: DialOptions) -> Self {
        self.dial = dial;
        self
    }

    /// Sets whether to reconnect when the server is gone.
    pub fn reconnect(mut self, reconnect: ReconnectPolicy) -> Self {
        self.reconnect = reconnect;
        self
    }
}

/// Whether a channel reconnects when the server is gone. It dials when the next call comes, not before.
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
