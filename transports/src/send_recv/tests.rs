//! The backend driven step by step, without sockets or threads.

use super::SendRecv;

crate::slots::tests::of_backend!(SendRecv);
