//! The backend driven step by step, without sockets or threads.

mod hostile;

use super::WriteImm;

crate::slots::tests::of_backend!(WriteImm);
