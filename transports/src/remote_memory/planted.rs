//! Bugs of lent memory, planted to see that tests find them: see [`crate::planted`].

use super::batches::Record;
use super::grants::Grants;
use crate::planted::{Bug, is_planted};

/// Lends that were revoked and have not ended: [`Bug::EarlyRevoke`].
#[cfg(feature = "planted-bugs")]
#[derive(Debug, Default)]
pub(super) struct Late(Vec<u32>);

/// [`Bug::LongWindow`]: how many bytes further than its lend an operation may reach.
#[inline]
pub(super) fn bytes_beyond() -> u64 {
    is_planted(Bug::LongWindow).into()
}

/// [`Bug::ReusedOnCancel`]: the next operation of the lane gets the bytes that come back from this one, which was given up.
#[inline]
pub(super) fn leaves_buffer_to_next(record: &Record) -> bool {
    is_planted(Bug::ReusedOnCancel) && record.is_over()
}

#[cfg(feature = "planted-bugs")]
impl Grants {
    /// [`Bug::EarlyRevoke`]: this lend, which is being revoked, ends later.
    pub(super) fn is_late(&mut self, lend: u32) -> bool {
        let is_late = is_planted(Bug::EarlyRevoke);
        if is_late {
            self.late.0.push(lend);
        }
        is_late
    }

    /// They end now.
    pub(super) fn end_late(&mut self) {
        for lend in std::mem::take(&mut self.late.0) {
            self.end(lend, super::MemoryError::Revoked);
        }
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl Grants {
    #[inline]
    pub(super) fn is_late(&mut self, _: u32) -> bool {
        is_planted(Bug::EarlyRevoke)
    }

    #[inline]
    pub(super) fn end_late(&mut self) {}
}
