//! The limit of two cores for a pattern of calls, measured without any protocol.

use anyhow::Result;

use super::{Copies, LINE_BYTES, Lines};
use crate::SLICE;
use crate::clock::Clock;

/// Messages of at least this size are compared with copies of buffers.
const LARGE_BYTES: usize = 16 << 10;

/// The measured limit, if there is one for the pattern.
pub(crate) enum Bare {
    Lines(Lines),
    Copies(Copies),
    Nothing,
}

impl Bare {
    /// The limit for messages of `size` bytes with `outstanding` at once, and the partner on `core`.
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
