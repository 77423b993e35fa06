//! How quickly and how often ways are tried, by a client for its own calls and by a server for those of all its clients.

use super::budget::Budget;

/// A way that takes so much more is far worse.
pub(super) const FAR_WORSE: f64 = 1.5;

/// How quickly and how often ways are tried.
#[derive(Debug)]
pub(super) struct Pace {
    /// What is measured so soon after a move says nothing of how it will be: the lane is new, and calls of the other end meanwhile.
    pub(super) settling_ns: u64,
    /// Time between two looks at a trial: one that gains nothing is to cost few calls.
    pub(super) trial_look_ns: u64,
    /// The first pause after a trial that has gained nothing.
    pub(super) first_pause_ns: u64,
    /// After a move, the ways that have not been tried wait so long, at least.
    pub(super) after_move_ns: u64,
    /// Looks with calls before the first trial, and between two.
    pub(super) looks_between: u32,
    /// A way that takes so much less time is moved to. Less is within what machines differ by from one moment to the next.
    pub(super) gain: f64,
    /// A way that takes so many times as long is far worse.
    pub(super) far_worse_from: f64,
    /// Ways are tried in their order. Otherwise one that is due is taken by chance.
    pub(super) in_order: bool,
    /// What trials may cost.
    pub(super) budget: Budget,
    /// Looks are compared with how far they are apart: the thread may have no core for a while.
    pub(super) has_noise: bool,
    /// Answers without which a trial shows nothing, however long it was.
    pub(super) least: u64,
    /// Answers that show that a way is far worse, that it is no better, and that it is better: what costs nothing may take longer.
    pub(super) far_worse: u64,
    pub(super) no_better: u64,
    pub(super) better: u64,
}

/// That of a client, for its own calls.
pub(super) static OF_CLIENT: Pace = Pace {
    settling_ns: 300_000,
    trial_look_ns: 50_000,
    first_pause_ns: 20_000_000,
    after_move_ns: 0,
    looks_between: 4,
    gain: 0.9,
    far_worse_from: FAR_WORSE,
    in_order: false,
    budget: Budget::new(5_000_000, 0.01),
    has_noise: true,
    least: 8,
    far_worse: 32,
    no_better: 200,
    better: 1_000,
};
