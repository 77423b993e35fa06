//! Counters of how a client's connection moves among backends.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a connection that moves among backends has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MoveEvent {
    /// Calls have begun to take another backend, to see how long they take there.
    Tried,
    /// Calls stay on the backend that was tried, or have moved as the server advised.
    Moved,
    /// Calls have gone back: they took no less time on the backend that was tried.
    Returned,
    /// No lane of another backend could be opened.
    NotOpened,
    /// A lane has ended by itself, and the connection has gone on with another.
    LaneLost,
}

impl MoveEvent {
    /// All of them.
    pub const ALL: [MoveEvent; 5] = [
        MoveEvent::Tried,
        MoveEvent::Moved,
        MoveEvent::Returned,
        MoveEvent::NotOpened,
        MoveEvent::LaneLost,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            MoveEvent::Tried => "tried",
            MoveEvent::Moved => "moved",
            MoveEvent::Returned => "returned",
            MoveEvent::NotOpened => "not_opened",
            MoveEvent::LaneLost => "lane_lost",
        }
    }
}

/// How often a connection has done what concerns its backends. Any thread may count.
#[derive(Default)]
pub struct MoveCounts([AtomicU64; MoveEvent::ALL.len()]);

impl MoveCounts {
    /// Counts one more.
    #[cold]
    pub fn count(&self, event: MoveEvent) {
        self.0[event as usize].fetch_add(1, Relaxed);
    }

    /// How often that was so far.
    pub fn of(&self, event: MoveEvent) -> u64 {
        self.0[event as usize].load(Relaxed)
    }
}

impl fmt::Debug for MoveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = MoveEvent::ALL.into_iter().map(|event| (event.name(), self.of(event)));
        f.debug_map().entries(all).finish()
    }
}
