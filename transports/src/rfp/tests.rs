//! What every backend of slots does, done by this one.

use super::Rfp;

crate::slots::tests::of_backend!(Rfp);
