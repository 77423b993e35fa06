//! Peers that a device refuses, for a program that counts them.

use std::fmt;
use std::sync::OnceLock;

/// Why a device refused another one, or disconnected it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerRefusal {
    /// It belongs to another user.
    OtherUser,
    /// The device has as many peers as it may have.
    NoRoom,
    /// It asked for memory under keys that do not exist, more often than a peer does that keeps the rules.
    GuessedKeys,
}

type Tell = Box<dyn Fn(PeerRefusal) + Send + Sync>;

/// Who is told of each of them, if anybody is.
#[derive(Default)]
pub(crate) struct OnPeerRefused(OnceLock<Tell>);

impl OnPeerRefused {
    /// Tells this one from now on. Only the first call has an effect.
    pub(crate) fn set(&self, tell: Tell) {
        let _ = self.0.set(tell);
    }

    pub(crate) fn tell(&self, why: PeerRefusal) {
        if let Some(tell) = self.0.get() {
            tell(why);
        }
    }
}

impl fmt::Debug for OnPeerRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnPeerRefused").field(&self.0.get().is_some()).finish()
    }
}
