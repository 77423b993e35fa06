//! Bugs that are planted to see that tests find them. Only in this crate's own tests: to the compiler of other builds `is_planted` is `false`.

/// A bug of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Bug {
    /// A record is committed when all members but one have it.
    AcknowledgedBeforeLast,
    /// A member enters an epoch that is older than its own.
    StaleEpochAccepted,
    /// The primary writes over records that the backup has not taken out of its ring.
    RingReusedEarly,
    /// The checksum of a record is not compared.
    TornTailAccepted,
    /// The first record after a snapshot is not sent.
    CatchUpSkips,
    /// A command that a client sent again is applied again.
    RetryAppliedTwice,
    /// A member that enters an epoch does not revoke what it has lent before.
    NotFenced,
    /// A record counts as synced when it is given to the disk.
    SyncedBeforeDisk,
    /// The primary answers reads without asking its backups.
    UnconfirmedRead,
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
