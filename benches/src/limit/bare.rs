//! What two cores do in the pattern of some calls without any call.

use anyhow::Result;

use super::{Copies, LINE_BYTES, Lines};
use crate::SLICE;
use crate::clock::Clock;

/// Messages from this size on are measured against bare copies of them.
const LARGE_BYTES: usize = 16 << 10;

/// The two cores without any call, where there is such a thing.
pub(crate) enum Bare {
    Lines(Lines),
    Copies(Copies),
    Nothing,
}

impl Bare {
    /// What messages of `size` bytes are measured against, `outstanding` at once, with the partner on `core`.
    pub(crate) fn of(size: usize, outstanding: usize, core: usize) -> Result<Bare> {
        Ok(match size {
            ..=LINE_BYTES if outstanding > 1 => Bare::Lines(Lines::start(core, outstanding)?),
            LARGE_BYTES.. => Bare::Copies(Copies::start(core, size, outstanding)?),
            _ => Bare::Nothing,
        })
    }

    pub(crate) fn slice(&mut self, clock: &Clock) {
        match self {
            Bare::Lines(lines) => lines.slice(clock, SLICE),
            Bare::Copies(copies) => copies.slice(clock, SLICE),
            Bare::Nothing => {}
        }
    }

    pub(crate) fn line_rate(&self) -> Option<f64> {
        match self {
            Bare::Lines(lines) => Some(lines.rate()),
            _ => None,
        }
    }

    pub(crate) fn copy_bandwidth(&self) -> Option<f64> {
        match self {
            Bare::Copies(copies) => Some(copies.bandwidth()),
            _ => None,
        }
    }
}
