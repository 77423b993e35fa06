//! The process's exit status.

/// A key was not found.
pub(crate) const NOT_FOUND: u8 = 1;
/// Something failed, or the command line is wrong.
pub(crate) const ERROR: u8 = 2;
/// The store gave a wrong answer.
pub(crate) const WRONG_ANSWER: u8 = 3;
