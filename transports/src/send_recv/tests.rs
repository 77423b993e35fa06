//! The backend driven step by step, without sockets or threads.

use super::SendRecv;

crate::slots::tests::of_backend!(SendRecv);

/// Here few clients share a queue.
#[test]
fn clients_of_other_queues_go_on_after_an_overrun() {
    crate::slots::tests::overruns::clients_of_other_queues_go_on_after_an_overrun(&SendRecv);
}
