//! Shared by the tests of generated code.
#![allow(dead_code)]

pub(crate) mod memory;
pub(crate) mod shapes;
