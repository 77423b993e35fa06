//! Posted receives of one queue pair, or of several.

use std::collections::VecDeque;
use std::ops::Range;

use crate::{Buffer, PostError};

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) buffer: Option<Buffer>,
}

/// Posted receives as they are stored: those without buffers as runs.
#[derive(Debug)]
enum Posted {
    One(Receive),
    Run(Range<u64>),
}

#[derive(Debug)]
pub(super) struct Receives {
    posted: VecDeque<Posted>,
    /// Posted receives whose completions have not been polled.
    out: u32,
    max: u32,
}

impl Receives {
    pub(super) fn new(max: usize) -> Receives {
        Receives { posted: VecDeque::new(), out: 0, max: u32::try_from(max).unwrap_or(u32::MAX) }
    }

    pub(super) fn post(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        if self.out >= self.max {
            return Err(PostError::QueueFull);
        }
        self.out += 1;
        self.posted.push_back(Posted::One(Receive { id, buffer }));
        Ok(())
    }

    /// Posts a receive without a buffer for each id; all or none.
    pub(super) fn post_run(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        let count = ids.end.saturating_sub(ids.start);
        if count > u64::from(self.max.saturating_sub(self.out)) {
            return Err(PostError::QueueFull);
        }
        self.out += count as u32;
        if count > 0 {
            self.posted.push_back(Posted::Run(ids));
        }
        Ok(())
    }

    /// Takes the receive for the next message.
    pub(super) fn take(&mut self) -> Option<Receive> {
        let Posted::Run(ids) = self.posted.front_mut()? else {
            return match self.posted.pop_front()? {
                Posted::One(receive) => Some(receive),
                Posted::Run(_) => None,
            };
        };
        let id = ids.next()?;
        if ids.is_empty() {
            self.posted.pop_front();
        }
        Some(Receive { id, buffer: None })
    }

    /// Makes room for one more receive: a completion was polled.
    #[inline]
    pub(super) fn polled(&mut self) {
        self.out = self.out.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_taken_in_order_and_a_poll_makes_room() {
        let mut receives = Receives::new(4);
        receives.post(9, None).unwrap();
        receives.post_run(3..6).unwrap();
        assert_eq!(receives.post(1, None), Err(PostError::QueueFull));
        let ids: Vec<_> = std::iter::from_fn(|| receives.take()).map(|r| r.id).collect();
        assert_eq!(ids, [9, 3, 4, 5]);
        assert_eq!(receives.post_run(6..7), Err(PostError::QueueFull));
        receives.polled();
        assert_eq!(receives.post_run(6..8), Err(PostError::QueueFull));
        receives.post_run(6..7).unwrap();
    }
}
