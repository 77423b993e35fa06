//! How a child process notices that its parent has exited.

use std::io;
use std::process;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::SIGTERM;

use super::exit;

/// How long a process may take to exit by itself after its parent has.
const GRACE: Duration = Duration::from_secs(2);

/// Asks the kernel to kill this process when its parent dies. If the parent died before the call, the
/// end of standard input shows it.
pub(crate) fn die_with_parent() {
    // If this is refused, the end of standard input still ends the process.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Ends this process at the end of standard input, as SIGTERM would.
pub(crate) fn end_with_stdin() {
    die_with_parent();
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = signal_hook::low_level::raise(SIGTERM);
    });
}

/// Lets the process end by itself for a while, then ends it.
pub(crate) fn end_soon() {
    thread::sleep(GRACE);
    process::exit(exit::ERROR.into());
}
