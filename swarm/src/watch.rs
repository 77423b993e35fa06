//! Runs a rack up to a moment or to a failure.

use farcall_rack::Rack;

/// How soon a run ends after a failure, so that the end of its trace shows it.
pub(crate) const CHECK_EVERY_NS: u64 = 1_000_000;

/// Runs the rack to that moment, or to the first failure. Returns whether there is one.
pub(crate) fn run_until(rack: &mut Rack, at_ns: u64, has_failed: impl Fn() -> bool) -> bool {
    while rack.now_ns() < at_ns && !has_failed() {
        let look_ns = rack.now_ns() + CHECK_EVERY_NS;
        rack.run_until(look_ns.min(at_ns));
    }
    has_failed()
}
