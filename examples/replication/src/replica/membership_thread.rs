//! The thread that asks the membership service: its calls may block.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use super::driver::{Input, Mailbox};
use crate::membership::{Configuration, Membership};

/// Makes proposals, and tells the replica's thread of new configurations. Its thread ends when this is dropped.
pub(super) struct Proposer(Sender<Configuration>);

impl Proposer {
    pub(super) fn start(
        membership: Arc<dyn Membership>,
        mailbox: Mailbox,
        interval: Duration,
    ) -> std::io::Result<Proposer> {
        let (sender, proposals) = mpsc::channel::<Configuration>();
        std::thread::Builder::new().name("replica-membership".into()).spawn(move || {
            loop {
                match proposals.recv_timeout(interval) {
                    Ok(next) => {
                        let newest = membership.propose(&next).ok();
                        mailbox.deliver(Input::Proposed(newest));
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        // While it is away, the group goes on as it is.
                        if let Ok(newest) = membership.current() {
                            mailbox.deliver(Input::Configuration(newest));
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Proposer(sender))
    }

    pub(super) fn propose(&self, next: Configuration) {
        // Its thread ends with this.
        let _ = self.0.send(next);
    }
}
