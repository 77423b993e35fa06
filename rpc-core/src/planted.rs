//! Bugs that are planted to see that tests find them. Only with the feature `planted-bugs`: what users run has nothing of this, as
//! `is_planted` is `false` to the compiler.

/// A bug of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Calls run that are over their client's quota.
    UncheckedQuota,
    /// Each lane of a connection has a quota of its own.
    QuotaOfLanes,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in all that runs in this thread from now on, or takes it out again.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this thread has the bug.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// None is.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
