//! What every backend of slots does, done by this one.

use super::{DEFAULT_RETRIES, Rfp};
use crate::slots::tests::pair::{Host, limits};

crate::slots::tests::of_backend!(Rfp);

/// Otherwise a client that shares its core with the server reads until its time slice ends.
#[test]
fn a_poll_whose_reads_bring_nothing_is_idle() {
    let mut host = Host::new(&Rfp, limits(4, 256, 4096));
    host.handlers.hold = true;
    let mut caller = host.admit();
    caller.send(b"request");
    host.run(&mut [], |host, _| host.handlers.held.len() == 1);
    assert!(caller.poll(host.now) > 0, "the request has arrived");
    for _ in 1..DEFAULT_RETRIES {
        assert_eq!(caller.poll(host.now), 0);
    }
    host.answer(b"response").unwrap();
    // Of the READ under way, and of the one behind it.
    let worked = [(); 2].map(|()| caller.poll(host.now));
    assert_eq!(worked.iter().sum::<u32>(), 1, "the READ that brings the response: {worked:?}");
    assert_eq!(caller.heard.replies.pop_front().unwrap().1, b"response");
}
