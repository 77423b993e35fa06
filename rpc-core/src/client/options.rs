//! How a client behaves.

use crate::idle::IdlePolicy;
use crate::transport::DialOptions;
use core::time::Duration;

/// How a poll-mode connection behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionOptions {
    /// The deadline of each call, from when it leaves. Default 10 s.
    pub deadline: Duration,
    /// What a blocking call does while it waits.
    pub idle: IdlePolicy,
    /// How to dial.
    pub dial: DialOptions,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            deadline: Duration::from_secs(10),
            idle: IdlePolicy::default(),
            dial: DialOptions::default(),
        }
    }
}

impl ConnectionOptions {
    /// Sets the deadline of each call.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets what a blocking call does while it waits.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// Sets how to dial.
    pub fn dial(mut self, dial: DialOptions) -> Self {
        self.dial = dial;
        self
    }
}
