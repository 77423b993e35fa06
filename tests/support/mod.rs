//! What the tests of generated code share.
#![allow(dead_code)]

pub(crate) mod memory;
pub(crate) mod shapes;
