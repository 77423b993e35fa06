//! How much longer than usual everything may take: an emulated machine is slow.

use std::{sync::LazyLock, time::Duration};

/// Holds the factor, a whole number, by which every bound of the suite is longer.
pub const PATIENCE_VARIABLE: &str = "FARCALL_CONFORMANCE_PATIENCE";

/// The factor.
///
/// # Panics
/// The variable is set, and holds no number from 1 to 1000.
pub(crate) fn patience() -> u32 {
    static PATIENCE: LazyLock<u32> = LazyLock::new(|| match std::env::var(PATIENCE_VARIABLE) {
        Err(_) => 1,
        Ok(text) => match text.parse() {
            Ok(factor @ 1..=1000) => factor,
            _ => panic!("{PATIENCE_VARIABLE}={text}: expected a whole number from 1 to 1000"),
        },
    });
    *PATIENCE
}

/// Scales a bound for a usual machine to this one.
pub fn patient(bound: Duration) -> Duration {
    bound * patience()
}
