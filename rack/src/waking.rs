//! Sites that no device wakes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use farcall_core::site::{EventChannel, Site, SiteResource};
use farcall_verbs::sim::Node;
use farcall_verbs::{CompletionChannel, VerbsError};

/// Gives the actor of a site a turn when the site is woken, where no device does.
pub(super) struct Waking {
    actor: OnceLock<Waker>,
    /// For its descriptor, which nobody waits for.
    channel: CompletionChannel,
}

impl Waking {
    /// That of this site, on that node.
    pub(super) fn at(site: &Site, node: &Node) -> Result<Arc<Waking>, VerbsError> {
        site.share(
            |_: &Waking| true,
            || {
                let channel = node.device().create_completion_channel()?;
                Ok(Waking { actor: OnceLock::new(), channel })
            },
        )
    }

    /// Says which actor it is.
    pub(super) fn set_actor(&self, actor: Waker) {
        // Once for each site.
        let _ = self.actor.set(actor);
    }
}

impl SiteResource for Waking {
    fn events(&self) -> Option<&dyn EventChannel> {
        Some(self)
    }
}

impl EventChannel for Waking {
    /// Nothing sleeps in virtual time.
    fn wait(&self, _: Duration) {}

    fn wake(&self) {
        self.actor.get().into_iter().for_each(Waker::wake_by_ref);
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
