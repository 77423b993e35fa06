//! What every backend of slots does, done by this one; and its switches.

mod pinned;
mod switches;

use super::Scale;

crate::slots::tests::of_backend!(Scale);
