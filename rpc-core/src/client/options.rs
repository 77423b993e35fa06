//! How a poll-mode connection behaves.

use crate::idle::IdlePolicy;
use crate::site::Site;
use crate::transport::DialOptions;
use core::time::Duration;

/// How a poll-mode connection behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionOptions {
    /// The deadline of each call, counted from when it leaves. Default 10 s.
    pub deadline: Duration,
    /// What a blocking call does while it waits.
    pub idle: IdlePolicy,
    /// How to dial.
    pub dial: DialOptions,
    /// The site of the thread that will use the connection. Default: a site for this connection alone.
    pub site: Option<Site>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            deadline: Duration::from_secs(10),
            idle: IdlePolicy::default(),
            dial: DialOptions::default(),
            site: None,
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

    /// Sets the site of the thread that will use the connection.
    ///
    /// The connections of one thread should have the same one: the thread sleeps for all of them at once, and their
    /// transports share what they can. All connections of the `datagram` backend share one queue pair, for example.
    pub fn site(mut self, site: &Site) -> Self {
        self.site = Some(site.clone());
        self
    }
}
