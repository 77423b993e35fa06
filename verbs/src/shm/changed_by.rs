//! A check of debug builds: who changes a word by atomics, its owner's CPU or peers.
//!
//! On this device both may, as both are CPUs of one machine. On most NICs an atomic of a peer is not atomic with the CPU's
//! ([`atomics_include_cpu`](crate::Capabilities::atomics_include_cpu)), and a program that relies on it works here and loses updates there.
//! So where the device says that it is such a NIC, the second side panics. Only a peer in the owner's process is noticed: words are known by
//! their address.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::memory::mapping::Mapping;

/// A side that changes words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The owner's CPU.
    Owner,
    /// Peers, by their queue pairs.
    Peers,
}

/// The side that has changed each word, by the word's address.
static CHANGED: Mutex<BTreeMap<usize, Side>> = Mutex::new(BTreeMap::new());

/// This side changes the word at an address.
///
/// # Panics
/// If the other side has changed it too.
pub(crate) fn note(word: *const u8, side: Side) {
    let mut changed = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    let first = *changed.entry(word.addr()).or_insert(side);
    drop(changed);
    assert!(
        first == side,
        "both its owner's CPU and peers change one word by atomics, which lose updates of each other on a device without \
         `caps().atomics_include_cpu`; let one side alone change it, or let the owner use a queue pair to itself"
    );
}

/// A new region has these pages: nobody has changed a word of it.
pub(super) fn forget(pages: &Mapping) {
    let begin = pages.start().addr();
    let mut changed = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    if !changed.is_empty() {
        changed.extract_if(begin..begin + pages.len(), |_, _| true).for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_one_side_until_its_pages_are_a_new_region() {
        let pages = Mapping::anonymous(4096).unwrap();
        let word = pages.start().wrapping_add(8);
        note(word, Side::Peers);
        note(word, Side::Peers);
        note(word.wrapping_add(8), Side::Owner);
        let both = std::panic::catch_unwind(|| note(pages.start().wrapping_add(8), Side::Owner));
        assert!(both.is_err(), "both sides");
        forget(&pages);
        note(word, Side::Owner);
        forget(&pages);
    }
}
