//! How a child process notices that its parent is gone.

use std::io;
use std::process;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::SIGTERM;

use super::exit;

/// How long a process may take to end by itself once its lifeline is cut.
const GRACE: Duration = Duration::from_secs(2);

/// Asks the kernel to kill this process when its parent dies. A parent that died before is noticed
/// by the end of standard input.
pub(crate) fn die_with_parent() {
    // Where this is refused, the end of standard input still ends the process.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Ends this process as SIGTERM would, once standard input ends.
pub(crate) fn end_with_stdin() {
    die_with_parent();
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = signal_hook::low_level::raise(SIGTERM);
    });
}

/// The lifeline is cut: gives the process some time to end by itself, then ends it.
pub(crate) fn end_soon() {
    thread::sleep(GRACE);
    process::exit(exit::ERROR.into());
}
