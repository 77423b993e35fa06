//! What every backend of slots does, done by this one; and its switches.

mod pinned;
mod switches;

use super::Scale;
use crate::contract::Backend;

crate::slots::tests::of_backend!(Scale);

/// The header of a message, and what `scale` adds to it, included.
#[test]
fn arguments_of_8_kib_fit_a_slot_in_memory() {
    assert_eq!(Scale.slot_in_memory(), 8_192 + 64);
}
