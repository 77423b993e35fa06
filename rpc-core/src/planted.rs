//! A bug that is planted to see that tests find it. Only with the feature `planted-bugs`: what users run has nothing of this, as
//! `checks_quotas` is `true` to the compiler.

#[cfg(feature = "planted-bugs")]
thread_local! {
    static UNCHECKED_QUOTA: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether servers in this thread let calls pass that are over their clients' quotas, from now on.
#[cfg(feature = "planted-bugs")]
pub fn plant_unchecked_quota(is_planted: bool) {
    UNCHECKED_QUOTA.set(is_planted);
}

/// Whether quotas are checked in this thread.
#[cfg(feature = "planted-bugs")]
pub(crate) fn checks_quotas() -> bool {
    !UNCHECKED_QUOTA.get()
}

/// They are.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn checks_quotas() -> bool {
    true
}
