//! Bugs that are planted to see that tests find them. Only in this crate's own tests: what users run has nothing of this, as
//! `is_planted` is `false` to the compiler.

/// A bug of the log, or of the store on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Bug {
    /// A write is acknowledged as persistent before the sync.
    AcknowledgedBeforeSync,
    /// The checksum is not compared.
    TornTailAccepted,
    /// Records that an earlier recovery cut off are accepted.
    OldLifeAccepted,
    /// Transactions that did not commit are not undone.
    UndoForgotten,
    /// A snapshot becomes valid before the log of what is in it is persistent.
    CheckpointBeforeItsLog,
    /// The end of the log is where the index says.
    IndexBelieved,
    /// A log whose sync failed goes on.
    PoisonedLogAnswers,
    /// New names are not synced.
    NamesNotSynced,
    /// What recovery finds is not synced again.
    TailNotSynced,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in all that runs in this thread from now on, or takes it out again.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this thread has the bug.
#[cfg(test)]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// None is.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
