//! What every backend of slots does, done by this one.

use super::Scale;

crate::slots::tests::of_backend!(Scale);
