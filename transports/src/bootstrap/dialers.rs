//! Threads that open lanes, which blocks. A process has a few, and each opens one lane after another.

use std::io;
use std::sync::Arc;

use farcall_verbs::PerProcess;

use super::workers::Workers;

/// Most threads at a time. A server that does not answer holds one up until the dial's timeout.
const MOST_THREADS: usize = 8;

struct Dialers(Arc<Workers>);

impl Default for Dialers {
    fn default() -> Dialers {
        Dialers(Workers::new("farcall-lane", MOST_THREADS))
    }
}

static DIALERS: PerProcess<Dialers> = PerProcess::new();

/// Runs it on a thread, at once or behind others, of which there is at most one of each connection.
///
/// # Errors
/// No thread can be started, and there is none.
pub(super) fn run(dial: impl FnOnce() + Send + 'static) -> io::Result<()> {
    DIALERS.get().0.run(dial)
}
