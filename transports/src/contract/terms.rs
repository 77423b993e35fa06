//! What both ends of a connection agree on.

use serde::{Deserialize, Serialize};

use super::config::{Config, MAX_SLOT_BYTES, MAX_WINDOW};

/// Smallest slot: one cache line, which holds both headers and a small message.
pub const MIN_SLOT_BYTES: u32 = 64;

/// Slots are whole cache lines, so that two of them never share one.
const SLOT_STEP_BYTES: u32 = 64;

/// What both ends agree on; each number is the smaller of the two ends'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Calls outstanding on the connection.
    pub window: u32,
    /// Bytes of one slot, both headers included.
    pub slot: u32,
    /// Largest message in bytes, with its header.
    pub max_message: u64,
}

impl Terms {
    /// The terms of a server with this configuration and a client that offers `theirs`; `None` if the offer is
    /// impossible.
    pub(crate) fn agree(ours: &Config, theirs: &Terms) -> Option<Terms> {
        let most = Terms { window: MAX_WINDOW, slot: MAX_SLOT_BYTES, max_message: u64::MAX };
        theirs.is_within(&most).then(|| Terms {
            window: ours.window.min(theirs.window),
            slot: ours.slot.min(theirs.slot),
            max_message: ours.terms().max_message.min(theirs.max_message),
        })
    }

    /// Whether an end that offered that much may take these terms.
    pub(crate) fn is_within(&self, offered: &Terms) -> bool {
        (1..=offered.window).contains(&self.window)
            && (MIN_SLOT_BYTES..=offered.slot).contains(&self.slot)
            && self.slot.is_multiple_of(SLOT_STEP_BYTES)
            && (1..=offered.max_message).contains(&self.max_message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_holds() {
        let offered = Terms { window: 8, slot: 1 << 20, max_message: 99 };
        let terms = Terms::agree(&Config::default(), &offered).unwrap();
        assert_eq!(terms, Terms { window: 8, slot: Config::default().slot, max_message: 99 });
        assert!(terms.is_within(&offered));
        assert!(!Terms { window: 9, ..terms }.is_within(&offered));
    }

    #[test]
    fn impossible_terms_are_refused() {
        for terms in [
            Terms { window: 0, slot: 4096, max_message: 1 },
            Terms { window: MAX_WINDOW + 1, slot: 4096, max_message: 1 },
            Terms { window: 1, slot: 65, max_message: 1 },
            Terms { window: 1, slot: 0, max_message: 1 },
            Terms { window: 1, slot: u32::MAX, max_message: 1 },
            Terms { window: 1, slot: 4096, max_message: 0 },
        ] {
            assert_eq!(Terms::agree(&Config::default(), &terms), None, "{terms:?}");
        }
    }
}
