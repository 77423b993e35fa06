//! Processes in pid namespaces of their own, as those of containers are: they share the network namespace with the test.

use std::{
    ffi::OsStr,
    fs, io,
    path::Path,
    process::{Child, Command},
};

use rustix::process::{Pid, Signal, kill_process};

/// The program that makes the namespace. It stays, and ends when the process in there does.
const UNSHARE: &str = "unshare";

/// What it unshares: what `docker run --network=host` does, but for the file system and the users. A killed `unshare` kills its child.
const OPTIONS: &[&str] =
    &["--pid", "--ipc", "--uts", "--mount-proc", "--fork", "--kill-child=SIGKILL", "--"];

/// A command that runs that program in a pid namespace of its own.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(UNSHARE);
    command.args(OPTIONS).arg(program);
    command
}

/// Why this process cannot start processes in pid namespaces, if it cannot.
pub fn missing() -> Option<&'static str> {
    match command("true").output() {
        Ok(output) if output.status.success() => None,
        Ok(_) => Some(
            "needs the right to make pid namespaces, which root has outside of most containers",
        ),
        Err(_) => Some("needs the program unshare (util-linux)"),
    }
}

/// Whether a command runs its program in there.
pub(super) fn is_within(command: &Command) -> bool {
    Path::new(command.get_program()) == Path::new(UNSHARE)
}

/// The number, in the test's namespace, of the process that a child made by [`command`] runs.
pub(super) fn inner(child: &Child) -> io::Result<Pid> {
    let unshare = child.id();
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
    let first = children.split_whitespace().next().and_then(|number| number.parse().ok());
    first.and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Kills the process in there, and waits for its end.
pub(super) fn kill(child: &mut Child) -> io::Result<()> {
    match inner(child) {
        Ok(process) => kill_process(process, Signal::KILL)?,
        Err(_) => child.kill()?, // It has not begun, or has ended.
    }
    child.wait().map(drop)
}
